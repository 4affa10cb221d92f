"""Where each training prompt's accuracy went: initial against current bin at four steps (the paper's Figure 15)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from analysis import probes, style
from analysis.figures import common, probed
from analysis.study import Block, Study

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

STEPS = 4
PANEL, GAP = 1.62, 0.95
TOP = 0.62
WITHIN, ACROSS = "within a run", "across seeds"  # where rows and columns come from
FAIR = (
    "Row: a prompt's bin in ANOTHER seed's probe of the base (step 0), column: its bin in the seed's own probe at the "
    "step; mean number of prompts over the ordered pairs of seeds, rounded (below one half: empty). First matrix of a "
    "row: the base against itself; it is unchanged, so whatever lies beside the outlined diagonal there is sampling, "
    "and the other matrices are to be compared with it. The paper takes both bins from one run (in the CSV file: "
    "within a run), where an unchanged base can stay wholly on the diagonal, as the probes of one run can share their "
    "random numbers."
)
OWN = "Row: a prompt's bin at step 0, column: its bin at the step, both in one run, mean number of prompts over seeds."


def figure15_migration(study: Study, method: str | None = None) -> tuple[Figure, pd.DataFrame]:
    """Draw a row a task and model, a matrix a step: prompts by bin in the base (row) and at the step (column).

    The base's bin is another seed's, so that the first matrix is the unchanged base against itself; with one seed both
    bins come from the same run, as in the paper.

    method: by default BAPO, or the first method of a study without it.
    """
    import pandas as pd

    if method is None:
        methods = [m for b in study.blocks for m in b.methods]
        method = "bapo" if "bapo" in methods else methods[0]
    study.having(method)  # or a sentence that says which methods there are
    study = common.part(study, methods=[method])
    blocks = study.blocks
    data = [_read(b, method, study) for b in blocks]
    samples = data[0]["samples"]
    caption = (
        f"{blocks[0].plain_title(method)}: training prompts by correct answers out of {samples}, before "
        f"training (row) and now (column), {common.seed_words(blocks, [method])}; colour: share of the row. Below the "
        "outlined diagonal (lower left): worse than before; above: better. "
    )
    if any(d["probes"].obstacle for d in data):
        caption += f"{OWN} "
    caption += probed.chance_words([(b.title, d["probes"]) for b, d in zip(blocks, data, strict=True)], FAIR)
    caption += study.note
    fig, grid = style.panels(caption, (len(data), STEPS), PANEL, GAP, TOP, left=0.55, right=0.68, wspace=0.08)
    for line, block, d in zip(grid, blocks, data, strict=True):
        for axes in line[len(d["counts"]) :]:
            axes.set_visible(False)
        for i, (axes, (step, counts)) in enumerate(zip(line, d["counts"].items(), strict=False)):
            image = _matrix(axes, _title(step, d), counts)
            if i:
                axes.tick_params(labelleft=False)
            else:
                axes.set_ylabel("initial bin" if d["probes"].obstacle else "bin, other seed's base", labelpad=2)
        style.row_title(line[0], f"{block.plain_title(method)}: {block.title}", 0.38)
    _bar(fig, grid, image)
    return fig, pd.concat([d["frame"] for d in data], ignore_index=True)


def _read(block: Block, method: str, study: Study) -> dict:
    import pandas as pd

    found = probes.read(block, method, study)
    steps, samples = probed.spaced(found.steps, STEPS), found.samples

    def matrix(initial: np.ndarray, current: np.ndarray) -> np.ndarray:
        return probes.migration(initial, current, samples)

    counts = {WITHIN: {step: found.within(step, matrix).mean(axis=0) for step in steps}}
    if not found.obstacle:
        counts[ACROSS] = {step: found.across(step, matrix).mean(axis=0) for step in steps}
    frame = pd.DataFrame(
        [
            {
                **block.keys(method),
                "compared": compared,
                "step": step,
                "initial": initial,
                "current": current,
                "samples": samples,
                "prompts": float(n),
                "share_below_diagonal": probes.degraded(table),
            }
            for compared, tables in counts.items()
            for step, table in tables.items()
            for (initial, current), n in np.ndenumerate(table)
        ]
    )
    return {"counts": counts.get(ACROSS, counts[WITHIN]), "samples": samples, "frame": frame, "probes": found}


def _title(step: int, d: dict) -> str:
    if step == 0:
        return "step 0 (base)" if d["probes"].obstacle else "unchanged base"
    return f"step {step}"


def _matrix(axes, title: str, counts: np.ndarray):
    from matplotlib.patches import Rectangle

    totals = counts.sum(axis=1, keepdims=True)
    share = np.divide(counts, totals, out=np.zeros(counts.shape), where=totals > 0)
    image = axes.imshow(share, cmap="Blues", vmin=0, vmax=1, aspect="auto")
    g = len(counts) - 1
    for i in range(g + 1):
        axes.add_patch(Rectangle((i - 0.5, i - 0.5), 1, 1, fill=False, edgecolor=style.VERMILLION, linewidth=0.6))
    for (row, column), n in np.ndenumerate(counts):
        if n >= 0.5:
            dark = share[row, column] > 0.55
            colour = "white" if dark else "#222222"
            axes.text(column, row, str(int(n + 0.5)), ha="center", va="center", fontsize=4.8, color=colour)
    ticks = np.arange(0, g + 1, 2 if g > 4 else 1)
    axes.set_xticks(ticks, [f"{t}/{g}" for t in ticks], fontsize=6.5)
    axes.set_yticks(ticks, [f"{t}/{g}" for t in ticks], fontsize=6.5)
    axes.tick_params(length=2, pad=2)
    axes.grid(visible=False)
    axes.set_xlabel("current bin", labelpad=2)
    axes.set_title(title, loc="left", fontweight="bold", pad=13)
    below = f"below diagonal: {probes.degraded(counts):.1%}"
    axes.text(0, 1.02, below, transform=axes.transAxes, fontsize=6.8, va="bottom")
    return image


def _bar(fig, grid, image) -> None:
    top, bottom = grid[0, 0].get_position(), grid[-1, 0].get_position()
    right = max(a.get_position().x1 for a in grid[:, -1])
    height = min(top.height, top.y1 - bottom.y0)
    axes = fig.add_axes((right + 0.012, top.y1 - height, 0.011, height))
    bar = fig.colorbar(image, cax=axes)
    bar.set_ticks([0, 0.5, 1], labels=["0", "0.5", "1"])
    bar.outline.set_visible(False)
    bar.ax.tick_params(length=0, labelsize=6.5)
    bar.set_label("share of the row", fontsize=6.5, labelpad=4)
