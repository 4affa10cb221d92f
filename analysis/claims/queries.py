"""Queries over evaluations and probes: accuracies on the test benchmarks, and what became of a fixed set of prompts.

A probe samples a fixed set of prompts G times from the policy at some steps, step 0 being the base. Methods are
compared by what is counted within each run, as the paper does. `over: chance` compares across seeds, with the unchanged
base: analysis/probes.py says how, and why a run's own step 0 would not be fair.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, get_type_hints

import numpy as np
from pydantic import BaseModel, ConfigDict, create_model

from analysis import statistics
from analysis.claims import BASE, CHANCE
from analysis.claims.measures import Measure, of_result
from analysis.claims.view import ClaimView, points
from analysis.probes import Probes, Value
from analysis.reading import NotRecorded
from analysis.results import AVERAGE
from analysis.statistics import Side
from bapo import validate
from bapo.errors import UserError

#: one method or several, as an entry may name them
Methods = str | list[str]


def names(value: Methods | None) -> list[str]:
    """Return a method or a list of methods."""
    return [] if value is None else [value] if isinstance(value, str) else value


@dataclass(frozen=True)
class Query:
    """A kind of question. measure: (view, method[, other], parameters) -> its number; parameters: what an entry gives.

    evaluated: whether it reads eval/ beside the run; beside: which of BASE and CHANCE `over` may name.
    """

    name: str
    measure: Callable[..., Measure]
    parameters: type[BaseModel]
    evaluated: bool
    beside: tuple[str, ...]

    def check(self, given: Mapping[str, Any], where: str) -> None:
        """Raise UserError for a parameter that is missing, unknown or of a wrong kind."""
        validate.read(self.parameters, given, where)
        for name in names(given.get("over")):
            if name in (BASE, CHANCE) and name not in self.beside:
                raise UserError(f"{where}.over: query '{self.name}' cannot be asked over {name}; name methods")

    def answer(
        self, view: ClaimView, of: Methods, over: Methods | None = None, **more: Any
    ) -> tuple[dict[str, Measure], dict[str, str]]:
        """Return the measure of each method, or of each two, that have runs here, and why others have none.

        Raises NotRecorded where none of them can be measured.
        """
        there = [m for m in names(of) if m in view.block.methods]
        questions: dict[str, tuple[Any, ...]] = {view.title(a): (a,) for a in there}
        if over is not None:
            others = [b for b in names(over) if b in (*view.block.methods, BASE, CHANCE)]
            pairs = [(a, b) for a in there for b in others if a != b]
            questions = {f"{view.title(a)} against {view.title(b)}": (a, b) for a, b in pairs}
            if more.get("pooled") and len(pairs) > 1:  # one title, whichever were run
                against = f"{view.title(there[0])} against the mean of its baselines"
                questions = {against: (there[0], [b for _, b in pairs])}
        measures: dict[str, Measure] = {}
        reasons: dict[str, str] = {}
        for title, sides in questions.items():
            try:
                measures[title] = self.measure(view, *sides, **more)
            except NotRecorded as reason:
                reasons[title] = str(reason)
        if reasons and not measures:
            raise NotRecorded("; ".join(dict.fromkeys(reasons.values())))
        return measures, reasons


QUERIES: dict[str, Query] = {}
Function = Callable[..., Measure]


def query(evaluated: bool = False, beside: tuple[str, ...] = ()) -> Callable[[Function], Function]:
    """Register a function ``(view, a[, b], *, ...) -> Measure`` under its name.

    An entry gives ``of`` for a, ``over`` for b, and its keywords. b with a default: `over` may be left out. It raises
    NotRecorded where the runs of the view do not hold what it asks for. evaluated, beside: as in :class:`Query`.
    """

    def register(function: Function) -> Function:
        hints = get_type_hints(function)
        fields: dict[str, Any] = {"of": (Methods, ...)}
        for p in inspect.signature(function).parameters.values():
            if p.kind is p.KEYWORD_ONLY:
                fields[p.name] = (hints[p.name], p.default if p.default is not p.empty else ...)
            elif p.name == "b":
                fields["over"] = (Methods, ...) if p.default is p.empty else (Methods | None, None)
        model = create_model(function.__name__, __config__=ConfigDict(extra="forbid"), **fields)
        QUERIES[function.__name__] = Query(function.__name__, function, model, evaluated, beside)
        return function

    return register


# ------------------------------------------------------------------------------------------------ evaluations


def _minus(view: ClaimView, a: str, x: Side, b: str, y: Side) -> Measure:
    """Return a minus b in points, of tables [S, n] of each benchmark."""
    x, y = statistics.aligned(x, y)
    return of_result(statistics.difference(x, y), "points", view.beside(a, points(x.tables), b, points(y.tables)))


@query(evaluated=True, beside=(BASE,))
def accuracy_difference(view: ClaimView, a: str, b: str, *, column: str = AVERAGE) -> Measure:
    """Return a minus b in points of accuracy. column: a benchmark; by default the mean of all."""
    minus = _minus(view, a, view.accuracy(a, column), b, view.accuracy(b, column))
    return replace(minus, margin=view.margin(column))


@query()
def curve_difference(view: ClaimView, a: str, b: str) -> Measure:
    """Return a minus b in points of accuracy, the mean over the evaluated checkpoints after the start.

    Raises NotRecorded where the two have none in common.
    """
    curves = [view.curves(m) for m in (a, b)]
    steps = sorted(set.intersection(*(set(c.steps) for side in curves for c in side)) - {0})
    if not steps:
        raise NotRecorded("they have no evaluated checkpoint in common")
    x, y = ([c.accuracy[:, [c.steps.index(s) for s in steps]].mean(axis=1) for c in side] for side in curves)
    return _minus(view, a, Side(x, view.seeds(a)), b, Side(y, view.seeds(b)))


@query(evaluated=True, beside=(BASE,))
def relative_gain(view: ClaimView, a: str, b: str | list[str], *, pooled: bool = False) -> Measure:
    """Return 100 (a / b - 1), the gain in percent of b's accuracy. pooled: of the mean of all that `over` names.

    Raises NotRecorded where b has no correct answer, or what is pooled no training seed in common.
    """
    others = names(b)
    title, sides = ", ".join(map(view.title, others)), [view.accuracy(m) for m in others]
    y = sides[0]
    if len(sides) > 1:
        shared = sorted(set.intersection(*(set(side.seeds) for side in sides)))
        if not shared:
            raise NotRecorded(f"{title} have no training seed in common")
        y = Side([np.mean(t, axis=0) for t in zip(*(side.of(shared).tables for side in sides), strict=True)], shared)
    x, y = statistics.aligned(view.accuracy(a), y)
    top, bottom = points(x.tables) / 100, points(y.tables) / 100
    if not bottom > 0:
        raise NotRecorded(f"{title} has no correct answer")
    # by the delta method the error of x / y is that of x - (x / y) y, over y
    residual = statistics.difference(x, replace(y, tables=[top / bottom * t for t in y.tables]))
    problems, both = (replace(e, mean=top / bottom - 1, se=e.se / bottom) for e in (residual.problems, residual.both))
    gain = replace(residual, problems=problems, both=both, falling=residual.falling / bottom**2)
    note = f"{view.title(a)} {100 * top:.1f}, {title} {100 * bottom:.1f}"
    return of_result(gain, "%", note, view.margin(AVERAGE) / bottom)


# ------------------------------------------------------------------------------------------------ probes

#: the sets of probed prompts: of the training set, and held out
TRAINED, HELD_OUT = "train", "probe"
#: a share of fewer prompts is not measured
FEWEST = 10
#: (step, value) -> [S, n]: Probes.within, or Probes.across where methods are compared with chance
Count = Callable[[int, Value], np.ndarray]
#: a share of prompts at a step, as a table [S, n]
Share = Callable[[Probes, int, Count], np.ndarray]


def _share_of(view: ClaimView, a: str, b: str | None, share: Share) -> Measure:
    """Return the share of a method at the last step, alone or minus another's, or across seeds."""
    probes = view.probes(a, TRAINED)
    last = probes.steps[-1]
    if b is None:
        return of_result(statistics.mean_over_seeds(share(probes, last, probes.within)), "%")
    if b == CHANCE:
        x, y = (Side([share(probes, step, probes.across)], probes.seeds) for step in (last, 0))
    else:
        theirs = view.probes(b, TRAINED)
        x, y = (Side([share(p, p.steps[-1], p.within)], p.seeds) for p in (probes, theirs))
    return _minus(view, a, x, b, y)


def share_table(chosen: np.ndarray, hit: np.ndarray, what: str = "", fewest: int = FEWEST) -> np.ndarray:
    """Return a ratio of two sums as a table [S, n] with the ratio's mean and spread (linearisation).

    chosen: 0/1 [S, n], the prompts counted in each seed, ``what`` in words; hit [S, n], in [0, 1].
    Raises NotRecorded where fewer than ``fewest`` prompts are chosen.
    """
    count = int((chosen.sum(axis=0) > 0).sum())
    if count < fewest:
        raise NotRecorded(f"{count or 'no'} prompt{'s' * (count > 1)} of the base {what}, too few for a share")
    chosen, hit = chosen.astype(np.float64), hit.astype(np.float64)
    share = (chosen * hit).sum() / chosen.sum()
    return share + chosen * (hit - share) / chosen.mean()


@query(beside=(CHANCE,))
def hard_improved(view: ClaimView, a: str, b: str | None = None) -> Measure:
    """Return the share of the base's 0/G prompts with a correct answer at the last step (the paper's Figure 7)."""

    def share(p: Probes, step: int, count: Count) -> np.ndarray:
        hard = count(step, lambda base, now: base == 0)
        return share_table(hard, np.stack(p.at(step)) > 0, f"at 0/{p.samples}")

    return _share_of(view, a, b, share)


@query(beside=(CHANCE,))
def solved_stay(view: ClaimView, a: str, b: str | None = None) -> Measure:
    """Return the share of the base's G/G prompts with at least 6 correct answers at the last step."""

    def share(p: Probes, step: int, count: Count) -> np.ndarray:
        solved = count(step, lambda base, now: base == p.samples)
        return share_table(solved, np.stack(p.at(step)) >= 6, f"at {p.samples}/{p.samples}")

    return _share_of(view, a, b, share)


@query(beside=(CHANCE,))
def consistent_failures(view: ClaimView, a: str, b: str) -> Measure:
    """Return the share with a right answer in the end of the prompts that the base fails in all OTHER seeds."""

    def share(p: Probes, step: int, count: Count) -> np.ndarray:
        fails = p.across(step, lambda base, now: base == 0) == 1
        return share_table(fails, np.stack(p.at(step)) > 0, f"at 0/{(len(p.seeds) - 1) * p.samples}")

    return _share_of(view, a, b, share)


@query(beside=(CHANCE,))
def degraded_prompts(
    view: ClaimView, a: str, b: str | None = None, *, bins: int = 1, noise: float | None = None
) -> Measure:
    """Return the share of the prompts with at least ``bins`` correct answers fewer at the last step than the base had.

    noise: raises NotRecorded where two samplings of the UNCHANGED base already show more than this many percent, or
    where that is not known. It cannot be subtracted: a model that improves elsewhere has fewer falls by chance, which
    would hide what it forgets.
    """

    def share(p: Probes, step: int, count: Count) -> np.ndarray:
        return count(step, lambda base, now: (now <= base - bins).astype(float))

    if noise is not None:
        probes = view.probes(a, TRAINED)
        chance = 100 * share(probes, 0, probes.across).mean()
        if chance > noise:
            what = f"{chance:.1f}% of the unchanged base's prompts {bins} of {probes.samples} down"
            raise NotRecorded(f"sampling alone takes {what} (at most {noise:g}% for a verdict)")
    return _share_of(view, a, b, share)


@query(beside=(BASE,))
def probe_difference(view: ClaimView, a: str, b: str, *, at: Literal["first", "last"] = "last") -> Measure:
    """Return a minus b in points of accuracy on the probed held-out prompts.

    at: last, of each, or first (the first probed step after the base). b = base: step 0 of the same runs. Raises
    NotRecorded where b's first probe is at another step than a's.
    """
    x, place = view.probes(a, HELD_OUT), 1 if at == "first" else -1
    y = x if b == BASE else view.probes(b, HELD_OUT)
    if at == "first" and x.steps[1] != y.steps[1]:
        raise NotRecorded(f"{view.title(b)} was not probed at step {x.steps[1]}")
    now = np.stack(x.at(x.steps[place])) / x.samples
    then = np.stack(y.at(0 if b == BASE else y.steps[place])) / y.samples
    return _minus(view, a, Side([now], x.seeds), b, Side([then], y.seeds))
