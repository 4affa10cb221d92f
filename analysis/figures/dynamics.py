"""Reward, entropy and response length during training, for BAPO, GRPO and DAPO (the paper's Figure 11)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from analysis import reading, style
from analysis.figures import common
from analysis.study import Study

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

SHOWN = ("grpo", "dapo", "bapo")
#: column of steps.parquet -> axis
MEASURES = {
    "reward_mean": "mean reward",
    "entropy": "entropy (nats a token)",
    "response_length": "response length (tokens)",
}
PANEL, GAP = 1.45, 0.72
TOP = 0.55


def figure11_dynamics(study: Study) -> tuple[Figure, pd.DataFrame]:
    """Draw a row a task and model, a column a measure; mean over seeds, smoothed, band from lowest to highest seed."""
    import pandas as pd

    study = common.part(study, methods=SHOWN)
    data = {
        (b, m): {c: common.series(reading.steps(b, m, study, [c]), c) for c in MEASURES}
        for b in study.blocks
        for m in b.methods
    }
    window = common.window_of(max(len(steps) for d in data.values() for steps, _ in d.values()))
    caption = (
        "Of each step: mean reward and length of the fresh rollouts, and the policy's mean entropy over the tokens of "
        "the training batch, which methods choose differently. Mean over "
        f"{common.seed_words(study.blocks)}{common.averaged(window)}; band: lowest to highest seed. A delayed rollout "
        f"policy (BAPO's) shows its own reward and length. {_not_recorded(data)}{study.note}"
    )
    below = style.caption_height(caption) + 0.5
    fig = style.figure(TOP + len(study.blocks) * PANEL + (len(study.blocks) - 1) * GAP + below)
    grid = fig.subplots(len(study.blocks), len(MEASURES), squeeze=False)
    rows = []
    for line, block in zip(grid, study.blocks, strict=True):
        for axes, (column, label) in zip(line, MEASURES.items(), strict=True):
            for i, m in enumerate(block.methods):
                steps, values = data[block, m][column]
                common.curve(axes, m, i, steps, style.smooth(values, window), block.plain_title(m))
            common.tidy_steps(
                axes, max(max(steps, default=1) for m in block.methods for steps, _ in data[block, m].values())
            )
            axes.set_title(label, fontsize=8, pad=4)
        style.row_title(line[0], block.title, 0.2)
        for m in block.methods:
            for column, (steps, values) in data[block, m].items():
                columns = {"measure": column, "value": values, "smoothed": style.smooth(values, window)}
                rows.append(common.by_seed(block, m, steps, columns))
    for axes in grid[-1]:
        axes.set_xlabel("training step")
    style.margins(fig, left=0.45, right=0.15, top=TOP + 0.2, bottom=below, hspace=GAP / PANEL, wspace=0.24)
    common.legend_above(fig, [line[0] for line in grid])
    style.caption(fig, caption)
    return fig, pd.concat(rows, ignore_index=True)


def _not_recorded(data: dict) -> str:
    """Say in a sentence what no step of some method's runs records."""
    missing = {
        f"{MEASURES[c].partition(' (')[0]} of {b.plain_title(m)}"
        for (b, m), measures in data.items()
        for c, (steps, _) in measures.items()
        if not len(steps)
    }
    return f"Not recorded: {', '.join(sorted(missing))}. " if missing else ""
