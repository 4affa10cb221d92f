"""Which split a generated problem belongs to. Every problem has exactly one, so the splits cannot overlap."""

from __future__ import annotations

from collections.abc import Mapping

from bapo import seeds


def owner(identity: str, shares: Mapping[str, float]) -> str:
    """Return the one split that a problem may appear in: a function of its name, not of a seed or size.

    shares: split -> share of all problems that it owns, in a fixed order; they add up to 1.
    """
    place = seeds.key64("split", identity) / 2**64
    for split, share in shares.items():
        place -= share
        if place < 0:
            return split
    return next(iter(shares))  # rounding: the shares add up to a hair less than 1
