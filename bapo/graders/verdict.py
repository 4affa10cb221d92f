"""The answer of every verifier and grader."""

from __future__ import annotations

from typing import NamedTuple

#: Outcomes of comparing an answer with one gold; the last three are reasons, too.
EQUAL, DIFFERENT, UNREADABLE, TOO_LONG, TIME_LIMIT = "equal", "different", "unreadable", "too_long", "time_limit"
#: Reasons of a verdict that is not correct; all but WRONG mean that the response holds no answer that can be read.
NO_ANSWER, WRONG = "no_answer", "wrong"
#: Both an outcome and a reason: the machine was too busy to check an answer, which says nothing about it.
OVERLOADED = "overloaded"


class Verdict(NamedTuple):
    """Says how a response was graded. parsed: whether it holds an answer at all; reason: "" if correct, else a code."""

    correct: bool
    parsed: bool
    reason: str


RIGHT = Verdict(True, True, "")
