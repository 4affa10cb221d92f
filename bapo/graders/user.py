"""Grading by a Python function of the user's, in the graders' limited processes: time, memory, and no network.

The function gets (answer, gold) as texts and returns whether the answer is right. What it raises, an answer that takes
it too long and one that takes too much memory are wrong answers; an overloaded machine is reported as such. A function
that cannot be loaded, or returns something else than a verdict, stops the job.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from bapo.errors import UserError
from bapo.graders import pool
from bapo.graders.pool import Overloaded, Pool
from bapo.graders.verdict import (
    DIFFERENT,
    EQUAL,
    OVERLOADED,
    RAISED,
    REFUSED,
    RIGHT,
    TIME_LIMIT,
    UNREADABLE,
    WRONG,
    Verdict,
)

#: seconds that a first call may wait for a busy machine
PATIENCE = 60.0


@lru_cache(maxsize=16)
def shared(path: Path, name: str) -> Pool:
    """Return this process's pool for a function or class of a file."""
    made = Pool(judge=f"{path}:{name}")
    atexit.register(made.close)
    os.register_at_fork(after_in_child=made.forget)
    return made


def judge(path: Path, name: str, answer: str, golds: Sequence[str]) -> Verdict:
    """Grade an answer by the function ``name`` of a file. Raises UserError where the function itself is wrong."""
    outcomes, deadline = [], pool.deadline()
    for gold in golds:
        try:
            outcome = shared(path, name).judge(gold, answer, deadline)
        except Overloaded:
            outcome = OVERLOADED
        if outcome.startswith(REFUSED):
            raise UserError(f"{path}:{name}: {outcome.removeprefix(REFUSED)}")
        if outcome.startswith(RAISED):
            outcome = UNREADABLE
        if outcome == EQUAL:
            return RIGHT
        outcomes.append(outcome)
    if OVERLOADED in outcomes and TIME_LIMIT not in outcomes:  # else the answer itself has used up the time
        return Verdict(False, False, OVERLOADED)
    return Verdict(False, True, WRONG) if DIFFERENT in outcomes else Verdict(False, False, outcomes[0])


def tried(path: Path, name: str, gold: str) -> bool:
    """Return whether the function calls a gold a right answer to itself. Raises UserError where it cannot say."""
    with pool.patience(PATIENCE):
        try:
            outcome = shared(path, name).judge(gold, gold, pool.deadline())
        except Overloaded:
            outcome = OVERLOADED
    if outcome in (EQUAL, DIFFERENT):
        return outcome == EQUAL
    reasons = {
        TIME_LIMIT: "it needs more than the time or memory of one check (docs/project.md)",
        OVERLOADED: "the machine is too busy to run it; try again",
    }
    why = outcome.removeprefix(REFUSED).replace(RAISED, "it raised ", 1)
    raise UserError(f"{path}:{name}: called with the gold {gold!r:.80} as answer and gold: {reasons.get(outcome, why)}")
