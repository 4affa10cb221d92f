"""The report of one sweep: ``python -m analysis robustness``. Optuna's plots, beside differences paired on problems.

Of its runs only the last probe of the held-out validation problems is read; no test problem is.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from analysis import statistics, style, text
from analysis.page import Page, Table, at_scale
from analysis.statistics import Estimate
from bapo.errors import UserError
from bapo.store.files import PROBE, SUMMARY, read_json, read_table, verify_files, write_text

if TYPE_CHECKING:
    import optuna
    import pandas as pd
    from matplotlib.figure import Figure

COMPLETE, FAIL = "complete", "fail"
#: a parameter with more different values than this is cut into three levels of about as many trials each
MOST_LEVELS = 5
#: with fewer complete trials the better half is fewer than five: too few to say anything about importances
FEWEST = 9


@dataclass(frozen=True, eq=False)
class Trial:
    """row: of trials.json; accuracy: of each seed that was trained, on every validation problem [s, n]."""

    row: Mapping[str, Any]
    runs: tuple[str, ...]
    accuracy: np.ndarray

    @cached_property
    def estimate(self) -> Estimate:
        return estimate(self.accuracy)

    @property
    def is_complete(self) -> bool:
        return self.row["state"] == COMPLETE

    def drawn(self, name: str) -> Any:
        return self.row["drawn"].get(name)


@dataclass(frozen=True, eq=False)
class Sweep:
    """content: of trials.json; reference: accuracies of the reference's runs of the same seeds [S, n]."""

    content: Mapping[str, Any]
    trials: tuple[Trial, ...]
    reference: np.ndarray

    @property
    def complete(self) -> list[Trial]:
        return [t for t in self.trials if t.is_complete]

    def minus_reference(self, trial: Trial) -> Estimate:
        """Return a trial's accuracy minus the reference's of the same seeds, paired on the problems."""
        reference = self.reference[: len(trial.accuracy)]
        return told(statistics.difference_over_seeds([trial.accuracy], [reference]).tested)

    @cached_property
    def region(self) -> list[Trial]:
        """Return the complete trials at most one standard error below the best, and above the reference."""
        if not self.complete:
            return []
        best = max(self.complete, key=lambda t: (t.estimate.mean, -t.row["number"])).estimate
        bound = best.mean - (best.se if math.isfinite(best.se) else 0.0) - 1e-12
        return [t for t in self.complete if t.estimate.mean >= bound and t.estimate.mean > self.reference.mean()]


def estimate(table: np.ndarray) -> Estimate:
    """Return the mean of [S, n] with the error for new problems and, from two seeds on, new seeds."""
    return told(statistics.mean_over_seeds(table).tested)


def told(found: Estimate) -> Estimate:
    """Leave the interval out where it would be wider than all accuracies: too few problems and seeds to tell.

    Satterthwaite's degrees of freedom fall below 1 where seeds differ and problems hardly do.
    """
    return replace(found, df=float("nan")) if found.half_width > 1 else found


def load(path: Path) -> Sweep:
    """Read ``trials.json`` and its runs. Raises UserError naming the file or run that is damaged or changed."""
    content = read_json(path)
    problems: list[str] = []

    def table(folders: Sequence[str]) -> np.ndarray:
        return np.stack([_probed(Path(folder), content["validation"]["set"], problems) for folder in folders])

    seeds = [str(s) for s in content["seeds"]]
    reference = table([content["reference"]["runs"][s] for s in seeds])
    trials = []
    for row in content["trials"]:
        folders = tuple(row["seeds"][s]["run"] for s in seeds if s in row["seeds"])
        trial = Trial(row, folders, table(folders) if folders else reference[:0])
        if trial.is_complete and abs(trial.accuracy.mean() - row["value"]) > 1e-9:
            raise UserError(
                f"{path}: trial {row['number']} was told {row['value']:.6f}, but its runs say "
                f"{trial.accuracy.mean():.6f}; delete {path} and the sweep's folder and run the sweep again"
            )
        trials.append(trial)
    return Sweep(content, tuple(trials), reference)


def _probed(run: Path, name: str, problems: list[str]) -> np.ndarray:
    """Return a run's last probe [n]; its problems are noted in ``problems``, and must be those of the first run."""
    if not (run / SUMMARY).exists():
        raise UserError(f"{run}: not finished; run the sweep again")
    verify_files(run)
    frame = read_table(run / PROBE, ["step", "set", "prompt_id", "mean"])
    last = frame[(frame["set"] == name) & (frame["step"] == frame["step"].max())].sort_values("prompt_id")
    own = list(last["prompt_id"].astype(str))
    problems.extend(own if not problems else ())
    if not own or own != problems:
        raise UserError(f"{run / PROBE}: other validation problems than the sweep's first run has")
    return last["mean"].to_numpy(float)


# ------------------------------------------------------------------------------------------------ parameters


@dataclass(frozen=True, eq=False)
class Sensitivity:
    """One parameter. levels: (values, trials, their mean accuracy [S, n]) of the complete trials.

    change: from the first level to ``end``, the last or, without an order, the furthest from it. p: Holm's over all
    parameters, for a furthest level first multiplied by how many it was picked from; NaN where nothing can be told.
    """

    name: str
    title: str
    levels: Sequence[tuple[str, int, np.ndarray]]
    end: str = ""
    change: Estimate | None = None
    p: float = math.nan


def shown(value: Any) -> str:
    """0.30000001 -> "0.3"."""
    return f"{value:.3g}" if isinstance(value, int | float) and not isinstance(value, bool) else str(value)


def sensitivities(sweep: Sweep) -> list[Sensitivity]:
    """Return one for each parameter, in the order of the file."""
    rows, ps = [], {}
    for parameter in sweep.content["parameters"]:
        name, choices = parameter["name"], parameter["choices"] or ()
        numeric = all(isinstance(c, int | float) and not isinstance(c, bool) for c in choices)
        levels = _levels(name, sorted({t.drawn(name) for t in sweep.complete}) if numeric else choices, numeric, sweep)
        row = Sensitivity(name, parameter["title"], levels)
        if len(levels) > 1:
            first = levels[0][2]
            last = levels[-1] if numeric else max(levels[1:], key=lambda x: abs(x[2].mean() - first.mean()))
            row = replace(row, change=told(statistics.difference_over_seeds([last[2]], [first]).tested), end=last[0])
            if row.change and math.isfinite(row.change.p):
                ps[name] = min(1.0, row.change.p * (1 if numeric else len(levels) - 1))
        rows.append(row)
    adjusted = dict(zip(ps, statistics.holm(list(ps.values())), strict=True))
    return [replace(row, p=float(adjusted.get(row.name, math.nan))) for row in rows]


def _levels(name: str, order: Sequence[Any], numeric: bool, sweep: Sweep) -> list[tuple[str, int, np.ndarray]]:
    """Return the complete trials by value, in the order of the numbers or of the choices."""
    trials = sweep.complete
    kept = [v for v in order if any(t.drawn(name) == v for t in trials)]
    groups = [[v] for v in kept]
    if numeric and len(kept) > MOST_LEVELS:
        drawn = np.sort([float(t.drawn(name)) for t in trials])
        cuts = [drawn[round(len(drawn) * i / 3)] for i in (1, 2)]
        groups = [[v for v in kept if sum(v >= c for c in cuts) == i] for i in range(3)]
    levels = []
    for values in filter(None, groups):
        chosen = [t.accuracy for t in trials if t.drawn(name) in values]
        levels.append(
            (" to ".join(dict.fromkeys(map(shown, (values[0], values[-1])))), len(chosen), np.mean(chosen, 0))
        )
    return levels


def _study(sweep: Sweep) -> optuna.Study:
    """Return the complete trials as a study of Optuna's, accuracies in percent."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    space = {
        p["name"]: optuna.distributions.json_to_distribution(p["distribution"]) for p in sweep.content["parameters"]
    }
    study = optuna.create_study(direction="maximize")
    for t in sweep.complete:
        value = 100 * t.estimate.mean
        study.add_trial(optuna.trial.create_trial(params=dict(t.row["drawn"]), distributions=space, value=value))
    return study


def importances(sweep: Sweep) -> dict[str, float]:
    """PED-ANOVA's shares, which sum to 1: how far each parameter sets the better trials apart from all of them.

    {} with too few complete trials, with one parameter, or where all trials are equally good. The better trials are
    the best tenth, but at least five and at most half of all (Optuna's advice). Watanabe et al. 2023.
    """
    import optuna

    trials = sweep.complete
    if len(trials) < FEWEST or len(sweep.content["parameters"]) < 2 or len({t.estimate.mean for t in trials}) < 2:
        return {}
    share = min(0.5, max(0.1, 5 / len(trials)))
    with warnings.catch_warnings():  # the option is called experimental
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        evaluator = optuna.importance.PedAnovaImportanceEvaluator(target_quantile=share)
        raw = optuna.importance.get_param_importances(_study(sweep), evaluator=evaluator, normalize=False)
    total = sum(raw.values())
    return {name: value / total for name, value in raw.items()} if total > 0 else {}


# ------------------------------------------------------------------------------------------------ files


def write(trials: Path, out: Path) -> list[Path]:
    """Write robustness.md, .csv, .pdf, .png and .svg of the sweep whose ``trials.json`` is given."""
    sweep = load(trials)
    rows, weights, page = sensitivities(sweep), importances(sweep), out / "robustness.md"
    c, v = sweep.content, sweep.content["validation"]
    notes = [
        *([c["note"]] if c["note"] else []),
        f"Accuracy: percent of {v['samples']} samples of each of {sweep.reference.shape[1]} held-out validation "
        f"problems after the last step, mean over {text.counted([len(c['seeds'])], 'training seed')}.",
        "Region: at most one standard error below the best trial, and above the reference. The best trial looks better "
        "than it is: a test of chosen values needs new seeds.",
        "Change: from the first level to the other one, paired on the problems, Holm's correction over the parameters.",
    ]
    heading = f"Robustness of {str(c['method_title']).lstrip('+')}: {c['title']}"
    tables = [_parameters(sweep, rows, weights), _trials(sweep)]
    write_text(page, Page(f"{at_scale(heading, c['scale'])} ({c['model_title']})", tables, notes).markdown())
    with style.settings():
        return [page, *style.save(_figure(sweep), frame(sweep, rows, weights), out, "robustness", c["title"])]


def _figure(sweep: Sweep) -> Figure:
    """Draw Optuna's slices, and the reference with its interval across them."""
    import optuna
    from optuna.visualization.matplotlib import plot_slice

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        axes = np.ravel(np.asarray(plot_slice(_study(sweep), target_name="accuracy (%)")))
    reference = estimate(sweep.reference)
    for panel in axes:
        panel.axhline(100 * reference.mean, color=style.BLUE, linewidth=1)
        if math.isfinite(reference.half_width):
            panel.axhspan(100 * reference.low, 100 * reference.high, color=style.BLUE, alpha=0.08, linewidth=0)
    return axes[0].figure


def _parameters(sweep: Sweep, rows: Sequence[Sensitivity], weights: Mapping[str, float]) -> Table:
    header = ["Parameter", "From", "To", "Change", "p Holm", "Importance", "In the region"]
    cells = []
    for row in rows:
        change = text.change(row.change) if row.change else text.MISSING
        importance = f"{100 * weights[row.name]:.0f} %" if row.name in weights else text.MISSING
        inside = [shown(v) for v in sorted({t.drawn(row.name) for t in sweep.region}, key=lambda v: (str(type(v)), v))]
        first = row.levels[0][0] if row.levels else text.MISSING
        cells.append([row.title, first, row.end, change, text.p_number(row.p), importance, ", ".join(inside)])
    return Table("Parameters", header, cells, "lllrrrl")


def _trials(sweep: Sweep) -> Table:
    names = {p["name"]: p["title"] for p in sweep.content["parameters"]}
    reference = str(sweep.content["reference"]["title"]).lstrip("+")
    rows = []
    for t in sorted(sweep.trials, key=lambda t: (not t.is_complete, -t.estimate.mean if len(t.accuracy) else 0.0)):
        cells = [text.MISSING] * 2
        if len(t.accuracy):
            cells = [text.percent(t.estimate), text.change(sweep.minus_reference(t))]
        state = t.row["state"] + (f": {t.row['reason']}" if t.row["state"] == FAIL else "")
        drawn = [shown(t.row["drawn"].get(name, text.MISSING)) for name in names]
        rows.append(
            [str(t.row["number"]), *drawn, *cells, "yes" if t in sweep.region else "" if t.is_complete else state]
        )
    header = ["Trial", *names.values(), "Accuracy", f"Minus {reference}", "Region"]
    below = [f"{reference}: {text.percent(estimate(sweep.reference))}."]
    return Table("Trials, the best first", header, rows, "r" * (len(header) - 1) + "l", below)


def frame(sweep: Sweep, rows: Sequence[Sensitivity], weights: Mapping[str, float]) -> pd.DataFrame:
    """Return one row a trial, then one a level of a parameter; accuracies in percent, differences in points."""
    import pandas as pd

    lines: list[dict[str, Any]] = []
    for t in sweep.trials:
        lines.append({"kind": "trial", "trial": t.row["number"], "state": t.row["state"], **t.row["drawn"]})
        if len(t.accuracy):
            d = sweep.minus_reference(t)
            lines[-1] |= {"accuracy": 100 * t.estimate.mean, **text.points(t.estimate, "low", "high", "se")}
            lines[-1] |= {"minus_reference": 100 * d.mean, **text.points(d, "low", "high", prefix="minus_")}
            lines[-1] |= {"in_region": t in sweep.region, "runs": " ".join(t.runs)}
    for row in rows:
        for title, count, accuracy in row.levels:
            e = estimate(accuracy)
            line = {"kind": "level", "parameter": row.name, "level": title, "trials": count}
            line |= {"accuracy": 100 * e.mean, **text.points(e, "low", "high", "se")}
            lines.append(line | {"importance": weights.get(row.name), "p_holm": row.p})
    return pd.DataFrame(lines)
