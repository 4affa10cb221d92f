"""Responses generated up to each training step by GRPO, DAPO and BAPO (the paper's Figure 9)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from analysis import reading, style, text
from analysis.figures import common
from analysis.study import Block, Study

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: the paper compares BAPO with DAPO; GRPO is what both are multiples of
SHOWN = ("grpo", "dapo", "bapo")
ACROSS = 3
PANEL, GAP, TOP = 2.1, 0.9, 0.42


def figure9_cumulative_rollouts(study: Study) -> tuple[Figure, pd.DataFrame]:
    """Draw a panel a task and model: mean over seeds, band from the lowest to the highest seed."""
    import pandas as pd

    study = common.part(study, methods=SHOWN)
    compared = any("grpo" in b.methods for b in study.blocks)
    caption = (
        "Responses generated up to each step: fresh rollouts, those that dynamic sampling throws away, and "
        f"re-evaluations; mean over {common.seed_words(study.blocks)}, band: lowest to highest seed. "
        f"{'In brackets: times GRPO. ' if compared else ''}{study.note}"
    )
    shape = -(-len(study.blocks) // ACROSS), max(2, min(ACROSS, len(study.blocks)))
    fig, grid = style.panels(caption, shape, PANEL, GAP, TOP, left=0.6, wspace=0.22)
    for axes in grid.flat[len(study.blocks) :]:
        axes.set_visible(False)
    rows = [_panel(axes, block, study) for axes, block in zip(grid.flat, study.blocks, strict=False)]
    for line in grid:
        line[0].set_ylabel("responses generated")
    return fig, pd.concat(rows, ignore_index=True)


def _panel(axes: Axes, block: Block, study: Study) -> pd.DataFrame:
    import pandas as pd

    rows, sums = [], {}
    for m in block.methods:
        frame = reading.steps(block, m, study, ["fresh_rollouts", "regenerated_rollouts"])
        frame["rollouts"] = frame["fresh_rollouts"] + frame["regenerated_rollouts"]
        steps, values = common.series(frame, "rollouts")
        sums[m] = (steps, np.cumsum(values, axis=1))
        rows.append(common.by_seed(block, m, steps, {"cumulative_rollouts": sums[m][1].astype(np.int64)}))
    totals = {m: values[:, -1].mean() for m, (_, values) in sums.items()}
    for i, (m, (steps, values)) in enumerate(sums.items()):
        times = f" ({totals[m] / totals['grpo']:.2f}x)" if totals.get("grpo") else ""
        label = f"{block.plain_title(m)} {text.thousands(totals[m])}{times}"
        common.curve(axes, m, i, steps, values, label)
    common.tidy_steps(axes, max(steps[-1] for steps, _ in sums.values()))
    axes.set_ylim(0, max(totals.values()) * 1.12)
    axes.yaxis.set_major_formatter(lambda v, _: f"{v / 1000:g}k" if v >= 1000 else f"{v:g}")
    style.panel_title(axes, block.task_title, block.model_title)
    axes.set_xlabel("training step")
    handles, labels = axes.get_legend_handles_labels()
    order = sorted(range(len(labels)), key=lambda i: -list(totals.values())[i])  # as the lines end
    axes.legend([handles[i] for i in order], [labels[i] for i in order], loc="upper left", fontsize=7, handlelength=1.2)
    return pd.concat(rows, ignore_index=True)
