"""What a query returns: a number with its interval, and what is known of where its noise comes from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from analysis.statistics import Estimate, SeedDifference, SeedMean, mean_over_bases


class NotTestable(Exception):
    """The runs are there, but what the claim speaks of is not in them; the message says why."""


@dataclass(frozen=True)
class Measure:
    """One number, in ``unit``.

    seeds: training seeds behind it (of the side that has fewest). problem_variance: the part of its squared standard
    error that more seeds do not lower; seed_variance: of one seed of one side, NaN where one seed cannot tell; freedom:
    degrees of freedom that one more seed adds; these three as ``power.seeds_needed`` takes them. note: the numbers that
    it was made of, for the reader. bases: base models of one kind whose differences are in the error; prompts: whether
    the choice of training prompts is. margin: of equivalence, in ``unit``, NaN where there is none.
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


def of_seeds(values: Sequence[float], unit: str, note: str = "") -> Measure:
    """Return the mean of one number a seed, with the t interval over the S seeds (none for S = 1)."""
    x = np.asarray(values, dtype=np.float64)
    spread = float(x.std(ddof=1)) if len(x) > 1 else float("nan")
    estimate = Estimate(float(x.mean()), spread / np.sqrt(len(x)), len(x) - 1)
    # seeds_needed counts two sides with this variance each; paired by seed, they have S - 1 degrees of freedom
    return Measure(estimate, unit, len(x), 0.0, spread**2 / 2, note, freedom=1.0)


def of_result(result: SeedDifference | SeedMean, unit: str, note: str = "", margin: float = float("nan")) -> Measure:
    """Return a mean or a difference of fractions over problems and seeds, in points or percent (so margin, too)."""
    both, problems, used = result.both, result.problems, result.tested
    stays = max(0.0, problems.se**2 - (result.falling if np.isfinite(result.falling) else 0.0))
    falls = max(0.0, both.se**2 - stays) if np.isfinite(both.se) else float("nan")
    return Measure(
        Estimate(100 * used.mean, 100 * used.se, used.df),
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
    mean = float(np.mean([m.estimate.mean for m in ms]))
    alike = replace(ms[0], note="", seeds=min(m.seeds for m in ms), bases=min(m.bases for m in ms))
    alike = replace(alike, prompts=all(m.prompts for m in ms), freedom=min(m.freedom for m in ms))
    alike = replace(alike, margin=float(np.mean([m.margin for m in ms])))
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
    """Return the mean over base models of one kind (:func:`analysis.statistics.mean_over_bases`)."""
    ms = list(measures)
    estimate = mean_over_bases([m.estimate for m in ms])
    return replace(mean_of(ms, independent=False), estimate=estimate, bases=len(ms))
