"""Training curves: mean reward of the fresh rollouts at each step (the paper's Figure 4)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from analysis import reading, style
from analysis.figures import common
from analysis.study import Block, Study

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

COLUMN = "reward_mean"
#: inches: the comparison, from it to the row of seeds below, that row, between two blocks
TALL, BETWEEN, SMALL, GAP = 2.0, 0.62, 0.85, 0.75


def training_curves(study: Study) -> tuple[Figure, pd.DataFrame]:
    """Draw all methods (mean over seeds) and below each method with its seeds; one such pair a task and model."""
    import pandas as pd

    study = common.part(study)
    data = {b: _read(b, study) for b in study.blocks}
    window = common.window_of(max(len(steps) for methods in data.values() for steps, _ in methods.values()))
    first = study.blocks[0].plain_title(next(iter(study.blocks[0].methods)))
    chooses = any("mopps" in b.methods for b in study.blocks)
    caption = (
        f"Mean reward of the fresh rollouts at each step, {common.seed_words(study.blocks)} a method"
        f"{common.averaged(window)}. Above: mean over seeds. Below: the same mean, each seed (thin), band from lowest "
        f"to highest seed; grey: {first}. Methods with a delayed rollout policy show that policy's reward. "
        f"{'MoPPS chooses its prompts, so its reward is not on the same prompts as the rest. ' if chooses else ''}"
        f"{study.note}"
    )
    below = style.caption_height(caption) + 0.5
    height = 0.3 + len(data) * (TALL + BETWEEN + SMALL) + (len(data) - 1) * GAP + below
    fig = style.figure(height)
    outer = fig.add_gridspec(len(data), 1, hspace=GAP / (TALL + BETWEEN + SMALL))
    rows = []
    for slot, (block, methods) in zip(outer, data.items(), strict=True):
        inner = slot.subgridspec(2, 1, height_ratios=(TALL, SMALL), hspace=2 * BETWEEN / (TALL + SMALL))
        smoothed = {m: style.smooth(v, window) for m, (_, v) in methods.items()}
        _compare(fig.add_subplot(inner[0]), block, methods, smoothed)
        _seeds(fig, inner[1], block, methods, smoothed)
        for m, (steps, values) in methods.items():
            rows.append(common.by_seed(block, m, steps, {COLUMN: values, "smoothed": smoothed[m]}))
    style.margins(fig, left=0.55, right=1.5, top=0.3, bottom=below)
    _widen(fig)
    style.caption(fig, caption)
    return fig, pd.concat(rows, ignore_index=True)


#: the paper's, and one that any study may name under ``also``
figure4_training_curves = training_curves


def _read(block: Block, study: Study) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    return {m: common.series(reading.steps(block, m, study, [COLUMN]), COLUMN) for m in block.methods}


def _compare(axes, block: Block, methods: dict, smoothed: dict) -> None:
    from matplotlib.ticker import MaxNLocator

    for i, (m, values) in enumerate(smoothed.items()):
        steps = methods[m][0]
        axes.plot(steps, values.mean(axis=0), zorder=4 if m == "bapo" else 3, **style.method_line(m, i))
    last = max(steps[-1] for steps, _ in methods.values())
    common.tidy_steps(axes, last)
    style.row_title(axes, block.title, 0.08)
    axes.set_ylabel("mean reward")
    axes.yaxis.set_major_locator(MaxNLocator(6))
    axes.yaxis.set_major_formatter("{x:.2f}")
    axes.set_xlabel("training step", labelpad=1)
    final = {m: v.mean(axis=0)[-1] for m, v in smoothed.items()}
    ends = [
        (y, f"{block.plain_title(m)} {y:.2f}", style.method_line(m, i)["color"])
        for i, (m, y) in enumerate(final.items())
    ]
    style.spread_labels(axes, ends, last, TALL)


def _seeds(fig, slot, block: Block, methods: dict, smoothed: dict) -> None:
    grid = slot.subgridspec(1, len(methods), wspace=0.12)
    reference = next(iter(smoothed))
    low = min(v.min() for v in smoothed.values())
    high = max(v.max() for v in smoothed.values())
    for i, (m, values) in enumerate(smoothed.items()):
        axes = fig.add_subplot(grid[i])
        axes.set_gid("seeds")
        line, steps = style.method_line(m, i), methods[m][0]
        if m != reference:
            axes.plot(methods[reference][0], smoothed[reference].mean(axis=0), color="#B5B5B5", linewidth=1.0)
        axes.fill_between(steps, values.min(axis=0), values.max(axis=0), color=line["color"], alpha=0.18, linewidth=0)
        for seed in values:
            axes.plot(steps, seed, color=line["color"], linewidth=0.5)
        axes.plot(steps, values.mean(axis=0), color=line["color"], linewidth=1.3)
        axes.set_ylim(low - 0.05 * (high - low), high + 0.05 * (high - low))
        common.tidy_steps(axes, steps[-1])
        axes.set_xticks([0, steps[-1]], ["0", str(steps[-1])])
        axes.get_xticklabels()[0].set_ha("left")
        axes.get_xticklabels()[1].set_ha("right")
        title = block.plain_title(m)
        if len(methods) > 7:  # narrow panels
            title = title.replace(" ", "\n", 1)
        axes.set_title(title, fontsize=7, color=line["color"], pad=3)
        if i:
            axes.tick_params(labelleft=False)


def _widen(fig) -> None:
    """Let the row of seeds use the width that the labels of the upper panel leave free."""
    small = [a for a in fig.axes if a.get_gid() == "seeds"]
    left = min(a.get_position().x0 for a in small)
    right = max(a.get_position().x1 for a in small)
    scale = (1 - 0.1 / fig.get_size_inches()[0] - left) / (right - left)
    for a in small:
        p = a.get_position()
        a.set_position((left + (p.x0 - left) * scale, p.y0, p.width * scale, p.height))
