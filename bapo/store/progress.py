"""The progress line of a job, for a terminal and for a log file."""

from __future__ import annotations

import sys
import time
from typing import TextIO


class Progress:
    """``label  step 40/100  reward 0.31  1.9 steps/s  0:32 left``.

    A terminal's line is redrawn; elsewhere a line is printed at every tenth of the way and at the end.
    """

    def __init__(
        self, label: str, total: int, start: int = 0, unit: str = "step", stream: TextIO | None = None
    ) -> None:
        self.label, self.total, self.unit = label, total, unit
        self.stream = stream or sys.stderr
        self.first, self.begun, self.shown = start, time.monotonic(), 0.0
        self.tenth = 10 * start // max(1, total)
        self.done, self.note = start, ""

    def add(self, count: int) -> None:
        """Count further steps, with ``note`` as it was set."""
        self.done += count
        self.update(self.done, self.note)

    def update(self, done: int, note: str = "") -> None:
        now = time.monotonic()
        elapsed = now - self.begun
        rate = (done - self.first) / elapsed if elapsed > 0 else 0.0
        left = (self.total - done) / rate if rate > 0 else 0.0
        text = f"{self.label}  {self.unit} {done}/{self.total}  {note}  {rate:.1f} {self.unit}s/s  {clock(left)} left"
        if self.stream.isatty():
            if now - self.shown >= 0.2 or done == self.total:
                self.shown = now
                self.stream.write(f"\r\x1b[2K{text}" + ("\n" if done == self.total else ""))
                self.stream.flush()
        elif 10 * done // max(1, self.total) > self.tenth:
            self.tenth = 10 * done // max(1, self.total)
            print(text, file=self.stream, flush=True)


def clock(seconds: float) -> str:
    minutes, second = divmod(int(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02d}:{second:02d}" if hours else f"{minute}:{second:02d}"
