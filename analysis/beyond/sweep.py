"""The report of one sweep: ``python -m analysis robustness``. Optuna's plots, beside differences paired on problems.

Of its runs only the last probe of the held-out validation problems is read; no test problem is.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from analysis import statistics, style, text
from analysis.page import Page, Table, at_scale
from analysis.statistics import Estimate
from bapo.errors import UserError
from bapo.store.files import PROBE, SUMMARY, read_json, read_table, verify_files, write_text

#: the state of a trial with a run of every seed; another one has no run, and a reason
COMPLETE = "complete"
#: of a parameter with more different values than this, the lowest and the highest third of the trials are compared
MOST_VALUES = 5
HEADER = ("Parameter", "From", "To", "Change", "p Holm")


@dataclass(frozen=True, eq=False)
class Trial:
    """A complete trial. row: of trials.json; accuracy: of each seed on every validation problem [S, n]."""

    row: Mapping[str, Any]
    accuracy: np.ndarray

    @cached_property
    def estimate(self) -> Estimate:
        return estimate(self.accuracy)


@dataclass(frozen=True, eq=False)
class SweepRuns:
    """The runs of a sweep. content: of trials.json; reference: accuracies of the reference with the same seeds [S, n].

    complete: the trials with all seeds, the best first, of equal ones the earlier.
    """

    content: Mapping[str, Any]
    complete: Sequence[Trial]
    reference: np.ndarray

    def in_region(self, trial: Trial) -> bool:
        """Return whether a trial is at most one standard error below the best, and above the reference."""
        mean, best = trial.estimate.mean, self.complete[0].estimate
        return bool(mean >= best.mean - best.se - 1e-12 and mean > self.reference.mean())


def estimate(table: np.ndarray) -> Estimate:
    """Return the mean of [S, n] with the error for new problems and, from two seeds on, new seeds."""
    return statistics.mean_over_seeds(table).tested


def load(path: Path) -> SweepRuns:
    """Read ``trials.json`` and its runs. Raises UserError naming the file or run that is damaged or changed."""
    content = read_json(path)
    seeds = [str(s) for s in content["seeds"]]
    first = _probed(content["reference"]["runs"][seeds[0]], content)

    def table(folders: Sequence[str]) -> np.ndarray:
        series = [_probed(folder, content) for folder in folders]
        for folder, one in zip(folders, series, strict=True):
            if not one.index.equals(first.index) or one.empty:
                raise UserError(f"{Path(folder, PROBE)}: other validation problems than the sweep's first run has")
        return np.array(series, dtype=float)

    trials = []
    for row in (row for row in content["trials"] if row["state"] == COMPLETE):
        trials.append(Trial(row, table([row["seeds"][s]["run"] for s in seeds])))
        if abs(trials[-1].accuracy.mean() - row["value"]) > 1e-9:
            raise UserError(
                f"{path}: trial {row['number']} was told {row['value']:.6f}, but its runs say "
                f"{trials[-1].accuracy.mean():.6f}; delete {path} and the sweep's folder and run the sweep again"
            )
    trials.sort(key=lambda t: (-t.estimate.mean, t.row["number"]))
    return SweepRuns(content, trials, table([content["reference"]["runs"][s] for s in seeds]))


def _probed(run: str, content: Mapping[str, Any]) -> pd.Series:
    """Return the last probe of a run's validation problems, by their ids."""
    folder = Path(run)
    if not (folder / SUMMARY).exists():
        raise UserError(f"{folder}: not finished; run the sweep again")
    verify_files(folder)
    frame = read_table(folder / PROBE, ["step", "set", "prompt_id", "mean"])
    last = frame[(frame["set"] == content["validation"]["set"]) & (frame["step"] == frame["step"].max())]
    return last.set_index("prompt_id")["mean"].sort_index()


# ------------------------------------------------------------------------------------------------ parameters


def shown(value: Any) -> str:
    """Return a parameter's value as text, a number with three digits: 0.30000001 -> "0.3"."""
    return f"{value:.3g}" if isinstance(value, int | float) and not isinstance(value, bool) else str(value)


def ends(sweep: SweepRuns, parameter: Mapping[str, Any]) -> list[tuple[str, np.ndarray]]:
    """Return the first and the last value of a parameter, each with the mean accuracy [S, n] of its trials.

    The values are in the order of the numbers or of the choices; [] where fewer than two were completed.
    """
    name, choices = parameter["name"], parameter["choices"]
    trials = [(t.row["drawn"][name], t.accuracy) for t in sweep.complete if name in t.row["drawn"]]
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
    for parameter in sweep.content["parameters"]:
        row: dict[str, Any] = {"kind": "parameter", "parameter": parameter["name"], "title": parameter["title"]}
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


# ------------------------------------------------------------------------------------------------ files


def write(trials: Path, out: Path) -> list[Path]:
    """Write robustness.md, .csv, .pdf, .png and .svg of the sweep of a ``trials.json``. Raises UserError as load."""
    sweep, page = load(trials), out / "robustness.md"
    c, changed, of_trials = sweep.content, changes(sweep), _rows(sweep)
    named = {"samples": c["validation"]["samples"], "problems": sweep.reference.shape[1]}
    named["seeds"] = text.counted([len(c["seeds"])], "training seed")
    notes = [*filter(None, [c["note"]]), *text.words("sweep", **named)]
    cells = [
        [
            r["title"],
            *(r.get(end, text.MISSING) for end in ("from", "to")),
            text.change(*text.ends(r, "change")),
            text.p_number(r.get("p_holm")),
        ]
        for r in changed
    ]
    names = {p["name"]: p["title"] for p in c["parameters"]}
    reference = str(c["reference"]["title"]).lstrip("+")
    header = ["Trial", *names.values(), "Accuracy", f"Minus {reference}", "Region"]
    lines = [[str(r["trial"]), *(shown(r.get(name, text.MISSING)) for name in names), *r["shown"]] for r in of_trials]
    below = [f"{reference}: {text.percent(*estimate(sweep.reference).points)}."]
    align = "r" * (len(header) - 1) + "l"
    tables = [Table("Parameters", HEADER, cells, "lllrr"), Table("Trials, the best first", header, lines, align, below)]
    heading = f"Robustness of {str(c['method_title']).lstrip('+')}: {c['title']}"
    write_text(page, Page(f"{at_scale(heading, c['scale'])} ({c['model_title']})", tables, notes).markdown())
    frame = pd.DataFrame([*of_trials, *changed]).drop(columns=["title", "shown"])
    with style.settings():
        return [page, *style.save(_figure(sweep), frame, out, "robustness", c["title"])]


def _rows(sweep: SweepRuns) -> list[dict[str, Any]]:
    """Return one row a trial, the best first; accuracies in percent, differences in points. shown: their cells."""
    rows = []
    for t in sweep.complete:
        d, inside = estimate(t.accuracy - sweep.reference), sweep.in_region(t)
        row = {"kind": "trial", "trial": t.row["number"], "state": COMPLETE, **t.row["drawn"]}
        row |= {"accuracy": 100 * t.estimate.mean, **text.points(t.estimate, "low", "high", "se")}
        row |= {"minus_reference": 100 * d.mean, **text.points(d, "low", "high", prefix="minus_")}
        row |= {"in_region": inside, "runs": " ".join(s["run"] for s in t.row["seeds"].values())}
        rows.append(
            row | {"shown": [text.percent(*t.estimate.points), text.change(*d.points), "yes" if inside else ""]}
        )
    for failed in (row for row in sweep.content["trials"] if row["state"] != COMPLETE):
        named = {"kind": "trial", "trial": failed["number"], "state": failed["state"], **failed["drawn"]}
        rows.append(named | {"shown": ["", "", f"{failed['state']}: {failed['reason']}"]})
    return rows


def _figure(sweep: SweepRuns) -> Figure:
    """Draw Optuna's slices, accuracy in percent, and the reference with its interval across them."""
    import optuna
    from optuna.visualization.matplotlib import plot_slice

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    read = optuna.distributions.json_to_distribution
    space = {p["name"]: read(p["distribution"]) for p in sweep.content["parameters"]}
    study = optuna.create_study(direction="maximize")
    for t in sweep.complete:
        drawn, value = dict(t.row["drawn"]), 100 * t.estimate.mean
        study.add_trial(optuna.trial.create_trial(params=drawn, distributions=space, value=value))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        axes = np.ravel(np.asarray(plot_slice(study, target_name="accuracy (%)")))
    reference = estimate(sweep.reference)
    for panel in axes:
        panel.axhline(100 * reference.mean, color=style.BLUE, linewidth=1)
        panel.axhspan(100 * reference.low, 100 * reference.high, color=style.BLUE, alpha=0.08, linewidth=0)
    return axes[0].figure
