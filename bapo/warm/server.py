"""The warm process: it listens for jobs and forks a child for each.

It has one thread, draws no random number and computes nothing, so that a child is what a fresh process would be after
the same imports. It ends when its standard input does, that is with Snakemake however that ends, and after its last
child; a child ends with it, and with its client.
"""

from __future__ import annotations

import contextlib
import gc
import io
import os
import runpy
import selectors
import signal
import socket
import sys
import tempfile
from dataclasses import dataclass
from typing import Any

from bapo.processes import end_with
from bapo.warm import modules
from bapo.warm.client import NUMBER

SECONDS = 10.0  #: for a client to say what it wants
#: variables that a shell or Snakemake sets for each job, which no import reads, and one of our own (launch.py)
PER_JOB = {
    *(b"PS1", b"SHLVL", b"PWD", b"OLDPWD", b"_", b"COLUMNS", b"LINES", b"TMPDIR", b"TEMPDIR", b"TMP", b"TEMP"),
    b"JE_ARROW_MALLOC_CONF",
}


class Declined(Exception):
    """The job must start by itself."""


@dataclass
class Request:
    """Describes a job. folder: where it runs; words: module and arguments; streams: its descriptors 0, 1 and 2."""

    folder: str
    words: list[str]
    environment: dict[bytes, bytes]
    streams: list[int]


def main() -> None:
    """Serve until standard input ends; in a child, run its job."""
    # Ctrl-C is for the jobs, which it reaches through their clients
    before = {n: signal.signal(n, signal.SIG_IGN) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    parent = os.getpid()
    with socket.socket(fileno=int(sys.argv[1])) as listener:
        request = Server(listener).serve()
    if request is not None:
        run(request, parent, before)


class Server:
    """Answers clients in a loop, and keeps its children by process descriptor and by client."""

    def __init__(self, listener: socket.socket) -> None:
        self.listener, self.events = listener, selectors.DefaultSelector()
        self.folder, self.environment = os.getcwd(), dict(os.environb)
        self.loaded = False
        self.seen: dict[str, tuple[int, int] | None] = {}
        self.clients: dict[int, tuple[socket.socket, int]] = {}  # by process descriptor: client, process

    def serve(self) -> Request | None:
        """Answer clients. Returns None at the end, and in a child the request that it is for."""
        self.events.register(0, selectors.EVENT_READ, self._close)
        self.events.register(self.listener, selectors.EVENT_READ, self._accept)
        while self.listener.fileno() >= 0 or self.clients:
            for key, _ in self.events.select():
                current = self.events.get_map().get(key.fd) == key  # no other event of this round closed it
                if current and (request := key.data()) is not None:
                    return request
        return None

    def _close(self) -> None:
        """Take no more jobs: Snakemake has ended."""
        self.events.unregister(0)
        self.events.unregister(self.listener)
        self.listener.close()

    def _accept(self) -> Request | None:
        client, _ = self.listener.accept()
        try:
            client.settimeout(SECONDS)
            request = read(client)
        except (OSError, ValueError):
            client.close()
            return None
        try:
            self._prepare(request)
            child = os.fork()
        except (Declined, OSError) as reason:
            print(f"warm process: {reason}; the job starts by itself", file=sys.stderr)
            child = -1
        if child == 0:
            self._leave(client)
            return request
        for descriptor in request.streams:
            os.close(descriptor)
        if child > 0:
            self._follow(client, child)
        else:
            client.close()
        return None

    def _prepare(self, request: Request) -> None:
        """Import what the job needs. Raises Declined where a child would differ from a fresh process."""
        own = {k: v for k, v in self.environment.items() if k not in PER_JOB}
        if request.folder != self.folder:
            raise Declined(f"the job runs in {request.folder}, not in {self.folder}")
        if changed := {k for k, v in own.items() ^ request.environment.items() if k not in PER_JOB}:
            raise Declined(f"the environment differs in {b', '.join(sorted(changed)).decode(errors='replace')}")
        for file, state in self.seen.items():
            if state != state_of(file):
                raise Declined(f"{file} has changed")
        if not self.loaded and request.words[0] in ("bapo", "analysis"):
            try:
                modules.load()
            except Exception as error:  # the job itself says it better
                raise Declined(f"{type(error).__name__}: {error}") from None
            self.loaded = True
            self.seen |= {file: state_of(file) for file in modules.sources()}
            gc.collect()
            gc.freeze()  # children leave these pages alone
        if (threads := len(os.listdir("/proc/self/task"))) != 1:
            raise Declined(f"{threads} threads run, and a fork takes one along")

    def _follow(self, client: socket.socket, child: int) -> None:
        process = os.pidfd_open(child)
        self.clients[process] = client, child
        self.events.register(process, selectors.EVENT_READ, lambda: self._ended(process))
        self.events.register(client, selectors.EVENT_READ, lambda: self._abandoned(process))
        self._tell(client, child)

    def _abandoned(self, process: int) -> None:
        """Kill a child whose client is gone."""
        client, child = self.clients[process]
        self.events.unregister(client)
        os.kill(child, signal.SIGKILL)

    def _ended(self, process: int) -> None:
        client, child = self.clients.pop(process)
        self.events.unregister(process)
        if client in self.events.get_map():
            self.events.unregister(client)
        os.close(process)
        _, status = os.waitpid(child, 0)
        self._tell(client, os.waitstatus_to_exitcode(status))
        client.close()

    @staticmethod
    def _tell(client: socket.socket, number: int) -> None:
        with contextlib.suppress(OSError):  # its end is noticed elsewhere
            client.sendall(NUMBER.pack(number))

    def _leave(self, client: socket.socket) -> None:
        """Close in a child what belongs to the warm process."""
        self.events.close()
        self.listener.close()
        client.close()
        for process, (other, _) in self.clients.items():
            os.close(process)
            other.close()


def read(client: socket.socket) -> Request:
    """Receive a request. Raises OSError or ValueError where the client went away before its end."""
    header, streams, _, _ = socket.recv_fds(client, NUMBER.size, 3)
    try:
        with client.makefile("rb") as stream:
            data = stream.read(int.from_bytes(header, sys.byteorder))
        count, *parts = data.split(b"\0")
        folder, _, *words = map(os.fsdecode, parts[: int(count)])
        environment = dict(part.split(b"=", 1) for part in parts[int(count) :])
    except (OSError, ValueError):
        for descriptor in streams:
            os.close(descriptor)
        raise
    return Request(folder, words, environment, streams)


def state_of(file: str) -> tuple[int, int] | None:
    """Return (time of change in ns, size) of a file; None without it."""
    try:
        found = os.stat(file)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


def run(request: Request, parent: int, handlers: dict[signal.Signals, Any]) -> None:
    """Become the process that ``python -m WORDS`` would be and run it, under ``parent``. Raises what it raises.

    handlers: of signals, as this process had them from Snakemake; nohup has it ignore one.
    """
    end_with(parent, signal.SIGKILL)
    os.setpgid(0, 0)  # a terminal's Ctrl-C reaches it once, through its client
    for wanted, descriptor in enumerate(request.streams):
        os.dup2(descriptor, wanted)
        os.close(descriptor)
    assert isinstance(sys.stdout, io.TextIOWrapper)
    sys.stdout.reconfigure(line_buffering=sys.stdout.isatty())
    for number, handler in handlers.items():
        signal.signal(number, handler)
    for name in PER_JOB:
        os.environb.pop(name, None)
        if name in request.environment:
            os.environb[name] = request.environment[name]
    tempfile.tempdir = None
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed()
    module, *arguments = request.words
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
