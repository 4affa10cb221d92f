"""What figures share before anything is drawn: which runs they show, their series as tidy rows, words about them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pandas as pd

from analysis import reading, style, text
from analysis.study import Block, StudyFile
from bapo.errors import UserError

#: columns that say whose series it is
RUN = ["task", "model", "method", "seed"]


def subset(study: StudyFile, tasks: Sequence[str] = (), methods: Sequence[str] = ()) -> StudyFile:
    """Return the runs of a study that a figure shows: these tasks and methods, of which a study may lack some.

    Of a study with none of the tasks, or none of the methods (a log of another project), all is shown. Raises UserError
    naming every run that is not finished and the command that makes it.
    """
    blocks = [b for b in study.blocks if b.task in tasks] or list(study.blocks)
    narrowed = [replace(b, methods={m: b.methods[m] for m in b.methods if m in methods}) for b in blocks]
    narrower = study.of([b for b in narrowed if b.methods] or blocks)
    reading.require_runs(narrower)
    return narrower


def recorded(study: StudyFile, measures: Sequence[str]) -> pd.DataFrame:
    """Return columns of steps.parquet as rows (task, model, method, seed, step, measure, value).

    Steps at which a seed lacks a measure are left out. Raises UserError where nothing is left.
    """
    parts = []
    for block in study.blocks:
        for method, cells in block.methods.items():
            read = reading.steps(block, method, study, measures)
            long = read.melt(["seed", "step"], var_name="measure").dropna().astype({"value": float})
            seeds = long.groupby(["measure", "step"])["seed"].transform("nunique")
            parts.append(long[seeds == len(cells)].assign(**block.keys(method)))
    frame = pd.concat(parts, ignore_index=True)
    if frame.empty:
        raise UserError(f"{study.name or 'the study'}: no run has recorded {' or '.join(measures)}")
    return frame


def smooth(values: pd.Series, window: int) -> pd.Series:
    """Return the centred moving average, over fewer steps at the ends to lose none. window: steps, an odd number."""
    return values.rolling(window, center=True, min_periods=1).mean()


def smoothed(study: StudyFile, measures: Sequence[str]) -> tuple[pd.DataFrame, str]:
    """Return :func:`recorded` with a column ``smoothed``, and for a caption how it is: over a tenth of the run."""
    frame = recorded(study, measures)
    series = frame.groupby([*RUN, "measure"])["value"]
    window = max(1, round(series.size().max() / 10) | 1)
    frame["smoothed"] = series.transform(smooth, window)
    return frame, f", centred moving average over {window} steps" if window > 1 else ""


def select(frame: pd.DataFrame, **values: object) -> pd.DataFrame:
    """Return the rows of a frame whose columns have these values."""
    for column, value in values.items():
        frame = frame[frame[column] == value]
    return frame


def of_block(frame: pd.DataFrame, block: Block, **values: object) -> pd.DataFrame:
    """Return the rows of a block, as :func:`select`."""
    return select(frame, task=block.task, model=block.model, **values)


def seed_words(blocks: Sequence[Block]) -> str:
    """Return "3 seeds", "1 seed" or "3 to 5 seeds"."""
    return text.counted([len(cells) for b in blocks for cells in b.methods.values()], "seed")


def caption(study: StudyFile, *keys: str, **fields: object) -> str:
    """Return sentences of ``words.yaml`` with the study's seeds, its note, and which panels have bands.

    A panel has a line a method, and may have the base's.
    """
    few = max(len(b.methods) for b in study.blocks) < style.BANDS
    band = "band" if few else f"band, in panels of at most {style.BANDS} lines"
    return " ".join(text.words(*keys, seeds=seed_words(study.blocks), note=study.note, band=band, **fields))
