"""The answer of every verifier and grader."""

from __future__ import annotations

from typing import NamedTuple


class Verdict(NamedTuple):
    """One response's grade. parsed: whether it holds an answer at all; reason: "" if correct, else a code."""

    correct: bool
    parsed: bool
    reason: str
