"""Signals of the suite's processes. It imports only the standard library."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_PR_SET_PDEATHSIG = 1


def end_with(parent: int, number: int) -> None:
    """Have Linux send this process the signal ``number`` when the process ``parent`` ends, for whatever reason.

    This process ends at once where ``parent`` is gone already. If the parent has several threads, the signal is sent at
    the end of the thread that started this process.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


@contextmanager
def stop_requests(on_request: Callable[[], None] = lambda: None) -> Iterator[Callable[[], bool]]:
    """Turn the first Ctrl-C or SIGTERM into a request that a loop answers between two steps; the second one kills.

    Yields a function that returns whether there was a request. on_request: called when it comes.
    """
    requests: list[int] = []

    def note(number: int, _: object) -> None:
        requests.append(number)
        on_request()
        signal.signal(number, previous[signal.Signals(number)])

    previous = {n: signal.signal(n, note) for n in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(requests)
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
