"""What BAPO's training batches are made of: X1, X2 and X3 of equation 5 (the paper's Figures 8 and 14)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from analysis import reading, style
from analysis.figures import common
from analysis.study import Block, Study
from bapo.errors import UserError

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

COLUMNS = ["x1", "x2", "x3", "batch_groups"]
PANEL, GAP = 2.0, 1.12
TOP = 0.92


def variants(block: Block) -> list[str]:
    """BAPO first, then its ablations; every method of a study without them."""
    found = sorted((m for m in block.methods if m.startswith("bapo")), key=lambda m: (m != "bapo", m))
    return found or list(block.methods)


def figure(study: Study) -> tuple[Figure, pd.DataFrame]:
    """A row a task and model, a panel a method; groups in the batch of each step; red: the batch size B.

    The methods are BAPO and its ablations where the study has any, else all of them.
    """
    import pandas as pd

    blocks = [b for b in study.blocks if any(m.startswith("bapo") for m in b.methods)] or list(study.blocks)
    across = max(len(variants(b)) for b in blocks)
    words = (
        "Prompt groups in the training batch of each step, stacked, mean over "
        f"{common.seed_words(blocks, [m for b in blocks for m in variants(b)])}; red line: the configured batch B, "
        f"which GRPO always fills. Percentages: mean share of B over the run. {study.note}"
    )
    below = style.caption_height(words) + 0.5
    width = style.WIDTH if across > 1 else 4.4
    fig = style.figure(TOP + len(blocks) * PANEL + (len(blocks) - 1) * GAP + below, style.WIDTH)
    grid = fig.subplots(len(blocks), across, squeeze=False, sharey="row")
    rows = []
    for line, block in zip(grid, blocks, strict=True):
        for axes in line[len(variants(block)) :]:
            axes.set_visible(False)
        for i, (axes, method) in enumerate(zip(line, variants(block), strict=False)):
            rows.append(_panel(axes, block, method, study))
            if i == 0:
                axes.set_ylabel("groups in the batch")
                style.row_title(axes, block.title, 0.43)
    right = 0.15 + style.WIDTH - width
    style.margins(fig, left=0.5, right=right, top=TOP, bottom=below, hspace=GAP / PANEL, wspace=0.08)
    handles, labels = grid[0, 0].get_legend_handles_labels()
    top = 1 - 0.02 / fig.get_size_inches()[1]
    fig.legend(
        handles, labels, loc="upper left", bbox_to_anchor=(0.5 / style.WIDTH - 0.01, top), ncols=4, columnspacing=1.6
    )
    style.caption(fig, words)
    return fig, pd.concat(rows, ignore_index=True)


def _panel(axes, block: Block, method: str, study: Study) -> pd.DataFrame:
    frame = reading.steps(block, method, study, COLUMNS)
    size = reading.config(block.methods[method][0], study).get("train", {}).get("batch_size")
    if not size:
        run = block.methods[method][0].run
        raise UserError(
            f"{run}/config.yaml has no train.batch_size; delete {run}/summary.json and give `{study.command}` again"
        )
    mean = frame.groupby("step")[COLUMNS].mean()
    bottom = 0.0
    for part, (title, colour) in style.PARTS.items():
        axes.bar(mean.index, mean[part], width=1.0, bottom=bottom, color=colour, label=title, linewidth=0)
        bottom = bottom + mean[part]
    axes.axhline(size, color="#CC0000", linewidth=1.4, label="batch size $B$")
    shares = "  ".join(f"$X_{p[1]}$ {mean[p].mean() / size:.0%}" for p in style.PARTS) + f"  of $B$ = {size}"
    axes.set_title(common.plain_title(block, method), loc="left", fontweight="bold", pad=15)
    axes.text(0, 1.03, shares, transform=axes.transAxes, fontsize=7.5)
    common.tidy_steps(axes, int(mean.index[-1]))
    axes.set_xlim(mean.index[0] - 0.5, mean.index[-1] + 0.5)
    axes.set_ylim(0, max(size, bottom.max()) * 1.06)
    axes.set_xlabel("training step")
    axes.grid(axis="x", visible=False)
    return frame.assign(task=block.task, model=block.model, method=method, batch_size=size)
