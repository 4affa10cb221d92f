"""A socket that checks on the other side while it waits, and the check itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ray
import zmq

#: milliseconds between two looks
LOOK = 1000


class Watched:
    """A socket of ZeroMQ in the hands of verl's sender of weights.

    look: called while there is nothing to read or nobody to write to; raises where there will be nothing.
    """

    def __init__(self, socket: Any, look: Callable[[], None]) -> None:
        self.socket, self.look = socket, look
        self.close = socket.close

    def send_pyobj(self, content: Any) -> None:
        self._wait(zmq.POLLOUT)
        self.socket.send_pyobj(content)

    def recv(self) -> bytes:
        """Return the answer, which is empty. Raises RuntimeError with the receiver's error where it is one."""
        self._wait(zmq.POLLIN)
        if error := self.socket.recv():
            raise RuntimeError(f"vLLM's worker could not take the weights: {error.decode(errors='replace')}")
        return error

    def _wait(self, event: int) -> None:
        while not self.socket.poll(LOOK, event):
            self.look()


class Pulse:
    """Looks whether the engine of a server still lives, without waiting for the answer."""

    def __init__(self, server: Any) -> None:
        self.server, self.asked = server, None

    def __call__(self) -> None:
        """Raise RuntimeError where the engine or its server has died."""
        if self.asked is None:
            self.asked = self.server.check_health.remote()
        elif ray.wait([self.asked], timeout=0)[0]:
            asked, self.asked = self.asked, None
            try:
                ray.get(asked)
            except Exception as error:
                cause = getattr(error, "cause", None) or error
                raise RuntimeError(
                    f"vLLM died while it was given weights ({type(cause).__name__}); its last words are in the log, "
                    "dmesg tells of memory"
                ) from error
