"""When a run changes its learning rate, writes a checkpoint and stops before its job ends, with both engines."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

from bapo.experiments.schema import STATES, CheckpointConfig

#: seconds that a process may take to write its tables and to end
END_MARGIN = 10.0


def learning_rate(full: float, warmup_updates: int, update: int) -> float:
    """Return the rate of an update (1-based), which rises linearly over the first ``warmup_updates``."""
    return full * min(1.0, update / max(1, warmup_updates))


class RunClock:
    """Tells after each step whether a checkpoint is due, and whether the run stops because its job is about to end."""

    def __init__(self, job_end: float | None, checkpoint: CheckpointConfig) -> None:
        """job_end: in seconds since 1970; checkpoint: how many steps, and minutes, lie between two checkpoints."""
        self.job_end, self.every, self.minutes = job_end, checkpoint.every, checkpoint.minutes
        self.longest_step = 0.0  # in seconds; a step's time includes the checkpoint before it
        self.start()

    def start(self) -> None:
        """Begin the time of the first step here."""
        self.mark = self.written = time.monotonic()  # the machine's clock may be set meanwhile

    def step_ended(self, step: int, finished: bool, requested: bool) -> tuple[bool, str]:
        """Return whether a checkpoint follows step ``step``, and why the run stops early, "" where it does not.

        finished: it was the last step; requested: somebody asked the run to stop. Runs stop after a step, so every job
        takes at least one.
        """
        now = time.monotonic()
        self.longest_step, self.mark = max(self.longest_step, now - self.mark), now
        stop = ""
        if not finished:
            stop = "as asked" if requested else self._end_of_job()
        timely = self.minutes is not None and now - self.written >= 60 * self.minutes
        return bool(stop) or finished or timely or step % self.every == 0, stop

    def checkpoint_written(self) -> None:
        self.written = time.monotonic()

    def _end_of_job(self) -> str:
        """Return how near the job's end is, "" if there is time for three of the longest steps.

        That is enough for two steps and a checkpoint.
        """
        left = math.inf if self.job_end is None else self.job_end - time.time()
        if left >= 3 * self.longest_step + END_MARGIN:
            return ""
        return f"{max(0.0, left) / 60:.1f} minutes before the end of its job"


def keeps_model(step: int, checkpoint: CheckpointConfig) -> bool:
    """Return whether a step's model is kept beside newer ones. Models that only the clock asked for are not."""
    return checkpoint.keep_models and step % checkpoint.every == 0


def superseded(steps: Sequence[int], newest: int) -> list[int]:
    """Return those of the steps, newest first, whose states are dropped once that of ``newest`` is written.

    States of later steps do not count. They are damaged: otherwise the run would have resumed from them.
    """
    return [step for step in steps if step <= newest][STATES:]
