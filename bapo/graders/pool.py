"""Checks by algebra in processes of their own, killed past a limit of CPU time, wall time or memory.

A helper process is started at the first check that needs one (about a second); it forks the checkers, so that a killed
one is replaced in milliseconds. Safe in threads; after a fork the child starts a helper of its own; everything ends
with the process that started it, however that ends. Measured against pebble 5.2.3 on a fork server: as fast, but an
idle worker that is killed or stopped ends its pool, and forked and daemonic processes cannot start one.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from multiprocessing.reduction import send_handle
from pathlib import Path

from bapo.errors import UserError
from bapo.graders.verdict import TIME_LIMIT

#: for one verdict with all its golds. The limit of CPU time strikes first unless the machine is very busy, and around a
#: training or an evaluation the cores have other work
WALL_SECONDS = 20.0
START_SECONDS = 120.0
WORKERS = 4  #: at most, and only where as many threads grade at once

_CURE = "`python -c 'import math_verify'` works"
_GONE = (OSError, EOFError)  #: from a connection whose other end is gone


class Overloaded(Exception):
    """A check ran into the wall limit without using up its CPU time: it says nothing about the answer."""


class Deadline:
    """The end of one verdict's time, counted from its first check by algebra once the helper runs."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._end: float | None = None

    def left(self) -> float:
        """Return the seconds that are left; the first call starts the clock."""
        if self._end is None:
            self._end = time.monotonic() + self.seconds
        return self._end - time.monotonic()


@dataclass
class _Checker:
    pid: int
    stream: Connection


class Pool:
    """At most ``workers`` checkers and the helper that forks them."""

    def __init__(self, workers: int = WORKERS, wall_seconds: float = WALL_SECONDS) -> None:
        self.workers, self.wall_seconds = workers, wall_seconds
        self._empty()

    def _empty(self) -> None:
        """Begin without a helper and without checkers."""
        self.kills = 0
        self._slots = threading.Semaphore(self.workers)
        self._lock = threading.Lock()
        self._idle: list[_Checker] = []
        self._helper: subprocess.Popen[bytes] | None = None
        self._server: Connection | None = None

    def judge(self, gold: str, answer: str) -> str:
        """Return EQUAL, DIFFERENT, UNREADABLE or TIME_LIMIT (CPU time or memory), whatever the machine's load.

        Raises Overloaded past the deadline of :func:`one_verdict`, else ``wall_seconds``; UserError where no process
        starts.
        """
        deadline = getattr(_VERDICT, "deadline", None) or Deadline(self.wall_seconds)
        for attempt in (1, 2):
            self.warm()  # before the clock starts
            if not self._slots.acquire(timeout=max(deadline.left(), 0.0)):
                raise Overloaded
            try:
                return self._judge(gold, answer, deadline)
            except _GONE:
                self.close()
                if attempt == 2:
                    raise UserError(f"the grader's helper process ends at once; check that {_CURE}") from None
            finally:
                self._slots.release()
        raise AssertionError

    def warm(self) -> None:
        """Start the helper now. Raises UserError where it cannot start."""
        with self._lock:
            self._start()

    def close(self) -> None:
        """End the helper and all checkers. The next check starts new ones."""
        with self._lock:
            idle, self._idle = self._idle, []
            server, self._server = self._server, None
            helper, self._helper = self._helper, None
        for checker in idle:
            checker.stream.close()
        if server is not None:
            server.close()
        if helper is not None:
            try:
                helper.wait(3)
            except subprocess.TimeoutExpired:
                helper.kill()
                helper.wait()

    def forget(self) -> None:
        """Drop what belongs to the parent of a forked child without ending it."""
        for stream in (*(checker.stream for checker in self._idle), self._server):
            if stream is not None:
                stream.close()
        if self._helper is not None:
            self._helper.returncode = 0  # its parent waits for it
        self._empty()

    # ------------------------------------------------------------------------------------------------

    def _judge(self, gold: str, answer: str, deadline: Deadline) -> str:
        for attempt in (1, 2):
            if deadline.left() <= 0:
                raise Overloaded
            checker = self._take(fresh=attempt == 2)
            late, outcome = False, None
            with contextlib.suppress(*_GONE):
                checker.stream.send((gold, answer))
                late = not checker.stream.poll(max(deadline.left(), 0.01))
                outcome = None if late else checker.stream.recv()
            if outcome is not None:
                with self._lock:
                    self._idle.append(checker)
                return outcome
            status = self._kill(checker)
            if late:
                raise Overloaded
            if os.WIFSIGNALED(status) and os.WTERMSIG(status) != signal.SIGKILL:
                return TIME_LIMIT  # the kernel stopped it: CPU time, or memory that could not even be reported
            if attempt == 2 and os.WIFEXITED(status):
                return TIME_LIMIT  # a fresh checker ends by itself for lack of memory only
        raise Overloaded  # killed twice by others

    def _take(self, fresh: bool = False) -> _Checker:
        with self._lock:
            self._start()
            if self._idle and not fresh:
                return self._idle.pop()
            near, far = Pipe()
            assert self._server is not None
            with far:
                self._server.send(None)
                send_handle(self._server, far.fileno(), None)
                return _Checker(self._answer(), near)

    def _kill(self, checker: _Checker) -> int:
        """End a checker. Returns its exit status as :func:`os.waitpid` does."""
        self.kills += 1
        checker.stream.close()
        with self._lock:
            if self._server is None:
                return signal.SIGKILL  # closed by another thread
            self._server.send(checker.pid)
            return self._answer()

    def _answer(self, seconds: float = 5.0) -> int:
        """Receive a number from the helper. Raises EOFError where none comes in time."""
        if not self._server.poll(seconds):  # type: ignore[union-attr]
            raise EOFError
        return self._server.recv()  # type: ignore[union-attr]

    def _start(self) -> None:
        if self._helper is not None and self._helper.poll() is None:
            return
        for checker in self._idle:  # the helper that forked them is gone
            checker.stream.close()
        self._idle = []
        if self._server is not None:
            self._server.close()
        self._server, far = Pipe()
        path = [str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
        with far:
            self._helper = subprocess.Popen(
                [sys.executable, "-P", "-m", "bapo.graders.worker", str(far.fileno())],
                pass_fds=[far.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
                start_new_session=True,
            )
        try:
            self._answer(START_SECONDS)
        except _GONE:
            self._helper.kill()
            self._helper.wait()
            self._helper = None
            self._server.close()
            self._server = None
            raise UserError(f"the grader's helper process did not start; check that {_CURE}") from None


#: of a thread: the ``deadline`` of the verdict that it is about
_VERDICT = threading.local()
_POOL = Pool()
atexit.register(_POOL.close)
os.register_at_fork(after_in_child=_POOL.forget)


def shared() -> Pool:
    """Return this process's pool."""
    return _POOL


@contextlib.contextmanager
def one_verdict() -> Iterator[None]:
    """Let one deadline hold for all checks of this thread inside, that of the outermost block where they are nested."""
    if getattr(_VERDICT, "deadline", None) is not None:
        yield
        return
    _VERDICT.deadline = Deadline(_POOL.wall_seconds)
    try:
        yield
    finally:
        _VERDICT.deadline = None
