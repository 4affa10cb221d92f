"""The process behind :mod:`bapo.graders.pool`: imports math-verify once, then forks a checker whenever it is asked to.

``python -m bapo.graders.worker FD``. Over the socket FD come 9-byte messages: ``F`` with the socket of a new checker,
answered by its pid; ``K`` and a pid: kill and reap it, answered by its exit status. At the end of the stream, or when
the parent is gone, everything here ends. A checker reads length-prefixed JSON ``[gold, answer]`` and answers with one
byte; it lives until it is killed, or has made CHECKS checks.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import select
import signal
import socket
import struct
import sys

MESSAGE = struct.Struct("=cq")
REPLY = struct.Struct("=q")
LENGTH = struct.Struct("=I")
EQUAL, DIFFERENT, UNREADABLE = b"1", b"0", b"u"

CPU_SECONDS = 1.4  #: of one check; then the kernel kills the checker, however busy the machine is
ADDRESS_SPACE = 1 << 30  #: bytes
CHECKS = 2000


def main() -> None:
    server = socket.socket(fileno=int(sys.argv[1]))
    parent = os.getppid()
    from bapo.graders import symbolic

    symbolic.load()
    server.sendall(REPLY.pack(os.getpid()))
    children: set[int] = set()
    try:
        while os.getppid() == parent:
            if not select.select([server], [], [], 2.0)[0]:
                continue
            data, handles, _, _ = socket.recv_fds(server, MESSAGE.size, 1)
            if len(data) < MESSAGE.size:
                break
            operation, pid = MESSAGE.unpack(data)
            if operation == b"F":
                child = os.fork()
                if child == 0:
                    server.close()
                    _serve(socket.socket(fileno=handles[0]))
                children.add(child)
                server.sendall(REPLY.pack(child))
            elif pid in children:
                children.remove(pid)
                server.sendall(REPLY.pack(_end(pid)))
            else:
                server.sendall(REPLY.pack(0))
            for handle in handles:
                os.close(handle)
    except OSError:
        pass
    finally:
        for child in children:
            _end(child)
    os._exit(0)


def _end(pid: int) -> int:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    return os.waitpid(pid, 0)[1]


def _serve(stream: socket.socket) -> None:
    """A checker's life. Ends the process."""
    from bapo.graders import forms, symbolic

    with contextlib.suppress(Exception):  # die with the parent, where the system can
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # a signal without a Python handler ends the process even inside one long C call
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.setrecursionlimit(3000)
    for _ in range(CHECKS):
        head = _receive(stream, LENGTH.size)
        if head is None:
            break
        body = _receive(stream, LENGTH.unpack(head)[0])
        if body is None:
            break
        gold, answer = json.loads(body)
        signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
        try:
            reply = EQUAL if symbolic.judge(gold, answer) else DIFFERENT
        except (forms.Unreadable, RecursionError, ValueError, ArithmeticError, TypeError, AttributeError):
            reply = UNREADABLE
        except MemoryError:
            break  # its state is not to be trusted
        except Exception:
            reply = UNREADABLE
        signal.setitimer(signal.ITIMER_PROF, 0)
        stream.sendall(reply)
    os._exit(0)


def _receive(stream: socket.socket, size: int) -> bytes | None:
    data = b""
    while len(data) < size:
        try:
            part = stream.recv(size - len(data))
        except OSError:
            return None
        if not part:
            return None
        data += part
    return data


if __name__ == "__main__":
    main()
