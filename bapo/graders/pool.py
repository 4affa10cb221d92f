"""Runs checks, above all by algebra, in separate processes that are killed past a limit of CPU or wall time or memory.

A pool starts a checker (:mod:`bapo.graders.symbolic`, if not another module) at the first check, and another one after
a kill. A start takes about a second. Threads may share a pool, and a forked child starts checkers for itself. A checker
ends with the process that started it.

Libraries do not fit: a pool of concurrent.futures ends when a worker is killed, one of pebble 5.2.3 when a worker is
idle, and a daemonic process can start neither.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import ClassVar

from bapo.errors import UserError
from bapo.graders.verdict import DIFFERENT, EQUAL, OVERLOADED, RIGHT, TIME_LIMIT, UNREADABLE, WRONG, Verdict

#: for one verdict with all its golds. The limit of CPU time strikes first unless the machine is very busy, and around a
#: training or an evaluation the cores have other work
WALL_SECONDS = 20.0
START_SECONDS = 120.0
ALGEBRA = "bapo.graders.symbolic"
WORKERS = 4  #: at most, and only where as many threads grade at once
#: what a checker may send, and how many bytes of it are read
ANSWERS, MESSAGE = {word.encode() for word in ("ready", EQUAL, DIFFERENT, UNREADABLE)}, 100
HOPELESS = 16  #: time limits of a batch, after which none of its answers is checked any more


class Overloaded(Exception):
    """A check ran into the wall limit without using up its CPU time: it says nothing about the answer."""


@dataclass
class Checker:
    """Holds a process that checks, and the connection to it."""

    process: subprocess.Popen[bytes]
    stream: Connection

    def receive(self, seconds: float) -> str | None:
        """Return what the process sends; None past the time, or where it has ended."""
        with contextlib.suppress(OSError, EOFError):
            if self.stream.poll(max(seconds, 0.01)):
                answer = self.stream.recv_bytes(MESSAGE)  # no pickle: the process has handled a model's text
                return answer.decode() if answer in ANSWERS else None
        return None

    def end(self) -> int:
        """Kill the process. Returns its exit status, below 0 for the signal that ended it."""
        self.stream.close()
        self.process.kill()
        return self.process.wait()


class Pool:
    """Keeps at most ``workers`` checkers, each of which runs ``module``."""

    refuses: ClassVar[bool] = False  #: of all pools, since a batch is of one task and counts what any of them says

    def __init__(self, workers: int = WORKERS, module: str = ALGEBRA) -> None:
        self.workers, self.wall_seconds, self.module = workers, WALL_SECONDS, module
        self.idle: list[Checker] = []
        self.forget()

    def forget(self) -> None:
        """Begin without checkers, as a forked child must: those of its parent are not its own."""
        for checker in self.idle:
            checker.stream.close()
            checker.process.returncode = 0  # its parent waits for it
        self.idle, self.kills = [], 0
        self._free, self._verdict = threading.Semaphore(self.workers), threading.local()

    @contextlib.contextmanager
    def one_verdict(self) -> Iterator[None]:
        """Let one wall limit hold for all checks of this thread inside, that of the outermost block of nested ones."""
        if getattr(self._verdict, "end", None) is not None:
            yield
            return
        self._verdict.end = time.monotonic() + self.wall_seconds
        try:
            yield
        finally:
            self._verdict.end = None

    @contextlib.contextmanager
    def one_batch(self) -> Iterator[Callable[[Verdict], Verdict]]:
        """Let HOPELESS bound the time limits of the verdicts inside, which are made one after the other.

        Gives a function that counts a verdict and returns it. Past the limit ``refuses`` says that every check is a
        time limit, untried. Verdicts are counted, not checks, since a resumed run has made no earlier ones.
        """
        limits = itertools.count(1)

        def counted(verdict: Verdict) -> Verdict:
            if verdict.reason == TIME_LIMIT and next(limits) >= HOPELESS:
                Pool.refuses = True
            return verdict

        try:
            yield counted
        finally:
            Pool.refuses = False

    def judge(self, gold: str, answer: str) -> str:
        """Return EQUAL, DIFFERENT, UNREADABLE or TIME_LIMIT (CPU time or memory), whatever the machine's load.

        Raises Overloaded past the limit of :meth:`one_verdict`; UserError where no process starts.
        """
        if self.refuses:
            return TIME_LIMIT
        with self.one_verdict():
            if self._left() <= 0 or not self._free.acquire(timeout=self._left()):
                raise Overloaded
            checker: Checker | None = None
            with contextlib.suppress(IndexError):
                checker = self.idle.pop()
            try:
                for _ in range(2):
                    fresh = checker is None
                    checker = checker or self._start()
                    with contextlib.suppress(OSError):
                        checker.stream.send_bytes(json.dumps([gold, answer]).encode())
                    if (outcome := checker.receive(self._left())) is not None:
                        return outcome
                    self.kills += 1
                    status, checker = checker.end(), None
                    # the kernel stopped it, for CPU time or memory; a fresh one ends by itself for lack of memory only
                    if (status < 0 and status != -signal.SIGKILL) or (status >= 0 and fresh):
                        return TIME_LIMIT
                    if self._left() <= 0:
                        break
                raise Overloaded  # too late, or killed twice by others
            finally:
                if checker is not None:
                    self.idle.append(checker)
                self._free.release()

    def close(self) -> None:
        """End the idle checkers. The next check starts a new one."""
        while self.idle:
            self.idle.pop().end()

    def _left(self) -> float:
        return self._verdict.end - time.monotonic()

    def _start(self) -> Checker:
        """Start a checker, whose start takes nothing of the verdict's time."""
        start = time.monotonic()
        near, far = Pipe()
        path = [str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
        with far:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", self.module, str(far.fileno())],
                pass_fds=[far.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
                start_new_session=True,
            )
        checker = Checker(process, near)
        if checker.receive(START_SECONDS) is None:
            checker.end()
            raise UserError(f"a grader's checker did not start; check that `python -c 'import {self.module}'` works")
        self._verdict.end += time.monotonic() - start
        return checker


@cache
def shared(module: str = ALGEBRA) -> Pool:
    """Return this process's pool of checkers that run ``module``."""
    pool = Pool(module=module)
    atexit.register(pool.close)
    os.register_at_fork(after_in_child=pool.forget)
    return pool


def verdict(module: str, gold: str, answer: str) -> Verdict:
    """Return the verdict of the checkers that run ``module``."""
    try:
        outcome = shared(module).judge(gold, answer)
    except Overloaded:
        outcome = OVERLOADED
    if outcome == EQUAL:
        return RIGHT
    return Verdict(False, True, WRONG) if outcome == DIFFERENT else Verdict(False, False, outcome)
