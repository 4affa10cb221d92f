"""When a run changes its learning rate, writes a checkpoint and stops before its job ends, with both engines."""

from __future__ import annotations

import time

#: seconds that a process may take to write its tables and to end
END_MARGIN = 10.0


def learning_rate(full: float, warmup_updates: int, update: int) -> float:
    """Return the rate of an update (1-based), which rises linearly over the first ones."""
    return full * min(1.0, update / max(1, warmup_updates))


class JobClock:
    """Tells when a run writes a checkpoint because time has passed, and when it stops because its job is about to end.

    end: of the job, in seconds since 1970; minutes: between two checkpoints at most; step: seconds of the longest step,
    with the checkpoint behind the one before it.
    """

    def __init__(self, end: float | None, minutes: float | None) -> None:
        self.end, self.minutes, self.step = end, minutes, 0.0
        self.start()

    def start(self) -> None:
        """Measure from here: what came before was no step."""
        self.mark = self.written = time.monotonic()  # whatever is done to the machine's clock

    def step_ended(self) -> None:
        now = time.monotonic()
        self.step, self.mark = max(self.step, now - self.mark), now

    def checkpoint_due(self) -> bool:
        return self.minutes is not None and time.monotonic() - self.written >= 60 * self.minutes

    def checkpoint_written(self) -> None:
        self.written = time.monotonic()

    def ending(self) -> bool:
        """Return whether the end of the job is nearer than three of the longest steps: two, and a checkpoint.

        Asked after a step, so every job takes at least one.
        """
        return self.end is not None and self.end - time.time() < 3 * self.step + END_MARGIN

    def left(self) -> str:
        """Say how far the end of the job is."""
        return f"{max(0.0, (self.end or 0.0) - time.time()) / 60:.1f} minutes before the end of its job"
