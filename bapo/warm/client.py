"""Run ``python -m MODULE ...`` as a child of the warm process: ``python -I -S client.py SOCKET -m MODULE ...``.

The child gets this process's standard input, outputs and signals, and this process ends as the child does. Without a
warm process, or where it declines, this process becomes ``python -m MODULE ...``. It imports little, as every job
starts with it.
"""

import os
import signal
import socket
import struct
import sys
from collections.abc import Mapping

#: signals that may be sent to this process and are meant for the child
FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
NUMBER = struct.Struct("=q")


def main() -> None:
    """Run the job and end as it ends."""
    address, *words = sys.argv[1:]
    child = None
    with socket.socket(socket.AF_UNIX) as stream:
        try:
            stream.connect(address)
            request = pack([os.getcwd(), *words], os.environb)
            socket.send_fds(stream, [NUMBER.pack(len(request))], [0, 1, 2])
            stream.sendall(request)
            child = receive(stream)
            status = follow(stream, child) if child else None
        except OSError:
            status = None
    if not child:
        os.execv(sys.executable, [sys.executable, *words])
    if status is None:
        print("error: the warm process was killed, and this job with it; run the command again", file=sys.stderr)
        status = -signal.SIGKILL
    end(status)


def pack(words: list[str], environment: Mapping[bytes, bytes]) -> bytes:
    """Join words and variables by zero bytes, which none of them can contain, for the server to split."""
    variables = (name + b"=" + value for name, value in environment.items())
    return b"\0".join([str(len(words)).encode(), *map(os.fsencode, words), *variables])


def receive(stream: socket.socket) -> int | None:
    """Return the next number, or None where the connection has ended."""
    data = stream.recv(NUMBER.size, socket.MSG_WAITALL)
    return NUMBER.unpack(data)[0] if len(data) == NUMBER.size else None


def follow(stream: socket.socket, child: int) -> int | None:
    """Forward signals until the child ends. Returns its exit status, negative for a signal; None: unknown."""
    try:
        process = os.pidfd_open(child)
    except ProcessLookupError:  # the child has ended already
        return receive(stream)
    for number in FORWARDED:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda number, _: send(process, number))
    return receive(stream)


def send(process: int, number: int) -> None:
    """Send a signal to the child unless it has ended."""
    try:  # contextlib takes milliseconds to import
        signal.pidfd_send_signal(process, number)
    except ProcessLookupError:
        return


def end(status: int) -> None:
    """End with an exit status, or by the signal that ended the child."""
    if status < 0:
        if -status != signal.SIGKILL:
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status)


if __name__ == "__main__":
    main()
