"""The jobs of a workflow as its log names them, by number: what they make, and how long the rest takes."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from analysis.left import Left, Times, left
from analysis.watch.folder import took

#: rule -> kind of job, where the two differ; a rule that is in neither of these makes tables and figures
KINDS = {"evaluate_base": "evaluate", "sweep_slot": "sweep"}
RUNS = ("data", "base", "train", "evaluate", "curve", "sweep")


@dataclass(frozen=True)
class Job:
    """A job to do. outputs: its files, the first of which stands for all."""

    rule: str
    group: tuple[str, ...]
    outputs: tuple[Path, ...]

    @property
    def kind(self) -> str:
        kind = KINDS.get(self.rule, self.rule)
        return kind if kind in RUNS else "analysis"


class Jobs:
    """Which jobs wait, run and are done. earlier: jobs that earlier commands have finished."""

    def __init__(self, todo: Mapping[int, Job], earlier: Iterable[Job]) -> None:
        self.todo, self.times = dict(todo), Times()
        self.waiting = Counter((job.kind, job.group) for job in todo.values())
        self.begun: dict[int, float] = {}
        for job in earlier:
            if job.outputs and (seconds := took(job.outputs[0].parent)):
                self.times.add(job.kind, job.group, seconds)

    def begin(self, number: int) -> None:
        """Note that a job has begun; one that is given again begins anew."""
        job = self.todo.get(number)
        if job and number not in self.begun:
            self.waiting[job.kind, job.group] -= 1
        self.begun[number] = time.monotonic()

    def end(self, number: int, failed: bool = False) -> None:
        """Note that a job has ended. failed: its time says nothing about others."""
        seconds, begun, job = self.ran(number), self.begun.pop(number, None), self.todo.get(number)
        if job and begun is not None and not failed:
            self.times.add(job.kind, job.group, seconds)

    def ran(self, number: int) -> float:
        """Return the seconds that a job has run for."""
        return time.monotonic() - self.begun.get(number, time.monotonic())

    def left(self) -> Left:
        """Return the time that the rest takes, with as many jobs at a time as run now.

        Tables and figures take seconds: they count once one is done. Another thread than that of the log may ask, so
        this looks at copies.
        """
        drawn = self.times.usual("analysis", ()) is not None
        waiting = {job: count for job, count in self.waiting.copy().items() if drawn or job[0] != "analysis"}
        return left([*map(self._left, [*self.begun])], waiting, self.times)

    def _left(self, number: int) -> float | None:
        job = self.todo.get(number)
        usual = self.times.usual(job.kind, job.group) if job else 0.0
        return None if usual is None else max(0.0, usual - self.ran(number))
