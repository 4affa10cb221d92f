"""When a run writes a checkpoint because time has passed, and when it stops because its job is about to end."""

from __future__ import annotations

import time
from collections.abc import Callable

from omegaconf import DictConfig

from bapo.gpu import allocation

#: seconds that a process may take to write its tables and to end
PARTING = 10.0


def end_of_job(checkpoint: DictConfig) -> float | None:
    """Return when the job ends, in seconds since 1970: ``checkpoint.job_minutes`` behind its beginning, or as Slurm
    says.

    None: it has no end.
    """
    if checkpoint.job_minutes is not None:
        return allocation.beginning() + 60 * checkpoint.job_minutes
    return allocation.end()


class JobClock:
    """Measures steps and checkpoints of one process.

    end: of the job, in seconds since 1970; minutes: between two checkpoints at most; now: the clock.
    """

    def __init__(self, end: float | None, minutes: float | None, now: Callable[[], float] = time.time) -> None:
        self.end, self.minutes, self.now = end, minutes, now
        self.step, self.checkpoint = 0.0, None  # seconds of the longest
        self.start()

    def start(self) -> None:
        """Measure from here: what came before was no step."""
        self.mark = self.written = self.now()

    def step_ended(self) -> None:
        """Count the time since the last step or checkpoint as a step."""
        self.step = max(self.step, self.now() - self.mark)
        self.mark = self.now()

    def checkpoint_written(self) -> None:
        """Count the time since the last step as a checkpoint's."""
        self.checkpoint = max(self.checkpoint or 0.0, self.now() - self.mark)
        self.mark = self.written = self.now()

    def checkpoint_due(self) -> bool:
        return self.minutes is not None and self.now() - self.written >= 60 * self.minutes

    def ending(self) -> bool:
        """Return whether the end of the job is nearer than two steps and a checkpoint, the longest so far.

        Asked after a step, so every job takes at least one; a checkpoint not measured yet is taken for a step.
        """
        if self.end is None:
            return False
        needed = 2 * self.step + (self.step if self.checkpoint is None else self.checkpoint) + PARTING
        return self.end - self.now() < needed

    def left(self) -> str:
        """Say how far the end of the job is."""
        return f"{max(0.0, (self.end or self.now()) - self.now()) / 60:.1f} minutes before the end of its job"
