"""The report of one sweep: ``python -m analysis robustness``. Optuna's plots, beside differences paired on problems.

Of its runs only the last probe of the held-out validation problems is read; no test problem is.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from pydantic import Field

from analysis import statistics, style, text
from analysis.page import Page, Table, heading
from analysis.statistics import Estimate
from bapo import validate
from bapo.errors import UserError
from bapo.store.files import PROBE, SUMMARY, read_json, read_table, verify_files, write_text
from bapo.validate import wrong

#: the state of a trial with a run of every seed; a trial in another state has a reason and no run
COMPLETE = "complete"
#: of a parameter with more different values than this, the lowest and the highest third of the trials are compared
MOST_VALUES = 5
HEADER = ("Parameter", "From", "To", "Change", "p Holm")
#: what a trial may have drawn of a parameter
Value = bool | int | float | str | None


@dataclass(frozen=True)
class _RunOfTrial:
    run: str


@dataclass(frozen=True)
class _Trial:
    number: int
    state: str
    drawn: Mapping[str, Value]
    seeds: Mapping[str, _RunOfTrial]
    value: float | None = None
    reason: str = ""


@dataclass(frozen=True)
class _Parameter:
    name: str
    title: str
    distribution: str
    choices: tuple[Value, ...] | None


@dataclass(frozen=True)
class _Reference:
    title: str
    runs: Mapping[str, str]


@dataclass(frozen=True)
class _Validation:
    set: str
    samples: int


@dataclass(frozen=True, kw_only=True)
class TrialsFile:
    """The fields of ``trials.json`` that are read, which ``bapo sweep`` writes."""

    title: str
    scale: str
    note: str | None
    model_title: str
    method_title: str
    seeds: Annotated[tuple[int, ...], Field(min_length=1)]
    validation: _Validation
    parameters: tuple[_Parameter, ...]
    reference: _Reference
    trials: tuple[_Trial, ...]

    @property
    def runs(self) -> list[Path]:
        """Return the folders of all runs, the reference's first."""
        trials = (seed.run for trial in self.trials for seed in trial.seeds.values())
        return [*map(Path, (*self.reference.runs.values(), *trials))]


def read(path: Path) -> TrialsFile:
    """Read ``trials.json``. Raises UserError naming file, field and cure."""
    file: TrialsFile = validate.read(TrialsFile, read_json(path), path)
    runs = {"reference.runs": file.reference.runs.keys()}
    complete = [(i, trial) for i, trial in enumerate(file.trials) if trial.state == COMPLETE]
    runs |= {f"trials.{i}.seeds": trial.seeds.keys() for i, trial in complete}
    for place, there in runs.items():
        if missing := [seed for seed in file.seeds if str(seed) not in there]:
            raise wrong(path, place, None, f"has no run of seed {missing[0]}; collect the trials again by `bapo sweep`")
    if valueless := [i for i, trial in complete if trial.value is None]:
        raise wrong(path, f"trials.{valueless[0]}.value", None, "has no value; add it")
    return file


@dataclass(frozen=True, eq=False)
class CompleteTrial:
    """A trial of the file, and its accuracy on every validation problem of each seed [S, n]."""

    trial: _Trial
    accuracy: np.ndarray

    @cached_property
    def estimate(self) -> Estimate:
        return estimate(self.accuracy)


@dataclass(frozen=True, eq=False)
class SweepRuns:
    """The runs of a sweep.

    complete: the trials with all seeds, the best first and of equal ones the earlier; reference: the accuracies of the
    reference with the same seeds [S, n].
    """

    file: TrialsFile
    complete: Sequence[CompleteTrial]
    reference: np.ndarray

    def in_region(self, trial: CompleteTrial) -> bool:
        """Return whether a trial is at most one standard error below the best, and above the reference."""
        mean, best = trial.estimate.mean, self.complete[0].estimate
        return bool(mean >= best.mean - best.se - 1e-12 and mean > self.reference.mean())


def estimate(table: np.ndarray) -> Estimate:
    """Return the mean of [S, n] with the error for new problems and, from two seeds on, new seeds."""
    return statistics.mean_over_seeds(table).tested


def load(path: Path) -> SweepRuns:
    """Read ``trials.json`` and its runs. Raises UserError naming the file or run that is damaged or changed."""
    file = read(path)
    seeds = [str(s) for s in file.seeds]
    first = _probed(file.reference.runs[seeds[0]], file)

    def table(folders: Sequence[str]) -> np.ndarray:
        series = [_probed(folder, file) for folder in folders]
        for folder, one in zip(folders, series, strict=True):
            if not one.index.equals(first.index) or one.empty:
                raise UserError(f"{Path(folder, PROBE)}: other validation problems than the sweep's first run has")
        return np.array(series, dtype=float)

    complete = []
    for trial in (trial for trial in file.trials if trial.state == COMPLETE):
        accuracy = table([trial.seeds[s].run for s in seeds])
        if abs(accuracy.mean() - trial.value) > 1e-9:
            raise UserError(
                f"{path}: trial {trial.number} records {trial.value:.6f}, but its runs say {accuracy.mean():.6f}; "
                f"delete {path} and the sweep's folder and run the sweep again"
            )
        complete.append(CompleteTrial(trial, accuracy))
    complete.sort(key=lambda c: (-c.estimate.mean, c.trial.number))
    return SweepRuns(file, complete, table([file.reference.runs[s] for s in seeds]))


def _probed(run: str, file: TrialsFile) -> pd.Series:
    """Return the last probe of a run's validation problems, by their ids."""
    folder = Path(run)
    if not (folder / SUMMARY).exists():
        raise UserError(f"{folder}: not finished; run the sweep again")
    verify_files(folder)
    frame = read_table(folder / PROBE, ["step", "set", "prompt_id", "mean"])
    last = frame[(frame["set"] == file.validation.set) & (frame["step"] == frame["step"].max())]
    return last.set_index("prompt_id")["mean"].sort_index()


def shown(value: Any) -> str:
    """Return a parameter's value as text, a number with three digits: 0.30000001 -> "0.3"."""
    return f"{value:.3g}" if isinstance(value, int | float) and not isinstance(value, bool) else str(value)


def ends(sweep: SweepRuns, parameter: _Parameter) -> list[tuple[str, np.ndarray]]:
    """Return the first and the last value of a parameter, each with the mean accuracy [S, n] of its trials.

    The values are in the order of the numbers or of the choices; [] where fewer than two were completed.
    """
    name, choices = parameter.name, parameter.choices
    trials: list[tuple[Any, np.ndarray]] = [
        (c.trial.drawn[name], c.accuracy) for c in sweep.complete if name in c.trial.drawn
    ]
    trials.sort(key=lambda t: choices.index(t[0]) if choices else t[0])
    drawn = [value for value, _ in trials]
    if len(set(drawn)) < 2:
        return []
    third, few = len(trials) // 3, len(set(drawn)) <= MOST_VALUES
    sides = trials[: drawn.count(drawn[0]) if few else third], trials[-(drawn.count(drawn[-1]) if few else third) :]
    titles = [" to ".join(dict.fromkeys(shown(value) for value, _ in (side[0], side[-1]))) for side in sides]
    return [(t, np.mean([table for _, table in side], axis=0)) for t, side in zip(titles, sides, strict=True)]


def changes(sweep: SweepRuns) -> list[dict[str, Any]]:
    """Return a row a parameter, in the order of the file: its two ends and the paired difference, in points."""
    rows = []
    for parameter in sweep.file.parameters:
        row: dict[str, Any] = {"kind": "parameter", "parameter": parameter.name, "title": parameter.title}
        if sides := ends(sweep, parameter):
            (low, first), (high, last) = sides
            e = estimate(last - first)  # both are of the same seeds and problems
            row |= {"from": low, "to": high} | text.columns("change", e, "low", "high")
            row["p"] = e.p
        rows.append(row)
    known = [row for row in rows if "p" in row]
    for row, p in zip(known, statistics.holm([row["p"] for row in known]), strict=True):
        row["p_holm"] = float(p)
    return rows


def write(trials: Path, out: Path) -> list[Path]:
    """Write robustness.md, .csv, .pdf, .png and .svg of the sweep of a ``trials.json``. Raises UserError as load."""
    sweep, page = load(trials), out / "robustness.md"
    file, changed, of_trials = sweep.file, changes(sweep), _rows(sweep)
    fields = {"samples": file.validation.samples, "problems": sweep.reference.shape[1]}
    fields["seeds"] = text.counted([len(file.seeds)], "training seed")
    notes = [*filter(None, [file.note]), *text.words("sweep", **fields)]
    cells = [
        [
            r["title"],
            *(r.get(end, text.MISSING) for end in ("from", "to")),
            text.change(*text.ends(r, "change")),
            text.p_number(r.get("p_holm")),
        ]
        for r in changed
    ]
    names = {p.name: p.title for p in file.parameters}
    reference = file.reference.title.lstrip("+")
    header = ["Trial", *names.values(), "Accuracy", f"Minus {reference}", "Region"]
    lines = [[str(r["trial"]), *(shown(r.get(name, text.MISSING)) for name in names), *r["shown"]] for r in of_trials]
    below = [f"{reference}: {text.percent(*estimate(sweep.reference).points)}."]
    align = "r" * (len(header) - 1) + "l"
    tables = [Table("Parameters", HEADER, cells, "lllrr"), Table("Trials, the best first", header, lines, align, below)]
    title = heading(f"Robustness of {file.method_title.lstrip('+')}: {file.title}", file.scale)
    write_text(page, Page(f"{title} ({file.model_title})", tables, notes).markdown())
    frame = pd.DataFrame([*of_trials, *changed]).drop(columns=["title", "shown"])
    with style.settings():
        return [page, *style.save(_figure(sweep), frame, out, "robustness", file.title)]


def _rows(sweep: SweepRuns) -> list[dict[str, Any]]:
    """Return one row a trial, the best first; accuracies in percent, differences in points. shown: their cells."""
    rows = []
    for complete in sweep.complete:
        trial, mean = complete.trial, complete.estimate
        minus, inside = estimate(complete.accuracy - sweep.reference), sweep.in_region(complete)
        row = {"kind": "trial", "trial": trial.number, "state": COMPLETE, **trial.drawn}
        row |= {"accuracy": 100 * mean.mean, **text.points(mean, "low", "high", "se")}
        row |= {"minus_reference": 100 * minus.mean, **text.points(minus, "low", "high", prefix="minus_")}
        row |= {"in_region": inside, "runs": " ".join(seed.run for seed in trial.seeds.values())}
        rows.append(row | {"shown": [text.percent(*mean.points), text.change(*minus.points), "yes" if inside else ""]})
    for failed in (trial for trial in sweep.file.trials if trial.state != COMPLETE):
        row = {"kind": "trial", "trial": failed.number, "state": failed.state, **failed.drawn}
        rows.append(row | {"shown": ["", "", f"{failed.state}: {failed.reason}"]})
    return rows


def _figure(sweep: SweepRuns) -> Figure:
    """Draw Optuna's slices, accuracy in percent, and the reference with its interval across them."""
    import optuna
    from optuna.visualization.matplotlib import plot_slice

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    parse = optuna.distributions.json_to_distribution
    space = {p.name: parse(p.distribution) for p in sweep.file.parameters}
    study = optuna.create_study(direction="maximize")
    for complete in sweep.complete:
        drawn, value = dict(complete.trial.drawn), 100 * complete.estimate.mean
        study.add_trial(optuna.trial.create_trial(params=drawn, distributions=space, value=value))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        axes = np.ravel(np.asarray(plot_slice(study, target_name="accuracy (%)")))
    reference = estimate(sweep.reference)
    for panel in axes:
        panel.axhline(100 * reference.mean, color=style.BLUE, linewidth=1)
        panel.axhspan(100 * reference.low, 100 * reference.high, color=style.BLUE, alpha=0.08, linewidth=0)
    return axes[0].figure
