"""What figures share before anything is drawn: which runs they show, their series as tidy rows, words about them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from analysis import reading, text
from analysis.study import Block, Study

if TYPE_CHECKING:
    import pandas as pd


def part(study: Study, tasks: Sequence[str] = (), methods: Sequence[str] = ()) -> Study:
    """Return the runs of a study that a figure shows: these tasks and methods, of which a study may lack some.

    Of a study with none of the tasks, or none of the methods (a log of another project), all is shown. Raises UserError
    naming every run that is not finished and the command that makes it.
    """
    blocks = [b for b in study.blocks if b.task in tasks] or list(study.blocks)
    narrowed = [replace(b, methods={m: b.methods[m] for m in b.methods if m in methods}) for b in blocks]
    narrower = replace(study, blocks=tuple([b for b in narrowed if b.methods] or blocks))
    reading.require_runs(narrower)
    return narrower


def series(frame: pd.DataFrame, column: str) -> tuple[np.ndarray, np.ndarray]:
    """Return steps [T] and values [S, T] of one method's rows; steps that not every seed has are left out."""
    wide = frame.pivot(index="seed", columns="step", values=column).dropna(axis=1)
    return wide.columns.to_numpy(), wide.to_numpy(dtype=np.float64)


def by_seed(
    block: Block, method: str, steps: np.ndarray, columns: Mapping[str, np.ndarray], **names: str
) -> pd.DataFrame:
    """Return a row for each seed and step. columns: [S, T] each; names: columns before the seed."""
    import pandas as pd

    first = {**block.keys(method), **names}
    parts = [
        pd.DataFrame({**first, "seed": cell.seed, "step": steps, **{name: c[i] for name, c in columns.items()}})
        for i, cell in enumerate(block.methods[method])
    ]
    return pd.concat(parts, ignore_index=True)


def smooth(values: np.ndarray, window: int) -> np.ndarray:
    """Centred moving average of [T] or [S, T] along the last axis; shorter at the ends, so that no step is lost."""
    values = np.asarray(values, dtype=np.float64)
    half = window // 2
    total = np.concatenate([np.zeros((*values.shape[:-1], 1)), np.cumsum(values, axis=-1)], axis=-1)
    t = np.arange(values.shape[-1])
    low, high = np.maximum(t - half, 0), np.minimum(t + half + 1, values.shape[-1])
    return (total[..., high] - total[..., low]) / (high - low)


def window_of(steps: int) -> int:
    """Return an odd smoothing window of about a tenth of the run."""
    return max(1, round(steps / 10) | 1)


def smoothed(study: Study, measures: Sequence[str]) -> tuple[pd.DataFrame, int]:
    """Return columns of steps.parquet as rows (measure, seed, step, value, smoothed), and the window of smoothing."""
    import pandas as pd

    read = {
        (b, m, column): series(reading.steps(b, m, study, [column]), column)
        for b in study.blocks
        for m in b.methods
        for column in measures
    }
    window = window_of(max(len(steps) for steps, _ in read.values()))
    rows = [
        by_seed(b, m, steps, {"value": values, "smoothed": smooth(values, window)}, measure=column)
        for (b, m, column), (steps, values) in read.items()
    ]
    return pd.concat(rows, ignore_index=True), window


def of(frame: pd.DataFrame, **chosen: object) -> pd.DataFrame:
    """Return the rows of a frame whose columns have these values."""
    for column, value in chosen.items():
        frame = frame[frame[column] == value]
    return frame


def of_block(frame: pd.DataFrame, block: Block, **chosen: object) -> pd.DataFrame:
    """Return the rows of a block, as :func:`of`."""
    return of(frame, task=block.task, model=block.model, **chosen)


def wide(frame: pd.DataFrame, column: str) -> pd.DataFrame:
    """Return a row a step, a column a seed."""
    return frame.pivot(index="step", columns="seed", values=column)


def averaged(window: int) -> str:
    """Return the words for a caption."""
    return f", centred moving average over {window} steps" if window > 1 else ""


def seed_words(blocks: Sequence[Block], methods: Sequence[str] | None = None) -> str:
    """Return "3 seeds", "1 seed" or "3 to 5 seeds"."""
    counts = [len(cells) for b in blocks for m, cells in b.methods.items() if methods is None or m in methods]
    return text.counted(counts, "seed")


def short(title: str) -> str:
    """Return a variant of BAPO by what it changes: "BAPO, v = 10" -> "v = 10", "BAPO without X2" -> "without X2"."""
    for prefix in ("BAPO, ", "BAPO "):
        if title.startswith(prefix):
            return title.removeprefix(prefix).strip("()")
    return title
