"""Test accuracy at the end of training as dots with intervals: the panel beside the curves of Figures 6 and 10."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from analysis import reading, style
from analysis.statistics import SeedMean, mean_over_seeds
from analysis.study import Base, Block, Cell, Study
from bapo.store.files import SUMMARY

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

WORDS = (
    "Test accuracy: the last checkpoint, mean over benchmarks and seeds, small dots: each seed, 95% interval for new "
    "problems and new seeds; dotted: the base model. "
)


def accuracies(block: Block, study: Study) -> dict[str, SeedMean]:
    """Return the average over benchmarks of "base" and of each method all of whose runs have been evaluated."""
    groups: dict[str, tuple[Cell | Base, ...]] = dict(block.methods)
    if block.base:
        groups["base"] = (block.base,)
    return {
        name: mean_over_seeds(
            *(reading.evaluations(cells, benchmark, study).correct for benchmark, _ in block.benchmarks)
        )
        for name, cells in groups.items()
        if all((c.run / "eval" / SUMMARY).exists() for c in cells)
    }


def frame(block: Block, accuracies: Mapping[str, SeedMean]) -> pd.DataFrame:
    """Return a row a seed, and one a method with the interval, whose seed is empty. Fractions."""
    import pandas as pd

    rows = []
    for name, accuracy in accuracies.items():
        same = {**block.keys(name), "measure": "test_accuracy"}
        if name != "base":
            seeds = [c.seed for c in block.methods[name]]
            rows += [same | {"seed": s, "value": v} for s, v in zip(seeds, accuracy.seed_means, strict=True)]
        estimate = accuracy.tested
        rows.append(same | {"value": estimate.mean, "low": estimate.low, "high": estimate.high})
    return pd.DataFrame(rows)


def panel(axes: Axes, block: Block, accuracies: Mapping[str, SeedMean], labels: Mapping[str, str]) -> None:
    """Draw text and a dot for each method of ``labels``, from the top; the text is also the curves' legend."""
    order, beside = list(block.methods), axes.get_yaxis_transform()
    for row, (method, label) in enumerate(labels.items()):
        line = style.method_line(method, order.index(method))
        colour = line["color"]
        axes.plot([0.0, 0.085], [-row - 0.28] * 2, transform=beside, zorder=3, **line)
        axes.text(0.11, -row - 0.28, label, transform=beside, fontsize=7, color=colour, va="center")
        if method not in accuracies:
            look = {"fontsize": 6.5, "va": "center", "ha": "right", "color": "#666666"}
            axes.text(0.99, -row - 0.66, "not evaluated", transform=beside, **look)
            continue
        estimate, y = accuracies[method].tested, -row - 0.66
        axes.plot([100 * estimate.low, 100 * estimate.high], [y, y], color=colour, linewidth=1.2)
        seeds = np.multiply(100, accuracies[method].seed_means)
        axes.plot(seeds, [y - 0.12] * len(seeds), ".", color=colour, markersize=2.5)
        axes.plot([100 * estimate.mean], [y], "o", color=colour, markersize=4)
    if "base" in accuracies:  # beside each dot, not through the text
        ends = np.arange(len(labels))
        base, look = 100 * accuracies["base"].mean, {"color": "#444444", "linewidth": 1.1, "linestyle": (0, (1, 1))}
        axes.vlines([base] * len(labels), -ends - 0.95, -ends - 0.48, **look)
    axes.set_ylim(-len(labels), 0)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.grid(axis="y", visible=False)
    axes.set_xlabel("test accuracy (%)")


def limits(accuracies: Mapping[str, SeedMean]) -> tuple[float, float]:
    """Return the range in percent that shows every interval, for panels that are compared."""
    values = [100 * x for name, a in accuracies.items() for x in _ends(name, a)]
    if not values:
        return 0.0, 100.0
    margin = 0.06 * (max(values) - min(values)) or 1.0
    return min(values) - margin, max(values) + margin


def _ends(name: str, accuracy: SeedMean) -> list[float]:
    ends = [] if name == "base" else [accuracy.tested.low, accuracy.tested.high]
    return [x for x in (*ends, *accuracy.seed_means) if np.isfinite(x)]
