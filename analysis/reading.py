"""Run directories as arrays. Every problem with a file becomes one sentence that names the run and the cure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis.study import Base, Block, StudyFile, StudyRun
from bapo.errors import UserError, unknown
from bapo.evaluation.scores import pass_at_k
from bapo.store.columns import EVALUATION, TABLES
from bapo.store.files import CONFIG, STEPS, SUMMARY, read_table, verify_files
from bapo.validate import parse_yaml

#: the sections of a configuration that determine the base model, and their options that differ within a kind of base
MAKES, DRAWN = ("task", "data", "model", "base"), {"model": ("name", "title"), "base": ("seed",)}


class NotRecorded(UserError):
    """Raised for intact runs that lack a quantity; the message names it."""


@dataclass(frozen=True)
class Outcomes:
    """Evaluations of a method's seeds. problems: ids [n], in order; correct, parsed: 0/1 [S, n, K]."""

    problems: tuple[str, ...]
    correct: np.ndarray
    parsed: np.ndarray

    @property
    def samples(self) -> int:
        return self.correct.shape[-1]

    @cached_property
    def accuracy(self) -> np.ndarray:
        """Return the mean of each problem's samples [S, n]."""
        return self.correct.mean(axis=2)

    def pass_at(self, k: int) -> np.ndarray:
        """Return the chance that one of k samples is correct [S, n]; NaN where there are fewer samples."""
        if k > self.samples:
            return np.full(self.correct.shape[:2], np.nan)
        chances = [pass_at_k(correct, self.samples, k) for correct in range(self.samples + 1)]
        return np.array(chances)[self.correct.sum(axis=2, dtype=int)]


@dataclass(frozen=True)
class Curve:
    """A benchmark at the kept checkpoints of a method's seeds.

    steps: [T], 0 for the model that a run began with; problems: ids [n], in order; correct: of ``samples``, [S, T, n].
    """

    steps: tuple[int, ...]
    problems: tuple[str, ...]
    correct: np.ndarray
    samples: int

    @property
    def accuracy(self) -> np.ndarray:
        return self.correct / self.samples


def short_of_budget(cells: Sequence[StudyRun], study: StudyFile) -> list[int]:
    """Return the seeds of the runs that ended at their limit of steps before their budget (``train.budget``) was used.

    A run whose summary says nothing of a budget is not listed. Raises UserError where a run is not finished.
    """
    return [c.seed for c in cells if summary(c.run, study).get("budget", {}).get("reached") is False]


#: how many unfinished runs an error names
SHOWN = 5


def require_runs(study: StudyFile, files: Sequence[str] = (SUMMARY,)) -> None:
    """Raise UserError naming the first runs of the study without these files and the command that makes them."""
    missing = [str(c.run) for c in study.cells if any(not (c.run / name).exists() for name in files)]
    if missing:
        first = ", ".join(missing[:SHOWN]) + ", ..." * (len(missing) > SHOWN)
        raise UserError(
            f"{len(missing)} of the {len(study.cells)} runs that are shown are not finished: {first}; "
            f"make what is missing with `{study.command}`"
        )


def summary(folder: Path, study: StudyFile) -> dict[str, Any]:
    """Return the verified summary of a finished folder. Raises UserError naming the folder and the cure."""
    if study.chosen and folder.name == "eval":
        raise UserError(f"{folder}: study {study.name} evaluates nothing; take a study that does")
    if not (folder / SUMMARY).exists():
        raise UserError(f"{folder}: not finished ({SUMMARY} is missing); make it with `{study.command}`")
    return verify_files(folder)


def table(cell: StudyRun | Base, name: str, study: StudyFile, columns: Sequence[str] | None = None) -> pd.DataFrame:
    """Return one table of a run, by default with all its columns.

    name: the table's file, such as steps.parquet; study: whose command an error names. Raises UserError where the run
    is unfinished or damaged, or no run has such a table; NotRecorded where this one has none; for a column both as
    :func:`select`.
    """
    summary(cell.run, study)
    path = cell.run / name
    if not path.exists():
        if "/" not in name and name not in TABLES:  # eval/ and curve/ have a table for each benchmark
            raise UserError(unknown(str(cell.run), f"no table '{name}'", name, sorted({*TABLES} - {EVALUATION})))
        raise NotRecorded(f"{path} does not exist")
    return select(read_table(path), columns, cell.run, name, study) if columns else read_table(path)


def select(frame: pd.DataFrame, columns: Sequence[str], run: Path, name: str, study: StudyFile) -> pd.DataFrame:
    """Return these columns of the table ``name`` of a run.

    Raises NotRecorded where it lacks one, and UserError where all runs of the study do and the suite knows none of this
    name: it is misspelt, and what is made of it would be left out without a word.
    """
    for column in columns:
        if column not in frame:
            of_table = TABLES.get(EVALUATION if name.startswith("eval/") else name, ())
            known = {each.replace("_xN", f"_x{i}") for each in of_table for i in (1, 2, 3)}
            if column not in known and not study.missing:
                tables = [cell.run / name for cell in study.cells]
                known.update(*(read_table(table).columns for table in tables if table.exists()))
                if column not in known:
                    close = [f"; did you mean '{each}'?" for each in get_close_matches(column, sorted(known), 1)]
                    raise UserError(f"{run / name}: no run of the study has a column '{column}'{''.join(close)}")
            raise NotRecorded(f"{run / name} has no column '{column}'")
    return frame[list(columns)]


def config(cell: StudyRun) -> dict[str, Any]:
    """Return the resolved configuration of a run; {} where it has none. Raises UserError where it is damaged."""
    path = cell.run / CONFIG
    return parse_yaml(path) if path.exists() else {}


def batch_size(cell: StudyRun) -> int:
    """Return B of a run's configuration. Raises NotRecorded where it has none."""
    size: int | None = config(cell).get("train", {}).get("batch_size")
    if size is None:
        raise NotRecorded(f"{cell.run / CONFIG} has no train.batch_size")
    return size


def kind_of_base(block: Block) -> str:
    """Return what makes a block's base model but for its seed; "" where the runs do not say.

    An option without a value is no option: a run of an earlier version may not have it.
    """
    sections = config(next(iter(block.methods.values()))[0])
    if any(not isinstance(sections.get(key), dict) for key in MAKES):
        return ""
    kind = {
        key: {k: v for k, v in sections[key].items() if v is not None and k not in DRAWN.get(key, ())} for key in MAKES
    }
    return json.dumps(kind, sort_keys=True)


def kinds(study: StudyFile, only_known: bool = False) -> dict[str, list[Block]]:
    """Return the blocks that have runs, by task and kind of base model.

    only_known: leave out the blocks whose runs do not say of which kind their base is.
    """
    blocks: dict[str, list[Block]] = {}
    for block in (block for block in study.blocks if block.methods):
        kind = kind_of_base(block)
        if kind or not only_known:
            blocks.setdefault(f"{block.task} {kind or block.model}", []).append(block)
    return blocks


def rectangles(
    frame: pd.DataFrame, rows: str, columns: str, values: Sequence[str], path: Path, study: StudyFile
) -> list[pd.DataFrame]:
    """Return each of some columns of a long table as a rectangle.

    Args:
        frame: the table.
        rows: the column whose values name the rectangles' rows.
        columns: the column whose values name their columns.
        values: the columns that fill them.
        path: the table's file, for errors.
        study: whose command an error names.

    Raises UserError where the table is empty, or a cell is missing or doubled.
    """
    (row_of, names), (column_of, others) = (pd.factorize(frame[name], sort=True) for name in (rows, columns))
    shape, cell_of = (len(names), len(others)), row_of * len(others) + column_of
    order = np.argsort(cell_of)  # pivot takes twice as long
    once = np.array_equal(cell_of[order], np.arange(len(names) * len(others)))
    if frame.empty or not once or frame[list(values)].isna().any(axis=None):
        raise _damaged(path.parent, f"{path}: every {rows} must be there with every {columns} once", study)
    axes = pd.Index(names, name=rows), pd.Index(others, name=columns)
    return [pd.DataFrame(frame[name].to_numpy()[order].reshape(shape), *axes) for name in values]


def evaluations(cells: Sequence[StudyRun | Base], benchmark: str, study: StudyFile) -> Outcomes:
    """Return the outcomes of a method's seeds on one benchmark.

    Raises UserError where samples are missing or doubled, or seeds have other problems or numbers of samples.
    """
    read = []
    for path, frame in _tables(cells, f"eval/{benchmark}", ["problem_id", "sample", "correct", "parsed"], study):
        wide = rectangles(frame, "problem_id", "sample", ("correct", "parsed"), path, study)
        read.append(Outcomes(tuple(map(str, wide[0].index)), *(w.to_numpy(np.uint8) for w in wide)))
    _require_alike(cells, [(o.problems, o.samples) for o in read], f"eval/{benchmark}.parquet", study)
    return Outcomes(read[0].problems, *(np.stack([getattr(o, name) for o in read]) for name in ("correct", "parsed")))


def curves(cells: Sequence[StudyRun], benchmark: str, study: StudyFile) -> Curve:
    """Return the curves of a method's seeds on one benchmark, at the steps of :func:`at_common_steps`.

    Raises UserError where a problem lacks a step, or seeds have other problems or hardly a step in common.
    """
    read, samples = [], set[int]()
    for path, frame in _tables(cells, f"curve/{benchmark}", ["step", "problem_id", "correct", "samples"], study):
        read += rectangles(frame, "step", "problem_id", ["correct"], path, study)
        samples |= {*frame["samples"]}
    _require_alike(cells, [tuple(f.columns) for f in read], f"curve/{benchmark}.parquet", study)
    frames = at_common_steps(read)
    steps = tuple(map(int, frames[0].index))
    if len(steps) < 2 or len(samples) > 1:
        folder = cells[0].run / "curve"
        raise _damaged(folder, f"{folder}: the seeds have other samples, or fewer than two steps in common", study)
    correct = np.stack([f.to_numpy(np.int64) for f in frames])
    return Curve(steps, tuple(map(str, read[0].columns)), correct, int(samples.pop()))


def at_common_steps(frames: Sequence[pd.DataFrame]) -> list[pd.DataFrame]:
    """Return frames with a row a step, one a seed, at the steps that all have.

    The last step is common to all and has the latest one's number: runs with a budget of rollouts or operations end at
    different steps.
    """
    last = max(frame.index.max() for frame in frames)
    named = [frame.rename(index={frame.index.max(): last}) for frame in frames]
    common = sorted(set.intersection(*(set(frame.index) for frame in named)))
    return [frame.loc[common] for frame in named]


def _tables(
    cells: Sequence[StudyRun | Base], name: str, columns: list[str], study: StudyFile
) -> Iterator[tuple[Path, pd.DataFrame]]:
    """Yield the place and the content of one table beside each run. name: FOLDER/BENCHMARK."""
    for path in (cell.run / f"{name}.parquet" for cell in cells):
        summary(path.parent, study)
        yield path, read_table(path, columns=columns)


def _require_alike(cells: Sequence[StudyRun | Base], described: Sequence[object], name: str, study: StudyFile) -> None:
    for cell, description in zip(cells, described, strict=True):
        if description != described[0]:
            path = cell.run / name
            raise _damaged(path.parent, f"{path}: its problems or samples are not those of {cells[0].run}", study)


def steps(block: Block, method: str, study: StudyFile, columns: Sequence[str]) -> pd.DataFrame:
    """Return ``columns`` of steps.parquet of all seeds of a method in a block, behind the columns seed and step.

    Raises UserError where a run is not finished, NotRecorded where one lacks a column.
    """
    parts = []
    for cell in block.methods[method]:
        frame = table(cell, STEPS, study, ["step", *columns])
        parts.append(frame.assign(seed=cell.seed)[["seed", "step", *columns]])
    return pd.concat(parts, ignore_index=True)


def _damaged(folder: Path, what: str, study: StudyFile) -> UserError:
    """Return the error that says what is wrong in a finished folder and how it is made anew."""
    return UserError(f"{what}; delete {folder / SUMMARY} and run `{study.command}` again")
