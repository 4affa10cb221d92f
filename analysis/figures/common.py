"""What several figures share: which runs, series over seeds, words about seeds, and the titles of methods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from analysis import style, text
from analysis.reading import require_runs
from analysis.study import Block, Study

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def part(study: Study, tasks: Sequence[str] = (), methods: Sequence[str] = ()) -> Study:
    """Return the runs of a study that a figure shows: these tasks and methods, of which a study may lack some.

    A study with none of the tasks, or none of the methods, is one that the paper does not know (a log of another
    project): all of it is shown. Raises UserError naming every run that is not finished and the command that makes it.
    """
    blocks = [b for b in study.blocks if b.task in tasks] or list(study.blocks)
    narrowed = [replace(b, methods={m: b.methods[m] for m in b.methods if m in methods}) for b in blocks]
    narrower = replace(study, blocks=tuple([b for b in narrowed if b.methods] or blocks))
    require_runs(narrower)
    return narrower


def series(frame: pd.DataFrame, column: str) -> tuple[np.ndarray, np.ndarray]:
    """(steps [T], values [S, T]) of one method's rows; steps that not every seed has are left out."""
    wide = frame.pivot(index="seed", columns="step", values=column).dropna(axis=1)
    return wide.columns.to_numpy(), wide.to_numpy(dtype=np.float64)


def by_seed(
    block: Block, method: str, steps: np.ndarray, columns: Mapping[str, np.ndarray | str], **names: str
) -> pd.DataFrame:
    """Return a row for each seed and step. columns: [S, T], or one word for all; names: columns before the seed."""
    import pandas as pd

    first = {**block.keys(method), **names}
    parts = []
    for i, cell in enumerate(block.methods[method]):
        values = {name: c if isinstance(c, str) else c[i] for name, c in columns.items()}
        parts.append(pd.DataFrame({**first, "seed": cell.seed, "step": steps, **values}))
    return pd.concat(parts, ignore_index=True)


def window_of(steps: int) -> int:
    """Return an odd smoothing window of about a tenth of the run."""
    return max(1, round(steps / 10) | 1)


def averaged(window: int) -> str:
    """Return the words for a caption."""
    return f", centred moving average over {window} steps" if window > 1 else ""


def seed_words(blocks: Sequence[Block], methods: Sequence[str] | None = None) -> str:
    """ "3 seeds", "1 seed" or "3 to 5 seeds" """
    counts = [len(cells) for b in blocks for m, cells in b.methods.items() if methods is None or m in methods]
    return text.counted(counts, "seed")


def tidy_steps(axes: Axes, last: int) -> None:
    """Give the step axis a range from 0 to the last step and few whole-numbered ticks."""
    from matplotlib.ticker import MaxNLocator

    axes.set_xlim(0, last)
    axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))


def same_scale(panels: Sequence[Axes]) -> None:
    """Give panels the range of the value axis that holds all of them."""
    low, high = min(a.get_ylim()[0] for a in panels), max(a.get_ylim()[1] for a in panels)
    for axes in panels:
        axes.set_ylim(low, high)


def short(title: str) -> str:
    """Return a variant of BAPO by what it changes: "BAPO, v = 10" -> "v = 10", "BAPO without X2" -> "without X2"."""
    for prefix in ("BAPO, ", "BAPO "):
        if title.startswith(prefix):
            return title.removeprefix(prefix).strip("()")
    return title


def curve(axes: Axes, method: str, index: int, steps: np.ndarray, values: np.ndarray, label: str = "") -> None:
    """Draw the mean over seeds of values [S, T] in the method's look, and a band from lowest to highest seed."""
    line = style.method_line(method, index)
    if len(steps) and len(values) > 1:
        low, high = values.min(axis=0), values.max(axis=0)
        axes.fill_between(steps, low, high, color=line["color"], alpha=0.15, linewidth=0)
    axes.plot(steps, values.mean(axis=0), zorder=4 if method == "bapo" else 3, label=label, **line)


def legend_above(fig: Figure, axes: Sequence[Axes], left: float = 0.5, ncols: int = 5) -> None:
    """Draw one legend for the whole figure along its upper edge, each label once; left: inches."""
    width, height = fig.get_size_inches()
    handles = {label: handle for a in axes for handle, label in zip(*a.get_legend_handles_labels(), strict=True)}
    fig.legend(
        list(handles.values()),
        list(handles),
        loc="upper left",
        bbox_to_anchor=((left - 0.07) / width, 1 - 0.02 / height),
        ncols=ncols,
        columnspacing=1.6,
    )
