"""BAPO's ablations: the periods v and m, the parts X2 and X3, fixed against adaptive thresholds (Figure 6)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from analysis import reading, style
from analysis.figures import common, final_accuracy
from analysis.study import Block, Study

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

COLUMN = "reward_mean"
#: the paper's three columns: title, the methods beside BAPO, how BAPO is called there
COLUMNS = (
    ("periods v and m", re.compile(r"bapo\+[vm]\d+"), "v = {v}, m = {m}"),
    ("parts of the buffer", re.compile(r"bapo_without_x[23]"), "BAPO"),
    ("thresholds of X3", re.compile(r"bapo\+fixed_\w+"), "adaptive"),
)
CURVES, ROW, GAP = 1.75, 0.34, 0.7  # inches: the curves, a method in the panel of accuracies, between two blocks
BETWEEN = 0.62


def figure6_ablations(study: Study) -> tuple[Figure, pd.DataFrame]:
    """Draw above training reward, a column an ablation, and below the test accuracy of the methods evaluated."""
    import pandas as pd

    names = [m for b in study.blocks for m in b.methods if m == "bapo" or any(c.fullmatch(m) for _, c, _ in COLUMNS)]
    study = common.part(study, methods=names)
    data = {
        (b, m): common.series(reading.steps(b, m, study, [COLUMN]), COLUMN) for b in study.blocks for m in b.methods
    }
    accuracies = {b: final_accuracy.accuracies(b, study) for b in study.blocks}
    window = common.window_of(max(len(steps) for steps, _ in data.values()))
    caption = (
        f"Above: mean reward of the fresh rollouts at each step, mean over {common.seed_words(study.blocks)}"
        f"{common.averaged(window)}; band: lowest to highest seed. v: steps between two refreshes of the rollout "
        "policy, whose reward this is; m: between two re-evaluations. "
        f"{final_accuracy.WORDS if any(accuracies.values()) else ''}{study.note}"
    )
    lines = max(len(labels) for b in study.blocks for labels in _labels(b, study))
    below, top = style.caption_height(caption) + 0.5, 0.62
    block_height = CURVES + BETWEEN + lines * ROW
    fig = style.figure(top + len(study.blocks) * block_height + (len(study.blocks) - 1) * (GAP + top) + below)
    outer = fig.add_gridspec(len(study.blocks), 1, hspace=(GAP + top) / block_height)
    rows = []
    for slot, block in zip(outer, study.blocks, strict=True):
        inner = slot.subgridspec(
            2,
            len(COLUMNS),
            height_ratios=(CURVES, lines * ROW),
            wspace=0.14,
            hspace=2 * BETWEEN / (CURVES + lines * ROW),
        )
        grid = [[fig.add_subplot(inner[i, j]) for j in range(len(COLUMNS))] for i in (0, 1)]
        _block(grid, block, _labels(block, study), data, accuracies[block], window)
        for m in block.methods:
            steps, values = data[block, m]
            columns = {"value": values, "smoothed": style.smooth(values, window)}
            rows.append(common.by_seed(block, m, steps, columns, measure=COLUMN))
        rows.append(final_accuracy.frame(block, accuracies[block]))
    style.margins(fig, left=0.55, right=0.15, top=top, bottom=below)
    style.caption(fig, caption)
    return fig, pd.concat(rows, ignore_index=True).astype({"seed": "Int64", "step": "Int64"})


def _labels(block: Block, study: Study) -> list[dict[str, str]]:
    """Return the methods of each column with what they are called in it."""
    columns = []
    for _, chosen, bapo in COLUMNS:
        labels = {m: common.short(block.plain_title(m)) for m in block.methods if chosen.fullmatch(m)}
        if "bapo" in block.methods:
            method = reading.config(block.methods["bapo"][0], study).get("method", {})
            labels["bapo"] = bapo.format(**method) if {"v", "m"} <= set(method) else "BAPO"
        columns.append(labels)
    if not any(columns):  # none of the paper's ablations: what there is
        columns[0] = {m: block.plain_title(m) for m in block.methods}
    return columns


def _block(grid, block: Block, columns: list[dict[str, str]], data: dict, accuracies: dict, window: int) -> None:
    order = list(block.methods)
    for j, ((title, _, _), labels) in enumerate(zip(COLUMNS, columns, strict=True)):
        above, under = grid[0][j], grid[1][j]
        if not labels:
            above.set_visible(False)
            under.set_visible(False)
            continue
        for m in labels:
            steps, values = data[block, m]
            common.curve(above, m, order.index(m), steps, style.smooth(values, window))
            common.tidy_steps(above, int(steps[-1]))
        above.set_title(title, loc="left", fontsize=8, pad=4)
        above.set_xlabel("training step", labelpad=1)
        above.tick_params(labelleft=j == 0)
        final_accuracy.panel(under, block, accuracies, labels)
        under.set_xlim(*final_accuracy.limits(accuracies))
    shown = [axes for axes in grid[0] if axes.get_visible()]
    common.same_scale(shown)
    shown[0].set_ylabel("mean reward")
    style.row_title(shown[0], block.title, 0.28)
