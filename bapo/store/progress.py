"""The progress of a job: tqdm's bar in a terminal, plain lines in a log file."""

from __future__ import annotations

import sys

from tqdm import tqdm


class Progress(tqdm):
    """``label: step 40/100, reward 0.31, 1.90 steps/s, 00:32 left``.

    A terminal's line is redrawn; elsewhere a line is printed at every tenth of the way and at the end.
    """

    monitor_interval = 0  # no thread of tqdm's: jobs fork

    def __init__(self, label: str, total: int, start: int = 0, unit: str = "step") -> None:
        self.tenth = 10 * start // max(1, total)
        super().__init__(
            desc=label,
            total=total,
            initial=start,
            unit=f" {unit}s",
            file=sys.stderr,
            dynamic_ncols=True,
            mininterval=0.2 if sys.stderr.isatty() else 0,
            miniters=1,
            bar_format=f"{{desc}}: {unit} {{n_fmt}}/{{total_fmt}}{{postfix}}, {{rate_noinv_fmt}}, {{remaining}} left",
        )

    def add(self, count: int, note: str = "") -> None:
        """Count further steps. note: shown behind them from now on."""
        if note:
            self.set_postfix_str(note, refresh=False)
        self.update(count)
        if self.n >= self.total:
            self.close()

    def display(self, *arguments: object, **options: object) -> None:
        """Draw the bar; in a log file print a line where another tenth is done."""
        if self.fp.isatty():
            super().display(*arguments, **options)
        elif (tenth := 10 * int(self.n) // max(1, int(self.total))) > self.tenth:
            self.tenth = tenth
            print(self, file=self.fp, flush=True)

    def close(self) -> None:
        """Leave the finished bar in the terminal; a log file's lines have ended already."""
        if self.fp.isatty():
            super().close()
        self.disable = True
