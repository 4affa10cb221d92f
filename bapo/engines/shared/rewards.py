"""The task's verdict on a response that a model has sampled, without haste."""

from __future__ import annotations

from bapo.graders import pool
from bapo.graders.verdict import OVERLOADED, Verdict
from bapo.tasks.base import Task

#: wall limit of one verdict; the pool's own is 1.7, but around a training or an evaluation the cores have other work
WALL_SECONDS = 20.0


def judge(task: Task, response: str, ground_truth: str) -> Verdict:
    """Grade a response, once more where the machine was too busy to check it.

    The verdict may still be OVERLOADED, which says nothing of the answer: ``steps.parquet`` counts those, and an
    evaluation's tables give it as the reason.
    """
    with pool.patience(WALL_SECONDS):
        verdict = task.verify(response, ground_truth)
        return task.verify(response, ground_truth) if overloaded(verdict) else verdict


def overloaded(verdict: Verdict) -> bool:
    """Return whether a response was not graded, for lack of time."""
    return verdict.reason == OVERLOADED
