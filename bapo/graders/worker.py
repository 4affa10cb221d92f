"""The helper behind :mod:`bapo.graders.pool`: imports what compares once, then forks a checker whenever it is asked to.

``python -m bapo.graders.worker FD``: math-verify compares. The connection FD brings None and the descriptor of a new
checker's connection, answered by its pid; or a pid to kill and reap, answered by its exit status. When it closes, or
the parent is gone, everything here ends. A checker receives (gold, answer) and sends an outcome, until it has made
CHECKS checks.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import sys
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle

from bapo.graders.verdict import DIFFERENT, EQUAL, UNREADABLE
from bapo.processes import end_with

CPU_SECONDS = 1.4  #: for one check; then the kernel kills the checker, however busy the machine is
ADDRESS_SPACE = 1 << 30  #: bytes
CHECKS = 2000


def main() -> None:
    from bapo.graders import symbolic

    server, parent = Connection(int(sys.argv[1])), os.getppid()
    symbolic.load()
    server.send(os.getpid())
    children: set[int] = set()
    with contextlib.suppress(OSError, EOFError):
        while os.getppid() == parent:
            if not server.poll(2.0):
                continue
            pid = server.recv()
            if pid is None:
                handle = recv_handle(server)
                pid = os.fork()
                if pid == 0:
                    server.close()
                    serve(Connection(handle))
                os.close(handle)
                children.add(pid)
                server.send(pid)
            else:
                server.send(_end(pid) if pid in children else 0)
                children.discard(pid)
    for child in children:
        _end(child)
    os._exit(0)


def _end(pid: int) -> int:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    return os.waitpid(pid, 0)[1]


def serve(stream: Connection) -> None:
    """Check what comes over ``stream`` under the limits of a checker, then end the process."""
    from bapo.graders.symbolic import judge

    with contextlib.suppress(Exception):  # die with the parent, where the system can
        end_with(os.getppid(), signal.SIGKILL)
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # a signal without a Python handler ends the process even inside one long C call
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.setrecursionlimit(3000)
    with contextlib.suppress(OSError, EOFError, MemoryError):  # after a lack of memory no state is to be trusted
        for _ in range(CHECKS):
            gold, answer = stream.recv()
            signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
            try:
                outcome = EQUAL if judge(gold, answer) else DIFFERENT
            except MemoryError:
                raise
            except Exception:
                outcome = UNREADABLE
            signal.setitimer(signal.ITIMER_PROF, 0)
            stream.send(outcome)
    os._exit(0)


if __name__ == "__main__":
    main()
