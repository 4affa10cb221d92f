"""The helper behind :mod:`bapo.graders.pool`: imports what compares once, then forks a checker whenever it is asked to.

``python -m bapo.graders.worker FD [FILE.py:NAME]``: math-verify compares, or a function of the user's, or an
environment (bapo.graders.environment). The connection FD brings None and the descriptor of a new checker's connection,
answered by its pid; or a pid to kill and reap, answered by its exit status. When it closes, or the parent is gone,
everything here ends. A checker receives (gold, answer) and sends an outcome, until it has made CHECKS checks.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import runpy
import signal
import socket
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle

from bapo.graders.verdict import DIFFERENT, EQUAL, RAISED, REFUSED, UNREADABLE
from bapo.processes import end_with

CPU_SECONDS = 1.4  #: for one check; then the kernel kills the checker, however busy the machine is
ADDRESS_SPACE = 1 << 30  #: bytes
CHECKS = 2000
LONGEST = 500  #: characters of an exception's text


def main() -> None:
    server, parent = Connection(int(sys.argv[1])), os.getppid()
    judge = _judge(sys.argv[2]) if len(sys.argv) > 2 else None
    if judge is None:
        from bapo.graders import symbolic

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
                    serve(Connection(handle), judge)
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


def _judge(place: str) -> Callable[[str, str], bool | str]:
    """Load the user's function, called with (answer, gold), or environment. What goes wrong is each check's outcome."""
    path, _, name = place.rpartition(":")
    sys.path.append(os.path.dirname(path))
    try:
        content = runpy.run_path(path)
    except (Exception, SystemExit) as error:
        reason = f"{REFUSED}{path} cannot be loaded ({_in_words(error)})"
        return lambda gold, answer: reason
    function = content.get(name)
    if isinstance(function, type):
        from bapo.graders import environment

        return environment.runner(function)
    if not callable(function):
        return lambda gold, answer: f"{REFUSED}{path} has no {name}"
    return _checked(function)


def _checked(function: Callable[[str, str], object]) -> Callable[[str, str], str]:
    """Return what calls a grading function and tells its faults from its verdicts."""

    def judge(gold: str, answer: str) -> str:
        try:
            found = function(answer, gold)
            if isinstance(found, str) or found not in (0, 1):
                return f"{REFUSED}returned {found!r:.80}; it must return True or False"
        except MemoryError:
            raise
        except Exception as error:
            return f"{RAISED}{_in_words(error)}"
        return EQUAL if found else DIFFERENT

    return judge


def _in_words(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:LONGEST]


def _cut_off() -> None:
    """Take the network away, where the system lets an ordinary process do so; sockets are refused anyhow."""
    clone_new_user, clone_new_net = 0x10000000, 0x40000000
    with contextlib.suppress(Exception):
        ctypes.CDLL(None).unshare(clone_new_user | clone_new_net)

    def refused(*_: object, **__: object) -> None:
        raise OSError("a grading function has no network")

    socket.socket = refused  # type: ignore[assignment,misc]


def serve(stream: Connection, judge: Callable[[str, str], bool | str] | None = None) -> None:
    """Check what comes over ``stream`` under the limits of a checker, then end the process.

    judge: the user's function, or what gives an outcome itself; None: algebra.
    """
    if judge is None:
        from bapo.graders.symbolic import judge
    else:
        _cut_off()
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
                found = judge(gold, answer)
                outcome = found if isinstance(found, str) else EQUAL if found else DIFFERENT
            except MemoryError:
                raise
            except Exception:
                outcome = UNREADABLE
            signal.setitimer(signal.ITIMER_PROF, 0)
            stream.send(outcome)
    os._exit(0)


if __name__ == "__main__":
    main()
