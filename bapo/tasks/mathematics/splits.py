"""The tiers of the generated mathematics, and which split holds which of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from bapo.tasks import splits


class Tier(NamedTuple):
    """steps: operations in the problem, and so steps of its solution. kind: what there is to do::

    running    evaluate an expression whose operations are done from left to right: ( 7 + 3 ) * 4 - 12
    nested     evaluate an expression of any shape, of which some happen to be running: 60 / ( 2 + 3 * ( 9 - 8 ) )
    equation   solve for x by undoing one operation after the other: ( x + 5 ) * 3 = 36
    """

    kind: str
    steps: int


RUNNING = tuple(Tier("running", steps) for steps in (2, 3, 4, 5))
NESTED = tuple(Tier("nested", steps) for steps in (2, 3))
EQUATIONS = tuple(Tier("equation", steps) for steps in (2, 3))
ALL = RUNNING + NESTED + EQUATIONS

#: The tiers of each split, in equal numbers. The benchmarks differ in difficulty and size, as the paper's five do.
TIERS: Mapping[str, tuple[Tier, ...]] = {
    "base": ALL,
    "train": ALL,
    "probe": ALL,
    "nested_3": (Tier("nested", 3),),
    "running_3": (Tier("running", 3),),
    "mixed": ALL,
    "equations": EQUATIONS,
    "running_5": (Tier("running", 5),),
}
BENCHMARKS = {
    "nested_3": "Nested-3",
    "running_3": "Running-3",
    "mixed": "Mixed",
    "equations": "Equations",
    "running_5": "Running-5",
}
#: Share of all problems, of any tier, that each split owns.
SHARES: Mapping[str, float] = {"base": 0.8, "train": 0.1, "probe": 0.05} | dict.fromkeys(BENCHMARKS, 0.01)


def owner(identity: str) -> str:
    """Return the one split that this problem may appear in."""
    return splits.owner(identity, SHARES)
