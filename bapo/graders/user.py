"""Grading by a Python function of the user's, in the graders' limited processes: time, memory, and no network.

The function gets (answer, gold) as texts and returns whether the answer is right. What it raises, an answer that takes
it too long and one that takes too much memory are wrong answers; an overloaded machine is reported as such.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from bapo.graders import pool
from bapo.graders.pool import Overloaded, Pool
from bapo.graders.verdict import DIFFERENT, EQUAL, OVERLOADED, RIGHT, TIME_LIMIT, WRONG, Verdict


@lru_cache(maxsize=16)
def shared(path: Path, name: str) -> Pool:
    """Return this process's pool for a function or class of a file."""
    made = Pool(judge=f"{path}:{name}")
    atexit.register(made.close)
    os.register_at_fork(after_in_child=made.forget)
    return made


def judge(path: Path, name: str, answer: str, golds: Sequence[str]) -> Verdict:
    """Grade an answer by the function ``name`` of a file. Raises UserError where the file cannot be loaded."""
    outcomes, deadline = [], pool.deadline()
    for gold in golds:
        try:
            outcome = shared(path, name).judge(gold, answer, deadline)
        except Overloaded:
            outcome = OVERLOADED
        if outcome == EQUAL:
            return RIGHT
        outcomes.append(outcome)
    if OVERLOADED in outcomes and TIME_LIMIT not in outcomes:  # else the answer itself has used up the time
        return Verdict(False, False, OVERLOADED)
    return Verdict(False, True, WRONG) if DIFFERENT in outcomes else Verdict(False, False, outcomes[0])
