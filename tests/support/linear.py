"""How long a megabyte may take, on any machine: passes over it, not seconds."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

MEGABYTE = "x" * 1_000_000


def one_pass() -> float:
    """Measure the CPU time of one pass over a million characters in plain Python."""
    start = time.process_time()
    sum(map(ord, MEGABYTE))
    return time.process_time() - start


@contextlib.contextmanager
def linear_time(passes: float = 100) -> Iterator[None]:
    """Allow the CPU time of so many passes over a megabyte; what is quadratic takes ten thousand and more."""
    start = time.process_time()
    yield
    spent = time.process_time() - start
    assert spent < passes * max(one_pass() for _ in range(3))
