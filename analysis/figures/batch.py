"""What BAPO's training batches are made of: X1, X2 and X3 of equation 5 (the paper's Figures 8 and 14)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from analysis import reading, style
from analysis.figures import frames
from analysis.study import Block, Study

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Figure 8 shows the ablations beside BAPO
VARIANTS = ("bapo", "bapo_without_x2", "bapo_without_x3")


def figure8_batch_composition(study: Study) -> tuple[Figure, pd.DataFrame]:
    """Draw BAPO and its ablations on mathematics side by side."""
    study = frames.part(study, ("mathematics",), VARIANTS)
    return _draw(study, [(b, m) for b in study.blocks for m in sorted(b.methods, key=lambda m: (m not in VARIANTS, m))])


def figure14_batch_composition(study: Study) -> tuple[Figure, pd.DataFrame]:
    """Draw BAPO on every task, side by side."""
    study = frames.part(study, methods=("bapo",))
    return _draw(study, [(b, m) for b in study.blocks for m in b.methods])


def _draw(study: Study, shown: Sequence[tuple[Block, str]]) -> tuple[Figure, pd.DataFrame]:
    """Draw a panel for every (block, method): groups in the batch of each step; red: the batch size B."""
    import pandas as pd

    fig, panels = style.grid(frames.caption(study, "batch_composition"), len(shown), 3, sharey=True)
    parts = []
    for axes, (block, method) in zip(panels, shown, strict=True):
        size = reading.setting(block.methods[method][0], "train", "batch_size")
        frame = reading.steps(block, method, study, [*style.PARTS, "batch_groups"])
        parts.append(frame.assign(**block.keys(method), batch_size=size))
        mean = frame.groupby("step")[list(style.PARTS)].mean()
        _stack(axes, mean)
        axes.axhline(size, color="#CC0000", linewidth=1.4, label="batch size $B$")
        shares = "  ".join(f"$X_{p[1]}$ {mean[p].mean() / size:.0%}" for p in style.PARTS) + f"  of $B$ = {size}"
        axes.set_title(f"{block.plain_title(method)}: {block.task_title}\n{block.model_title}\n{shares}")
    panels[0].set_ylabel("groups in the batch")
    style.legend(fig, panels)
    return fig, pd.concat(parts, ignore_index=True)


def _stack(axes: Axes, mean: pd.DataFrame) -> None:
    """Draw stairs: thousands of bars would make a slow and heavy SVG."""
    steps, bottom = mean.index.to_numpy(), np.zeros(len(mean))
    edges = np.append(steps - 0.5, steps[-1] + 0.5)
    for part, (label, colour) in style.PARTS.items():
        height = bottom + mean[part].to_numpy()
        axes.stairs(height, edges, baseline=bottom, fill=True, color=colour, label=label, linewidth=0)
        bottom = height
    style.step_axis(axes, int(steps[-1]))
    axes.set_xlim(edges[0], edges[-1])
    axes.grid(axis="x", visible=False)
