"""The theory monitor's figure: distances, and the forms of the bound, along training; a row a task."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from analysis import style
from analysis.figures import common
from analysis.study import Block

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

PANEL, GAP = 1.75, 0.75
LOOKS = {
    "ceiling_printed": ("as printed, largest value", style.BLACK, "-"),
    "ceiling_repaired": ("repaired, largest value", style.PURPLE, "-"),
    "bound_printed": ("as printed, estimated", style.BLACK, (0, (4, 1.2))),
    "bound_repaired": ("repaired, estimated", style.PURPLE, (0, (4, 1.2))),
}


def write(frames: Sequence[tuple[Block, str, pd.DataFrame]], data: pd.DataFrame, note: str, out: Path) -> list[Path]:
    """theory_monitor.pdf, .png, .svg and .csv. frames: of each row of panels; data: all of them, for the CSV."""
    last = max(int(frame["step"].max()) for _, _, frame in frames)
    window = common.window_of(last)
    caption = (
        "Left: total-variation distance of the trained policy to the policies that wrote the batch, estimated from "
        "sampled ratios (biased: theory_monitor.md). Right: the lower bound of Theorem 3.2, which promises an "
        "improvement only above 0. Largest value: whatever the policy gains. "
        f"Mean over {common.seed_words([b for b, _, _ in frames], [m for _, m, _ in frames])}"
        f"{common.averaged(window)}. {note}"
    )
    with style.settings():
        fig, grid = style.panels(caption, (len(frames), 2), PANEL, GAP, top=0.7, left=0.65, wspace=0.25)
        for (block, method, frame), (left, right) in zip(frames, grid, strict=True):
            lines = {f"tv_x{i}": style.PARTS[f"x{i}"] for i in (1, 2, 3)}
            for column, (label, colour) in lines.items():
                _line(left, frame, column, window, label=label, color=colour)
            for column, (label, colour, dash) in LOOKS.items():
                _line(right, frame, column, window, label=label, color=colour, linestyle=dash)
            right.axhline(0, color="#444444", linewidth=0.8)
            style.row_title(left, f"{block.title}, {block.plain_title(method)}", 0.06)
            left.set_ylabel("TV (estimated)")
            right.set_ylabel("bound")
            left.set_ylim(bottom=0)
            for axes in (left, right):
                common.tidy_steps(axes, last)
        for axes in grid[-1]:
            axes.set_xlabel("training step")
        for column, left in enumerate((0.6, 0.5 * style.WIDTH + 0.35)):
            common.legend_above(fig, list(grid[:, column]), left=left, ncols=2)
        return style.save(fig, data, out, "theory_monitor", "The bound of Theorem 3.2 along training")


def _line(axes: Axes, frame: pd.DataFrame, column: str, window: int, **look: object) -> None:
    """Draw the mean over seeds at each step, smoothed over the steps that have a value; nothing where there is none."""
    values = frame.groupby("step")[column].mean()
    values = values[np.isfinite(values)]
    if len(values):
        axes.plot(values.index, style.smooth(values.to_numpy(), window), **look)
