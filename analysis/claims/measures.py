"""What a query returns: a number with its interval, and what is known of where its noise comes from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from analysis.statistics import Estimate, SeedDifference, SeedMean


class NotTestable(Exception):
    """The runs are there, but what the claim speaks of is not in them; the message says why."""


@dataclass(frozen=True)
class Measure:
    """One number, in ``unit``.

    seeds: training seeds behind it (of the side that has fewest). problem_variance: the part of its squared standard
    error that more seeds do not lower; seed_variance: of one seed of one side, as ``variance.seeds_needed`` takes it,
    NaN where one seed cannot tell. note: the numbers that it was made of, for the reader.
    """

    estimate: Estimate
    unit: str
    seeds: int
    problem_variance: float = 0.0
    seed_variance: float = float("nan")
    note: str = ""


def of_seeds(values: Sequence[float], unit: str, note: str = "") -> Measure:
    """The mean of one number a seed, with the t interval over the S seeds (none for S = 1)."""
    x = np.asarray(values, dtype=np.float64)
    spread = float(x.std(ddof=1)) if len(x) > 1 else float("nan")
    estimate = Estimate(float(x.mean()), spread / np.sqrt(len(x)), len(x) - 1)
    # seeds_needed counts two sides with this variance each
    return Measure(estimate, unit, len(x), 0.0, spread**2 / 2, note)


def of_two(found: SeedDifference | SeedMean, seeds: int, unit: str, scale: float = 1.0, note: str = "") -> Measure:
    """A mean or a difference over problems and seeds; ``scale``: 100 turns fractions into points."""
    both, problems = found.both, found.problems
    used = both if np.isfinite(both.se) else problems
    estimate = Estimate(scale * used.mean, abs(scale) * used.se, used.df)
    excess = max(0.0, both.se**2 - problems.se**2) if np.isfinite(both.se) else float("nan")
    return Measure(estimate, unit, seeds, (scale * problems.se) ** 2, scale**2 * excess * seeds / 2, note)


def mean_of(measures: Iterable[Measure]) -> Measure:
    """The mean of independent measures (other tasks or models, other runs): SE = sqrt(sum SE^2) / B, Satterthwaite."""
    ms = list(measures)
    parts = [(m.estimate.se**2 / len(ms) ** 2, m.estimate.df) for m in ms]
    total = sum(v for v, _ in parts)
    weights = sum(v**2 / df for v, df in parts if v > 0)
    df = total**2 / weights if weights > 0 else min(df for _, df in parts)
    return Measure(
        Estimate(float(np.mean([m.estimate.mean for m in ms])), float(np.sqrt(total)), float(df)),
        ms[0].unit,
        min(m.seeds for m in ms),
        sum(m.problem_variance for m in ms) / len(ms) ** 2,
        sum(m.seed_variance for m in ms) / len(ms) ** 2,
    )


def share_table(chosen: np.ndarray, hit: np.ndarray, what: str) -> np.ndarray:
    """A ratio of two sums as a table [S, n] whose mean is that ratio and whose spread is the ratio's (linearisation).

    chosen: 0/1 [S, n], the prompts counted in each seed; hit [S, n], in [0, 1].
    Raises NotTestable where none is chosen.
    """
    chosen, hit = chosen.astype(np.float64), hit.astype(np.float64)
    if not chosen.sum():
        raise NotTestable(f"no {what}")
    share = (chosen * hit).sum() / chosen.sum()
    return share + chosen * (hit - share) / chosen.mean()


def ratios(a: dict[int, float], b: dict[int, float]) -> list[float]:
    """a / b of each seed that both have: the two share their base, their problems and the order of these."""
    seeds = sorted(set(a) & set(b))
    if not seeds:
        raise NotTestable("the two have no training seed in common")
    return [a[s] / b[s] for s in seeds]
