"""What a sweep says about each parameter: levels, differences, importances, and the region that is good enough."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from analysis import statistics
from analysis.results import LEVEL
from analysis.robustness.reading import Parameter, Sweep, Trial, estimate, told

#: a parameter with more different values than this is cut into three levels of about as many trials each
MOST_LEVELS = 5
#: with fewer complete trials the better half is fewer than five: too few to say anything about importances
FEWEST = 9


def shown(value: Any) -> str:
    """0.30000001 -> "0.3"."""
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return str(value)
    return f"{value:.3g}"


@dataclass(frozen=True, eq=False)
class Level:
    """The complete trials with one value, or a range of values, of a parameter; accuracy: their mean [S, n]."""

    title: str
    values: tuple[Any, ...]
    trials: tuple[Trial, ...]
    accuracy: np.ndarray

    @property
    def estimate(self) -> statistics.Estimate:
        return estimate(self.accuracy)

    @property
    def words(self) -> str:
        """Return the title within a sentence."""
        return self.title if len(self.values) == 1 else f"({self.title})"


@dataclass(frozen=True, eq=False)
class Sensitivity:
    """change: the last level minus the first (of a choice without an order: the level that is furthest from the first).

    p: Holm's over all parameters of the sweep, for the furthest level first multiplied by how many it was picked from;
    NaN where nothing can be told. importance: None where it cannot be told. inside: the values of the trials in the
    region.
    """

    parameter: Parameter
    levels: tuple[Level, ...]
    ends: tuple[Level, Level] | None
    change: statistics.Estimate | None
    p: float
    importance: float | None
    inside: tuple[Any, ...]

    @property
    def found(self) -> bool:
        return self.p < LEVEL


@dataclass(frozen=True, eq=False)
class Region:
    """best: the best complete trial; bound: its accuracy minus one standard error; reference: the reference's.

    inside: at least ``bound`` and above the reference; surely: of those, the ones whose difference from the reference
    has an interval above 0.
    """

    best: Trial
    bound: float
    reference: statistics.Estimate
    inside: tuple[Trial, ...]
    surely: tuple[Trial, ...]


def against_reference(trial: Trial, sweep: Sweep) -> statistics.Estimate:
    """Return the trial's accuracy minus the reference's of the same seeds, paired on the problems."""
    count = len(trial.accuracy)
    return told(statistics.difference_over_seeds([trial.accuracy], [sweep.reference[:count]]).tested)


def region(sweep: Sweep) -> Region | None:
    """None without a complete trial."""
    if not sweep.complete:
        return None
    best = max(sweep.complete, key=lambda t: (t.estimate.mean, -t.number))
    error = best.estimate.se
    bound = best.estimate.mean - (error if math.isfinite(error) else 0.0)
    reference = estimate(sweep.reference)
    inside = [t for t in sweep.complete if t.estimate.mean >= bound - 1e-12 and t.estimate.mean > reference.mean]
    surely = [t for t in inside if against_reference(t, sweep).low > 0]
    return Region(best, bound, reference, tuple(inside), tuple(surely))


# ------------------------------------------------------------------------------------------------ levels


def levels(parameter: Parameter, trials: Sequence[Trial]) -> tuple[Level, ...]:
    """Return the trials by value: in the order of the numbers, or of the choices."""
    values = {t.drawn[parameter.name] for t in trials}
    order = parameter.choices if not parameter.numeric else sorted(values)
    kept = [v for v in order or () if v in values]
    groups: list[list[Any]] = [[v] for v in kept]
    if parameter.numeric and len(kept) > MOST_LEVELS:
        drawn = np.sort([float(t.drawn[parameter.name]) for t in trials])
        cuts = [drawn[round(len(drawn) * i / 3)] for i in (1, 2)]
        groups = [[v for v in kept if sum(v >= c for c in cuts) == i] for i in range(3)]
    return tuple(_level(parameter, values, trials) for values in groups if values)


def _level(parameter: Parameter, values: Sequence[Any], trials: Sequence[Trial]) -> Level:
    chosen = [t for t in trials if t.drawn[parameter.name] in values]
    title = shown(values[0]) if len(values) == 1 else f"{shown(values[0])} to {shown(values[-1])}"
    return Level(title, tuple(values), tuple(chosen), np.mean([t.accuracy for t in chosen], axis=0))


def _ends(parameter: Parameter, ordered: Sequence[Level]) -> tuple[Level, Level] | None:
    if len(ordered) < 2:
        return None
    if parameter.numeric:
        return ordered[0], ordered[-1]
    return ordered[0], max(ordered[1:], key=lambda x: abs(x.accuracy.mean() - ordered[0].accuracy.mean()))


def sensitivities(sweep: Sweep, area: Region | None) -> list[Sensitivity]:
    """Return one for each parameter, in the order of the file."""
    weights = importances(sweep)
    rows = []
    for parameter in sweep.parameters:
        by_value = levels(parameter, sweep.complete)
        ends = _ends(parameter, by_value)
        change = None
        if ends:
            change = told(statistics.difference_over_seeds([ends[1].accuracy], [ends[0].accuracy]).tested)
        rows.append((parameter, by_value, ends, change))
    tested = {
        parameter.name: min(1.0, change.p * (1 if parameter.numeric else len(by_value) - 1))
        for parameter, by_value, _, change in rows
        if change is not None and math.isfinite(change.p)
    }
    adjusted = dict(zip(tested, statistics.holm(list(tested.values())), strict=True)) if tested else {}
    return [
        Sensitivity(
            parameter,
            by_value,
            ends,
            change,
            float(adjusted.get(parameter.name, float("nan"))),
            weights.get(parameter.name),
            tuple(t.drawn[parameter.name] for t in area.inside) if area else (),
        )
        for parameter, by_value, ends, change in rows
    ]


# ------------------------------------------------------------------------------------------------ importances


def importances(sweep: Sweep) -> dict[str, float]:
    """PED-ANOVA's shares, which sum to 1: how far each parameter sets the better trials apart from all of them.

    {} with too few complete trials, with one parameter, or where all trials are equally good. The better trials are
    the best tenth, but at least five and at most half of all (Optuna's advice). Watanabe et al. 2023.
    """
    import optuna

    trials = sweep.complete
    if len(trials) < FEWEST or len(sweep.parameters) < 2 or len({t.estimate.mean for t in trials}) < 2:
        return {}
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    space = {p.name: optuna.distributions.json_to_distribution(p.distribution) for p in sweep.parameters}
    study = optuna.create_study(direction="maximize")
    study.add_trials(
        [optuna.trial.create_trial(params=dict(t.drawn), distributions=space, value=t.estimate.mean) for t in trials]
    )
    share = min(0.5, max(0.1, 5 / len(trials)))
    evaluator = optuna.importance.PedAnovaImportanceEvaluator(target_quantile=share)
    with warnings.catch_warnings():  # the option is called experimental
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        raw = optuna.importance.get_param_importances(study, evaluator=evaluator, normalize=False)
    total = sum(raw.values())
    return {name: value / total for name, value in raw.items()} if total > 0 else {}
