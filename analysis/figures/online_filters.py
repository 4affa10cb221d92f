"""The filter of the fresh groups: range, Gaussian and uniform, in performance and gradient norm (Figure 10)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from analysis import probes, reading, style
from analysis.figures import common, final_accuracy
from analysis.study import Block, Study

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SHOWN = ("bapo+gaussian", "bapo+uniform", "bapo")
PANEL, GAP, TOP = 2.0, 1.0, 0.55


def figure10_online_filters(study: Study) -> tuple[Figure, pd.DataFrame]:
    """Draw a row a model: accuracy of held-out problems along training, gradient norm, test accuracy at the end."""
    import pandas as pd

    study = common.part(study, methods=SHOWN)
    cells = [(b, m) for b in study.blocks for m in b.methods]
    held_out = {(b, m): _held_out(b, m, study) for b, m in cells}
    norms = {(b, m): common.series(reading.steps(b, m, study, ["gradient_norm"]), "gradient_norm") for b, m in cells}
    accuracies = {b: final_accuracy.accuracies(b, study) for b in study.blocks}
    window = common.window_of(max(len(steps) for steps, _ in norms.values()))
    caption = (
        f"Left: share of correct answers to held-out problems, {held_out[cells[0]][2]} samples each; star: BAPO's best "
        "step by that measure, which flatters it, as the best of several always does. Middle: norm of the gradient"
        f"{common.averaged(window)}. Mean over {common.seed_words(study.blocks)}, band: lowest to highest seed. "
        f"{final_accuracy.WORDS if any(accuracies.values()) else ''}{study.note}"
    )
    shape, widths = (len(study.blocks), 3), (1, 1, 0.9)
    fig, grid = style.panels(caption, shape, PANEL, GAP, TOP, left=0.5, wspace=0.22, width_ratios=widths)
    rows = []
    for line, block in zip(grid, study.blocks, strict=True):
        rows += _row(line, block, held_out, norms, window)
        labels = {m: _name(block, m) for m in block.methods}
        final_accuracy.panel(line[2], block, accuracies[block], labels)
        line[2].set_xlim(*final_accuracy.limits(accuracies[block]))
        rows.append(final_accuracy.frame(block, accuracies[block]))
        style.row_title(line[0], block.title, 0.22)
    return fig, pd.concat(rows, ignore_index=True).astype({"seed": "Int64", "step": "Int64"})


def _name(block: Block, method: str) -> str:
    return "range filter (BAPO)" if method == "bapo" else common.short(block.plain_title(method))


def _held_out(block: Block, method: str, study: Study) -> tuple[np.ndarray, np.ndarray, int]:
    """(steps [T], accuracy [S, T], samples a problem) of the probed problems that no run trains on."""
    found = probes.read(block, method, study, "probe")
    accuracy = [correct.mean(axis=1) / found.samples for correct in found.correct]
    return np.array(found.steps), np.stack(accuracy), found.samples


def _row(line: list[Axes], block: Block, held_out: dict, norms: dict, window: int) -> list[pd.DataFrame]:
    rows = []
    for i, m in enumerate(block.methods):
        steps, values, _ = held_out[block, m]
        common.curve(line[0], m, i, steps, 100 * values)
        colour = style.method_line(m, i)["color"]
        line[0].plot(steps, 100 * values.mean(axis=0), "o", color=colour, markersize=3, zorder=4)
        if m == "bapo":
            best = int(values.mean(axis=0).argmax())
            line[0].plot(
                steps[best],
                100 * values.mean(axis=0)[best],
                "*",
                color=colour,
                markersize=11,
                markeredgecolor="white",
                zorder=6,
            )
        columns = {"value": values, "smoothed": values}
        rows.append(common.by_seed(block, m, steps, columns, measure="held_out_accuracy"))
        steps, values = norms[block, m]
        smoothed = style.smooth(values, window)
        common.curve(line[1], m, i, steps, smoothed)
        columns = {"value": values, "smoothed": smoothed}
        rows.append(common.by_seed(block, m, steps, columns, measure="gradient_norm"))
    line[0].set_title("held-out problems, correct (%)", fontsize=8, loc="left", pad=4)
    line[1].set_title("gradient norm", fontsize=8, loc="left", pad=4)
    for axes in line[:2]:
        common.tidy_steps(axes, max(int(norms[block, m][0][-1]) for m in block.methods))
        axes.set_xlabel("training step")
    line[0].set_xlim(-0.02 * line[0].get_xlim()[1], 1.03 * line[0].get_xlim()[1])
    line[1].set_ylim(0, None)
    return rows
