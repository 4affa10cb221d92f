"""The task's verdict on a response that a model has sampled, without haste."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial

from bapo.graders import pool
from bapo.graders.verdict import OVERLOADED, Verdict
from bapo.tasks.base import Task

#: wall limit of one verdict; the pool's own is 1.7, but around a training or an evaluation the cores have other work
WALL_SECONDS = 20.0


def judge(task: Task, response: str, ground_truth: str) -> Verdict:
    """Grade a response, once more where the machine was too busy to check it.

    The verdict may still be OVERLOADED, which says nothing of the answer: ``steps.parquet`` and the summary of an
    evaluation count those, and :func:`warn` tells of them.
    """
    with pool.patience(WALL_SECONDS):
        verdict = task.verify(response, ground_truth)
        return task.verify(response, ground_truth) if overloaded(verdict) else verdict


def overloaded(verdict: Verdict) -> bool:
    """Return whether a response was not graded, for lack of time."""
    return verdict.reason == OVERLOADED


def warn(count: int, where: str, say: Callable[[str], None] | None = None) -> None:
    """Say, on stderr or by ``say``, how many responses could not be graded, if any."""
    if count:
        found = f"the machine was too busy to grade {count} response{'' if count == 1 else 's'}, counted as wrong"
        (say or partial(print, file=sys.stderr, flush=True))(f"warning: {where}: {found}; give it more CPU cores")
