"""What a query returns: a number with its interval, and what is known of where its noise comes from."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from analysis.statistics import CONFIDENCE, Estimate, OverSeeds, clustered, combined

#: the most seeds that are considered, more than anybody would train
MOST_SEEDS = 10_000
#: the chance with which a true gap is found
POWER = 0.8


@dataclass(frozen=True)
class Measure:
    """One number, in ``unit``.

    seeds: training seeds behind it (of the side that has fewest). problem_variance: the part of its squared standard
    error that more seeds do not lower; seed_variance: of one seed of one side, NaN where one seed cannot tell; freedom:
    degrees of freedom that one more seed adds. note: the numbers that it was made of, for the reader. bases: base
    models of one kind whose differences are in the error; prompts: whether the choice of training prompts is. margin:
    of equivalence, in ``unit``, NaN where there is none.
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
    margin: float = float("nan")

    @property
    def varies(self) -> str:
        """Return what the interval lets vary, in words; the rest is given."""
        parts = {"prompts": self.prompts, "problems": self.problem_variance > 0}
        parts |= {"seeds": self.seeds > 1, "bases": self.bases > 1}
        return ", ".join(name for name, does in parts.items() if does)

    def seeds_needed(self, gap: float) -> int | None:
        """Return the fewest seeds of each method with which a t test finds a true ``gap``, four times out of five.

        A gap is found with power 0.8 where it is t(0.975) + t(0.8) standard errors wide. None where MOST_SEEDS are too
        few: then the problems are too few, or the gap is 0.
        """
        from scipy.special import stdtrit

        def suffices(seeds: int) -> bool:
            df = self.freedom * (seeds - 1)
            needed = stdtrit(df, (1 + CONFIDENCE) / 2) + stdtrit(df, POWER)
            return bool(abs(gap) >= needed * np.sqrt(self.problem_variance + 2 * self.seed_variance / seeds))

        fewest = bisect_left(range(MOST_SEEDS + 1), True, lo=2, key=suffices)
        return fewest if fewest <= MOST_SEEDS else None


#: the measure of a line where nothing could be measured
NOTHING = Measure(Estimate(float("nan"), float("nan"), 0), "", 0)


def of_seeds(values: Sequence[float], unit: str, note: str = "") -> Measure:
    """Return the mean of one number a seed, with the t interval over the S seeds (none for S = 1)."""
    e, seeds = clustered(np.array(values)), len(values)
    # two sides are counted with this variance each; paired by seed, they have S - 1 degrees of freedom
    return Measure(e, unit, seeds, 0.0, e.se**2 * seeds / 2, note, freedom=1.0)


def of_result(result: OverSeeds, unit: str, note: str = "", margin: float = float("nan")) -> Measure:
    """Return the measure of a mean or a difference of fractions, times 100.

    unit: points or %; note: for the reader; margin: of equivalence, in this unit.
    """
    both, problems = result.both, result.problems
    stays = max(0.0, problems.se**2 - (result.falling if np.isfinite(result.falling) else 0.0))
    falls = max(0.0, both.se**2 - stays) if np.isfinite(both.se) else float("nan")
    return Measure(
        result.tested.times(100),
        unit,
        result.seeds,
        100**2 * stays,
        100**2 * falls * result.seeds / 2,
        note,
        result.freedom,
        margin=margin,
    )


def mean_of(measures: Iterable[Measure], independent: bool = True) -> Measure:
    """Return the mean of independent measures (other tasks, other runs): SE = sqrt(sum SE^2) / B, Satterthwaite.

    Not independent (two models on the same problems): the mean of their SE, with the fewest degrees of freedom: never
    too small.
    """
    ms = list(measures)
    if len(ms) == 1:
        return ms[0]
    mean, error = (float(np.mean([getattr(m.estimate, name) for m in ms])) for name in ("mean", "se"))
    estimate = Estimate(mean, error, min(m.estimate.df for m in ms))
    if independent:
        variance, df = combined([(m.estimate.se**2 / len(ms) ** 2, m.estimate.df) for m in ms])
        estimate = Estimate(mean, float(np.sqrt(variance)), df)
    fewest = {name: min(getattr(m, name) for m in ms) for name in ("seeds", "bases", "freedom", "prompts")}
    means = {n: float(np.mean([getattr(m, n) for m in ms])) for n in ("margin", "problem_variance", "seed_variance")}
    for name in ("problem_variance", "seed_variance"):
        means[name] /= len(ms) if independent else 1
    return Measure(**{**vars(ms[0]), **fewest, **means, "estimate": estimate, "note": ""})


def mean_of_bases(measures: Iterable[Measure]) -> Measure:
    """Return the mean over base models of one kind, the base as a random effect: with the wider of two intervals.

    One is the t interval over the bases' own numbers, B - 1 degrees of freedom. The other holds these bases as given:
    they are not independent, as they share their problems (:func:`mean_of`).
    """
    ms = list(measures)
    over, given = clustered(np.array([m.estimate.mean for m in ms])), mean_of(ms, independent=False)
    wider = over if over.half_width > given.estimate.half_width else given.estimate
    return replace(given, estimate=wider, bases=len(ms))
