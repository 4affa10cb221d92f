"""A limit to what the hopeless answers of one step may cost, the same on every machine and after a resume.

An answer that uses up a checker's time costs that time and a new checker's start. A policy that learns to write such
answers would stall its own training.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count

from bapo.graders import mathematics, pool
from bapo.graders.verdict import TIME_LIMIT, Verdict

HOPELESS = 16  #: time limits of a batch, after which no more of its answers are asked of algebra


@contextmanager
def one_batch() -> Iterator[Callable[[Verdict], Verdict]]:
    """Let HOPELESS bound the time limits of the verdicts inside, which are made one after the other.

    Gives a function that counts a verdict and returns it. Past the limit every check by algebra is a time limit,
    untried, until the block ends.
    """
    limits = count(1)

    def counted(verdict: Verdict) -> Verdict:
        if verdict.reason == TIME_LIMIT and next(limits) >= HOPELESS:
            _refuse(True)
        return verdict

    try:
        yield counted
    finally:
        _refuse(False)


def _refuse(refuses: bool) -> None:
    """Switch checks off or on and forget earlier ones, which a resumed run has not made."""
    if pool.shared().refuses != refuses:
        pool.shared().refuses = refuses
        mathematics.outcome_of.cache_clear()
