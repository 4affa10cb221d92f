"""Sums for a pretrained model: four solved examples, then ``What is 38 + 47?``, whose answer is the next line.

All prompts begin with the same tokens, which engines may compute once.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Literal, NamedTuple

import numpy as np

from bapo.errors import UserError
from bapo.graders.verdict import NO_ANSWER, RIGHT, WRONG, Verdict
from bapo.tasks.generated import Options, owner

#: the examples of every prompt; no split holds one of them
EXAMPLES = ((23, 45), (17, 38), (64, 29), (51, 12))
#: number of digits -> share of the sums of two such numbers that each split owns
SHARES: Mapping[int, Mapping[str, float]] = {2: {"train": 0.5, "probe": 0.2, "sum2": 0.3}, 3: {"sum3": 1.0}}
BENCHMARKS = {"sum2": "Sums-2", "sum3": "Sums-3"}
#: split -> digits of its numbers
DIGITS = {split: digits for digits, shares in SHARES.items() for split in shares}
#: what a ground truth calls a bare number
FORMAT = "number"
_NUMBER = re.compile(r"[0-9]{1,6}")


class Sum(NamedTuple):
    a: int
    b: int

    @property
    def id(self) -> str:
        """Name the sum, in whatever order: ``mathematics:38+47``."""
        return f"mathematics:{min(self)}+{max(self)}"

    @property
    def prompt(self) -> str:
        shown = [f"{_question(a, b)} {a + b}" for a, b in EXAMPLES]
        return "\n\n".join([*shown, _question(*self)])


_SHOWN = frozenset(Sum(*example).id for example in EXAMPLES)


def _question(a: int, b: int) -> str:
    return f"Question: What is {a} + {b}?\nAnswer:"


class Generator(Options):
    """Sums of two numbers with as many digits as the split's (DIGITS)."""

    kind: Literal["sums"] = "sums"

    def problems(self, rng: np.random.Generator, count: int, split: str) -> list[Sum]:
        """Draw ``count`` distinct sums that ``split`` owns. Raises UserError if so many cannot be found."""
        found: dict[str, Sum] = {}
        digits = DIGITS[split]
        for _ in range(20_000 + 100 * count):
            if len(found) == count:
                return list(found.values())
            drawn = Sum(*(int(n) for n in rng.integers(10 ** (digits - 1), 10**digits, 2)))
            if drawn.id not in _SHOWN and owner(drawn.id, SHARES[digits]) == split:
                found.setdefault(drawn.id, drawn)
        raise UserError(
            f"data.split_sizes.{split}: {count} distinct sums are wanted but only {len(found)} could be found; ask for "
            "fewer"
        )


def truth(answer: int) -> str:
    """Write the ground truth of a sum."""
    return json.dumps({"answer": answer, "format": FORMAT})


def number(response: str) -> int | None:
    """Return the number that a response is, with nothing but space around it; else None."""
    text = response[:64].strip()
    return int(text) if len(response) <= 64 and _NUMBER.fullmatch(text) else None


def verify(response: str, gold: int) -> Verdict:
    given = number(response)
    if given is None:
        return Verdict(False, False, NO_ANSWER)
    return RIGHT if given == gold else Verdict(False, True, WRONG)
