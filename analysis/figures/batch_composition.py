"""What BAPO's training batches are made of: X1, X2 and X3 of equation 5 (the paper's Figures 8 and 14)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from analysis import reading, style
from analysis.figures import common
from analysis.study import Block, Study
from bapo.errors import UserError

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLUMNS = ["x1", "x2", "x3", "batch_groups"]
#: Figure 8 shows the ablations beside BAPO
VARIANTS = ("bapo", "bapo_without_x2", "bapo_without_x3")
ACROSS = 3
PANEL, GAP = 2.0, 1.0
TOP = 0.92


def figure8_batch_composition(study: Study) -> tuple[Figure, pd.DataFrame]:
    """Draw BAPO and its ablations on mathematics side by side."""
    study = common.part(study, ("mathematics",), VARIANTS)
    order = {m: i for i, m in enumerate(VARIANTS)}
    lines = [[(b, m) for m in sorted(b.methods, key=lambda m: order.get(m, len(order)))] for b in study.blocks]
    return _draw(study, lines, [b.title for b in study.blocks], lambda b, m: b.plain_title(m))


def figure14_batch_composition(study: Study) -> tuple[Figure, pd.DataFrame]:
    """BAPO on every task, side by side."""
    study = common.part(study, methods=("bapo",))
    panels = [(b, m) for b in study.blocks for m in b.methods]
    lines = [panels[i : i + ACROSS] for i in range(0, len(panels), ACROSS)]
    several = len({m for _, m in panels}) > 1
    return _draw(
        study,
        lines,
        [""] * len(lines),
        lambda b, m: f"{b.task_title}\n{b.model_title}{f', {b.plain_title(m)}' if several else ''}",
    )


def _draw(
    study: Study, lines: Sequence[Sequence[tuple[Block, str]]], titles: Sequence[str], name: Callable[[Block, str], str]
) -> tuple[Figure, pd.DataFrame]:
    """Draw a panel for every (block, method): groups in the batch of each step; red: the batch size B.

    lines: the panels of each row of the figure; titles: of the rows; name: of a panel, a second line in smaller type.
    """
    import pandas as pd

    caption = (
        f"Prompt groups in the training batch of each step, stacked, mean over {common.seed_words(study.blocks)}; red "
        "line: the configured batch B, which GRPO always fills. Percentages: mean share of B over the run. "
        f"{study.note}"
    )
    top = TOP if any(titles) else TOP - 0.1
    across = max(2, *map(len, lines))  # a lone panel does not fill the page
    fig, grid = style.panels(caption, (len(lines), across), PANEL, GAP, top, left=0.5, wspace=0.08)
    rows = []
    for row, panels, title in zip(grid, lines, titles, strict=True):
        for axes in row[len(panels) :]:
            axes.set_visible(False)
        limits = []
        for axes, (block, method) in zip(row, panels, strict=False):
            frame, limit = _panel(axes, block, method, study, name(block, method))
            rows.append(frame)
            limits.append(limit)
        for axes in row[: len(panels)]:
            axes.set_ylim(0, max(limits) * 1.06)
            axes.tick_params(labelleft=axes is row[0])
        row[0].set_ylabel("groups in the batch")
        if title:
            style.row_title(row[0], title, 0.43)
    common.legend_above(fig, [grid[0, 0]])
    return fig, pd.concat(rows, ignore_index=True)


def _panel(axes: Axes, block: Block, method: str, study: Study, title: str) -> tuple[pd.DataFrame, float]:
    """(the panel's data, the height that it needs)."""
    frame = reading.steps(block, method, study, COLUMNS)
    size = reading.config(block.methods[method][0], study).get("train", {}).get("batch_size")
    if not size:
        run = block.methods[method][0].run
        raise UserError(
            f"{run}/config.yaml has no train.batch_size; delete {run}/summary.json and give `{study.command}` again"
        )
    mean = frame.groupby("step")[COLUMNS].mean()
    steps, bottom = mean.index.to_numpy(), np.zeros(len(mean))
    for part, (label, colour) in style.PARTS.items():
        # one shape a part, stairs of width 1: thousands of bars would make a slow and heavy SVG
        height = bottom + mean[part].to_numpy()
        edges = np.append(steps - 0.5, steps[-1] + 0.5)
        axes.stairs(height, edges, baseline=bottom, fill=True, color=colour, label=label, linewidth=0)
        bottom = height
    axes.axhline(size, color="#CC0000", linewidth=1.4, label="batch size $B$")
    shares = "  ".join(f"$X_{p[1]}$ {mean[p].mean() / size:.0%}" for p in style.PARTS) + f"  of $B$ = {size}"
    first, _, second = title.partition("\n")
    style.panel_title(axes, first, f"{second}\n{shares}" if second else shares)
    common.tidy_steps(axes, int(steps[-1]))
    axes.set_xlim(steps[0] - 0.5, steps[-1] + 0.5)
    axes.set_xlabel("training step")
    axes.grid(axis="x", visible=False)
    frame = frame.assign(task=block.task, model=block.model, method=method, batch_size=size)
    return frame, max(size, bottom.max())
