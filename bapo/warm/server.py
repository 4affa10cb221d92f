"""The warm process: it listens for jobs and forks a child for each.

It has one thread, draws no random numbers and computes nothing, so that a child equals a fresh process after the same
imports. It ends after its last child once its standard input has ended, which happens however Snakemake ends. A child
ends with the warm process, and with its client.
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

#: seconds in which a client must send its request
SECONDS = 10.0
#: variables that a shell or Snakemake sets for each job and that no import reads, and the one that launch.py sets
PER_JOB = {
    *(b"PS1", b"SHLVL", b"PWD", b"OLDPWD", b"_", b"COLUMNS", b"LINES", b"TMPDIR", b"TEMPDIR", b"TMP", b"TEMP"),
    b"JE_ARROW_MALLOC_CONF",
}


class Declined(Exception):
    """Raised where a job must start by itself."""


@dataclass
class Request:
    """Describes a job.

    folder: where it runs
    words: its module and arguments
    environment: its variables
    streams: descriptors of its standard input, output and error
    """

    folder: str
    words: list[str]
    environment: dict[bytes, bytes]
    streams: list[int]


def main() -> None:
    """Serve until standard input ends; in a child, run its job."""
    # Ctrl-C is meant for the jobs, which get it from their clients
    handlers = {n: signal.signal(n, signal.SIG_IGN) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    parent = os.getpid()
    with socket.socket(fileno=int(sys.argv[1])) as listener:
        request = Server(listener).serve()
    if request is not None:
        run(request, parent, handlers)


class Server:
    """Answers clients in a loop, and follows the children and their clients."""

    def __init__(self, listener: socket.socket) -> None:
        self.listener, self.events = listener, selectors.DefaultSelector()
        self.folder, self.environment = os.getcwd(), dict(os.environb)
        self.loaded = False
        self.sources: dict[str, tuple[int, int] | None] = {}  # state of each file of the suite when it was imported
        self.clients: dict[int, tuple[socket.socket, int]] = {}  # by descriptor of the child: client, process

    def serve(self) -> Request | None:
        """Answer clients. Returns None at the end, and in a child its request."""
        self.events.register(0, selectors.EVENT_READ, self._close)
        self.events.register(self.listener, selectors.EVENT_READ, self._accept)
        while self.listener.fileno() >= 0 or self.clients:
            for key, _ in self.events.select():
                current = self.events.get_map().get(key.fd) == key  # another event of this round may have closed it
                if current and (request := key.data()) is not None:
                    return request
        return None

    def _close(self) -> None:
        """Accept no more jobs, as Snakemake has ended."""
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
            print(f"warm process: {reason}; the job starts its own Python", file=sys.stderr)
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
        own_environment = {k: v for k, v in self.environment.items() if k not in PER_JOB}
        if request.folder != self.folder:
            raise Declined(f"the job runs in {request.folder}, not in {self.folder}")
        if changed := {k for k, v in own_environment.items() ^ request.environment.items() if k not in PER_JOB}:
            raise Declined(f"the environment differs in {b', '.join(sorted(changed)).decode(errors='replace')}")
        for file, state in self.sources.items():
            if state != state_of(file):
                raise Declined(f"{file} has changed")
        if not self.loaded and request.words[0] in ("bapo", "analysis"):
            try:
                modules.load()
            except Exception as error:  # the job itself reports it better
                raise Declined(f"{type(error).__name__}: {error}") from None
            self.loaded = True
            self.sources |= {file: state_of(file) for file in modules.sources()}
            gc.collect()
            gc.freeze()  # so that children do not write to these pages
        if (threads := len(os.listdir("/proc/self/task"))) != 1:
            raise Declined(f"{threads} threads run, and a fork takes one along")

    def _follow(self, client: socket.socket, child: int) -> None:
        process = os.pidfd_open(child)
        self.clients[process] = client, child
        self.events.register(process, selectors.EVENT_READ, lambda: self._report_end(process))
        self.events.register(client, selectors.EVENT_READ, lambda: self._kill(process))
        self._send(client, child)

    def _kill(self, process: int) -> None:
        """Kill the child, as its client is gone."""
        client, child = self.clients[process]
        self.events.unregister(client)
        os.kill(child, signal.SIGKILL)

    def _report_end(self, process: int) -> None:
        client, child = self.clients.pop(process)
        self.events.unregister(process)
        if client in self.events.get_map():
            self.events.unregister(client)
        os.close(process)
        _, status = os.waitpid(child, 0)
        self._send(client, os.waitstatus_to_exitcode(status))
        client.close()

    @staticmethod
    def _send(client: socket.socket, number: int) -> None:
        with contextlib.suppress(OSError):  # a client that is gone is noticed by its own event
            client.sendall(NUMBER.pack(number))

    def _leave(self, client: socket.socket) -> None:
        """Close in a child the descriptors of the warm process."""
        self.events.close()
        self.listener.close()
        client.close()
        for process, (other_client, _) in self.clients.items():
            os.close(process)
            other_client.close()


def read(client: socket.socket) -> Request:
    """Receive a request. Raises OSError or ValueError where the client went away before it was complete."""
    header, streams, _, _ = socket.recv_fds(client, NUMBER.size, 3)
    try:
        with client.makefile("rb") as stream:
            data = stream.read(int.from_bytes(header, sys.byteorder))
        count, *parts = data.split(b"\0")
        folder, _, *words = map(os.fsdecode, parts[: int(count)])
        environment = dict(variable.split(b"=", 1) for variable in parts[int(count) :])
    except (OSError, ValueError):
        for descriptor in streams:
            os.close(descriptor)
        raise
    return Request(folder, words, environment, streams)


def state_of(file: str) -> tuple[int, int] | None:
    """Return (time of change in ns, size) of a file, or None where there is none."""
    try:
        status = os.stat(file)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size


def run(request: Request, parent: int, handlers: dict[signal.Signals, Any]) -> None:
    """Run the job in this process as ``python -m WORDS`` would, and raise what it raises.

    Args:
        request: of the job
        parent: the warm process, with which this process ends
        handlers: the handlers of signals that Snakemake's processes have; under nohup one signal is ignored
    """
    end_with(parent, signal.SIGKILL)
    os.setpgid(0, 0)  # so that a terminal's Ctrl-C only comes from the client
    for number, descriptor in enumerate(request.streams):
        os.dup2(descriptor, number)
        os.close(descriptor)
    assert isinstance(sys.stdout, io.TextIOWrapper)
    sys.stdout.reconfigure(line_buffering=sys.stdout.isatty())
    for signal_number, handler in handlers.items():
        signal.signal(signal_number, handler)
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
