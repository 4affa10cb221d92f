"""Imported results (``bapo import``) beside one's own: reward curves in one figure, accuracies in one table."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from analysis.claims.view import merged, pruned
from analysis.products import IMPORTED, MAIN, imported
from analysis.report.files import Figure, figure_list
from analysis.report.provenance import Run
from analysis.study import Study, load
from bapo.errors import UserError
from bapo.store.files import MANIFEST, STEPS, SUMMARY, read_json, read_table

#: the figure of rewards over the steps, which needs no evaluation
CURVES = "figure4_training_curves"
#: benchmark -> what an imported summary says of it
Scores = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Source:
    """One imported file. size: its steps, or benchmarks; refused: records; named: the first of these, in words."""

    task: str
    model: str
    method: str
    seed: str
    file: str
    format: str
    size: str
    refused: int
    named: tuple[str, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Row:
    """Accuracies of one method, own or imported. cells: benchmark -> (percent, what is behind it in words)."""

    model: str
    method: str
    origin: str
    cells: dict[str, tuple[float, str]]


@dataclass(frozen=True)
class Table:
    """Every evaluated method of a task; its benchmarks are the columns."""

    task: str
    benchmarks: tuple[str, ...]
    rows: list[Row]


@dataclass
class Others:
    sources: list[Source] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    figures: list[Figure] = field(default_factory=list)


def collect(results: Path, own: Iterable[Run]) -> Others:
    """Return what lies in the imported folder beside ``results``, with own runs of the same tasks; empty without one.

    Raises UserError where a file of an import is damaged.
    """
    found = Others()
    scores: dict[str, dict[tuple[str, str], list[Scores]]] = {}
    for summary in imported(results):
        folder = summary.parent
        evaluated = folder.name == "eval"
        task, model, method, seed = (folder.parent if evaluated else folder).parts[-4:]
        place = (task, model, method, seed.removeprefix("seed"))
        content, manifest = read_json(summary), read_json(folder / MANIFEST)
        if evaluated:
            count = f"{len(content['benchmarks'])} benchmarks"
            found.sources += [_source(place, entry, count, ()) for entry in manifest["imported"]]
            scores.setdefault(task, {}).setdefault((model, method), []).append(content["benchmarks"])
        else:
            notes = tuple(manifest.get("notes", ()))
            found.sources.append(_source(place, manifest["imported"], f"{content['steps']} steps", notes))
    for task, listed in scores.items():
        both = [*_own_rows(task, own), *(_imported_row(*names, seeds) for names, seeds in listed.items())]
        found.tables.append(Table(task, tuple(dict.fromkeys(name for row in both for name in row.cells)), both))
    found.figures = _curves(results) if any(s.size.endswith("steps") for s in found.sources) else []
    return found


def _source(place: tuple[str, ...], entry: Mapping[str, Any], size: str, notes: tuple[str, ...]) -> Source:
    named = tuple(f"{r['place']}: {r['reason']}" for r in entry.get("refused_first", ()))
    what = str(entry.get("file") or f"batches of {entry.get('algorithm')} from {entry.get('run')}")
    return Source(*place, what, str(entry.get("format", "what-if")), size, int(entry.get("refused", 0)), named, notes)


def _imported_row(model: str, method: str, seeds: Sequence[Scores]) -> Row:
    """Return one row of the evaluations of a method's seeds, their mean where a benchmark has several."""
    cells = {}
    for name in dict.fromkeys(name for benchmarks in seeds for name in benchmarks):
        scores = [benchmarks[name] for benchmarks in seeds if name in benchmarks]
        error, sizes = scores[0].get("standard_error"), {s.get("problems") for s in scores} - {None}
        words = [*dict.fromkeys(s["metric"] for s in scores), *(f"{size:,} problems" for size in sorted(sizes))]
        if len(scores) > 1:
            words.append(f"{len(scores)} seeds")
        elif error is not None:
            words.append(f"standard error {100 * error:.1f}")
        cells[name] = (100 * fmean(s["accuracy"] for s in scores), ", ".join(words))
    return Row(model, method, "imported", cells)


def _own_rows(task: str, own: Iterable[Run]) -> list[Row]:
    """Return one row a model and method of own runs, the mean over the seeds that have been evaluated."""
    groups: dict[tuple[str, str], list[Run]] = {}
    for run in own:
        if run.task == task and run.accuracy:
            groups.setdefault((run.model, run.method), []).append(run)
    rows = []
    for (model, method), runs in groups.items():
        names = dict.fromkeys(name for run in runs for name in run.accuracy)
        count = "" if runs[0].seed is None else f"{len(runs)} seed{'s' * (len(runs) > 1)}"
        cells = {n: (100 * fmean(r.accuracy[n] for r in runs if n in r.accuracy), count) for n in names}
        rows.append(Row(model, method, "own", cells))
    return rows


def _curves(results: Path) -> list[Figure]:
    """Draw the rewards of all imported runs and of own runs of the same tasks, a panel a task and model."""
    from analysis.figures import draw

    theirs = [load(path) for path in sorted((results.parent / IMPORTED).glob("*/study.json"))]
    tasks = {block.task for study in theirs for block in study.blocks}
    files = sorted((results / "studies").glob("*.json"))
    ours = [_finished(load(path), tasks) for path in files if path.stem == MAIN]
    study = merged([s for s in (*ours, *theirs) if s.blocks])
    shown = [block for block in study.blocks if all(_has_rewards(c.run) for cs in block.methods.values() for c in cs)]
    if not shown:
        return []
    with tempfile.TemporaryDirectory() as folder:
        draw(CURVES, replace(study, blocks=tuple(shown)), Path(folder), None)
        (figure,) = figure_list(Path(folder))
    return [replace(figure, key="imported_curves", title="Training rewards: own runs and imported ones")]


def _finished(study: Study, tasks: set[str]) -> Study:
    blocks = (pruned(block, evaluated=False) for block in study.blocks if block.task in tasks)
    return replace(study, blocks=tuple(b for b in blocks if b.methods))


def _has_rewards(run: Path) -> bool:
    """Return whether a run's table of steps has rewards; an import of an evaluation alone has none."""
    try:
        return (run / SUMMARY).exists() and bool(read_table(run / STEPS, columns=["reward_mean"]).notna().any().all())
    except UserError:
        return False
