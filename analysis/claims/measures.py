"""What a query returns: a number with its interval, and what is known of where its noise comes from."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, get_type_hints

import numpy as np
from pydantic import BaseModel, ConfigDict, create_model

from analysis.statistics import Estimate, SeedDifference, SeedMean, clustered
from bapo import validate
from bapo.errors import UserError

if TYPE_CHECKING:
    from analysis.claims.view import View

#: what `over` may name beside methods: the model before training; what two samplings of that model show
BASE, CHANCE = "base", "chance"
#: one method or several, as an entry may name them
Methods = str | list[str]


class NotTestable(Exception):
    """The runs are there, but what the claim speaks of is not in them; the message says why."""


@dataclass(frozen=True)
class Measure:
    """One number, in ``unit``.

    seeds: training seeds behind it (of the side that has fewest). problem_variance: the part of its squared standard
    error that more seeds do not lower; seed_variance: of one seed of one side, NaN where one seed cannot tell; freedom:
    degrees of freedom that one more seed adds; these three as ``statistics.seeds_needed`` takes them. note: the numbers
    that it was made of, for the reader. bases: base models of one kind whose differences are in the error; prompts:
    whether the choice of training prompts is.
    """

    estimate: Estimate
    unit: str
    seeds: int
    problem_variance: float = 0.0
    seed_variance: float = float("nan")
    note: str = ""
    freedom: float = 2.0
    bases: int = 1
    prompts: bool = False

    @property
    def varies(self) -> str:
        """Return what the interval lets vary, in words; the rest is given."""
        parts = {"prompts": self.prompts, "problems": self.problem_variance > 0}
        parts |= {"seeds": self.seeds > 1, "bases": self.bases > 1}
        return ", ".join(name for name, does in parts.items() if does)


def of_seeds(values: Sequence[float], unit: str, note: str = "") -> Measure:
    """Return the mean of one number a seed, with the t interval over the S seeds (none for S = 1)."""
    x = np.asarray(values, dtype=np.float64)
    spread = float(x.std(ddof=1)) if len(x) > 1 else float("nan")
    estimate = Estimate(float(x.mean()), spread / np.sqrt(len(x)), len(x) - 1)
    # seeds_needed counts two sides with this variance each; paired by seed, they have S - 1 degrees of freedom
    return Measure(estimate, unit, len(x), 0.0, spread**2 / 2, note, freedom=1.0)


def of_two(
    result: SeedDifference | SeedMean,
    seeds: int,
    unit: str,
    scale: float = 1.0,
    note: str = "",
    one_freedom: bool = False,
) -> Measure:
    """Return a mean or a difference over problems and seeds.

    scale: 100 turns fractions into points; one_freedom: a seed more is one degree of freedom and not two, as the seeds
    are paired, or one side is a single model.
    """
    both, problems, used = result.both, result.problems, result.tested
    estimate = Estimate(scale * used.mean, abs(scale) * used.se, used.df)
    stays = max(0.0, problems.se**2 - (result.falling if np.isfinite(result.falling) else 0.0))
    falls = max(0.0, both.se**2 - stays) if np.isfinite(both.se) else float("nan")
    freedom = 2.0 if isinstance(result, SeedDifference) and not one_freedom else 1.0
    return Measure(estimate, unit, seeds, scale**2 * stays, scale**2 * falls * seeds / 2, note, freedom)


def mean_of(measures: Iterable[Measure], independent: bool = True) -> Measure:
    """Return the mean of independent measures (other tasks, other runs): SE = sqrt(sum SE^2) / B, Satterthwaite.

    Not independent (two models on the same problems): the mean of their SE, with the fewest degrees of freedom: never
    too small.
    """
    ms = list(measures)
    if len(ms) == 1:
        return ms[0]
    mean = float(np.mean([m.estimate.mean for m in ms]))
    alike = replace(ms[0], note="", seeds=min(m.seeds for m in ms), bases=min(m.bases for m in ms))
    alike = replace(alike, prompts=all(m.prompts for m in ms), freedom=min(m.freedom for m in ms))
    if not independent:
        se, df = float(np.mean([m.estimate.se for m in ms])), min(m.estimate.df for m in ms)
        kept = [float(np.mean([getattr(m, f) for m in ms])) for f in ("problem_variance", "seed_variance")]
        return replace(alike, estimate=Estimate(mean, se, df), problem_variance=kept[0], seed_variance=kept[1])
    parts = [(m.estimate.se**2 / len(ms) ** 2, m.estimate.df) for m in ms]
    total = sum(v for v, _ in parts)
    weights = sum(v**2 / df for v, df in parts if v > 0)
    df = total**2 / weights if weights > 0 else min(df for _, df in parts)
    of_seeds = [m.seed_variance / len(ms) ** 2 for m in ms]
    spread = sum(v**2 / m.freedom for v, m in zip(of_seeds, ms, strict=True))
    return replace(
        alike,
        estimate=Estimate(mean, float(np.sqrt(total)), float(df)),
        problem_variance=sum(m.problem_variance for m in ms) / len(ms) ** 2,
        seed_variance=sum(of_seeds),
        freedom=sum(of_seeds) ** 2 / spread if spread > 0 else alike.freedom,
    )


def mean_of_bases(measures: Iterable[Measure]) -> Measure:
    """Return the mean over base models of one kind: with the wider of two intervals.

    One holds the bases as given, as :func:`mean_of` of dependent measures; the other is the t interval over the bases'
    own numbers, B - 1 degrees of freedom.
    """
    ms = list(measures)
    given = replace(mean_of(ms, independent=False), bases=len(ms))
    over = clustered(np.array([m.estimate.mean for m in ms]))
    return replace(given, estimate=over) if over.half_width > given.estimate.half_width else given


def share_table(chosen: np.ndarray, hit: np.ndarray, what: str) -> np.ndarray:
    """Return a ratio of two sums as a table [S, n] with the ratio's mean and spread (linearisation).

    chosen: 0/1 [S, n], the prompts counted in each seed; hit [S, n], in [0, 1].
    Raises NotTestable where none is chosen.
    """
    chosen, hit = chosen.astype(np.float64), hit.astype(np.float64)
    if not chosen.sum():
        raise NotTestable(f"no {what}")
    share = (chosen * hit).sum() / chosen.sum()
    return share + chosen * (hit - share) / chosen.mean()


def ratios(a: Mapping[int, float], b: Mapping[int, float]) -> list[float]:
    """a / b of each seed that both have: the two share their base, their problems and the order of these."""
    seeds = sorted(set(a) & set(b))
    if not seeds or not all(b[s] for s in seeds):
        raise NotTestable("the two have no training seed in common, or the divisor is 0")
    return [a[s] / b[s] for s in seeds]


# ------------------------------------------------------------------------------------------------ queries


class Answer(dict[str, Measure]):
    """A query's answer: one measure, or one for each comparison it was asked for, by its title.

    unmeasured: the comparisons that the runs do not allow, with the reason.
    """

    unmeasured: dict[str, str]

    def __init__(self, measures: Mapping[str, Measure], unmeasured: Mapping[str, str] | None = None) -> None:
        super().__init__(measures)
        self.unmeasured = dict(unmeasured or {})


@dataclass(frozen=True)
class Query:
    """A kind of question. parameters: what an entry may give; evaluated: whether it reads eval/ beside the run.

    beside: which of BASE and CHANCE `over` may name.
    """

    name: str
    answer: Callable[..., Answer]
    parameters: type[BaseModel]
    evaluated: bool
    beside: tuple[str, ...]

    def check(self, given: Mapping[str, Any], where: str) -> None:
        """Raise UserError for a parameter that is missing, unknown or of a wrong kind."""
        validate.read(self.parameters, given, where)
        for name in names(given.get("over")):
            if name in (BASE, CHANCE) and name not in self.beside:
                raise UserError(f"{where}.over: query '{self.name}' cannot be asked over {name}; name methods")


QUERIES: dict[str, Query] = {}


def query(
    evaluated: bool = False, beside: tuple[str, ...] = ()
) -> Callable[[Callable[..., Answer]], Callable[..., Answer]]:
    """Register a function ``(view, *, of, over=..., ...) -> Answer`` under its name, by its keywords."""

    def register(function: Callable[..., Answer]) -> Callable[..., Answer]:
        hints = get_type_hints(function)
        keywords = [p for p in inspect.signature(function).parameters.values() if p.kind is p.KEYWORD_ONLY]
        fields: dict[str, Any] = {p.name: (hints[p.name], ... if p.default is p.empty else p.default) for p in keywords}
        model = create_model(function.__name__, __config__=ConfigDict(extra="forbid"), **fields)
        QUERIES[function.__name__] = Query(function.__name__, function, model, evaluated, beside)
        return function

    return register


def names(value: Methods | None) -> list[str]:
    """Return a method or a list of methods."""
    return [] if value is None else [str(v) for v in value] if isinstance(value, list) else [str(value)]


def compare(view: View, of: Methods, over: Methods, measure: Callable[[str, str], Measure]) -> Answer:
    """Return measure(a, b) of every two methods, one of each side, that have runs here."""
    methods = view.block.methods
    pairs = [
        (a, b) for a in names(of) for b in names(over) if a in methods and b in (*methods, BASE, CHANCE) and a != b
    ]
    return _answers({f"{view.title(a)} against {view.title(b)}": partial(measure, a, b) for a, b in pairs})


def alone(view: View, of: Methods, measure: Callable[[str], Measure]) -> Answer:
    """Return measure(method) of every method that has runs here."""
    there = [m for m in names(of) if m in view.block.methods]
    return _answers({view.title(m): partial(measure, m) for m in there})


def _answers(asked: Mapping[str, Callable[[], Measure]]) -> Answer:
    """Return every measure by its title. Raises NotTestable where none of them can be measured."""
    measures, reasons = {}, {}
    for title, measure in asked.items():
        try:
            measures[title] = measure()
        except NotTestable as reason:
            reasons[title] = str(reason)
    if reasons and not measures:
        raise NotTestable("; ".join(dict.fromkeys(reasons.values())))
    return Answer(measures, reasons)
