"""Error bars for benchmark accuracies: pure functions over arrays of problems, samples and training seeds.

Symbols: n problems of a benchmark, K samples a problem, S training seeds, B benchmarks; p_i = mean of problem i.
Accuracies are fractions in [0, 1]. Intervals are two-sided t intervals, 95% unless said.

Sources: Miller 2024 "Adding Error Bars to Evals" (problems as clusters, paired differences); Chen et al. 2021 (pass@k);
Cornfield and Tukey 1956 (variance of the mean of a crossed problems x seeds table); Satterthwaite 1946; Holm 1979;
Colas et al. 2018 (how many seeds a difference needs).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

CONFIDENCE = 0.95
#: more seeds than anybody would train
MOST_SEEDS = 10_000


def t_quantile(df: float, confidence: float = CONFIDENCE) -> float:
    """Half-width of the two-sided t interval in standard errors; NaN where there is no degree of freedom."""
    from scipy.special import stdtrit

    return float(stdtrit(df, 0.5 + confidence / 2)) if df > 0 else float("nan")


@dataclass(frozen=True)
class Estimate:
    """A mean with its standard error and the degrees of freedom of that error (NaN where it cannot be estimated)."""

    mean: float
    se: float
    df: float

    @property
    def half_width(self) -> float:
        return t_quantile(self.df) * self.se

    @property
    def low(self) -> float:
        return self.mean - self.half_width

    @property
    def high(self) -> float:
        return self.mean + self.half_width

    @property
    def p(self) -> float:
        """Two-sided p-value of "the mean is 0". Without any spread: 1 at exactly 0, else 0."""
        from scipy.special import stdtr

        if self.se == 0:
            return 1.0 if self.mean == 0 else 0.0
        if not self.se > 0 or not self.df > 0:
            return float("nan")
        return float(2 * stdtr(self.df, -abs(self.mean) / self.se))


# ------------------------------------------------------------------------------------------------ one trained model


def clustered(outcomes: np.ndarray) -> Estimate:
    """Accuracy with the error for NEW problems: SE = sqrt(sum (p_i - p)^2 / (n (n - 1))), t with n - 1.

    outcomes: 0/1 [n, K], or p_i [n]. The K samples of a problem are one cluster: they are not K independent facts.
    """
    p = np.asarray(outcomes, dtype=np.float64)
    p = p if p.ndim == 1 else p.mean(axis=-1)
    n = len(p)
    return Estimate(float(p.mean()), float(np.sqrt(p.var(ddof=1) / n)) if n > 1 else float("nan"), n - 1)


def sampling_noise(outcomes: np.ndarray) -> float:
    """Standard error on THESE problems, from sampling alone: sqrt(sum p_i (1 - p_i) / (K - 1)) / n.

    outcomes: 0/1 [n, K]. NaN for K = 1.
    """
    outcomes = np.asarray(outcomes, dtype=np.float64)
    n, k = outcomes.shape
    p = outcomes.mean(axis=1)
    return float(np.sqrt((p * (1 - p)).sum() / (k - 1)) / n) if k > 1 else float("nan")


def pass_at_k(correct: np.ndarray, samples: int, k: int) -> np.ndarray:
    """Unbiased pass@k of each problem [n]: 1 - C(K - c, k) / C(K, k), as a product that cannot overflow.

    correct: c [n], integers in 0..K; samples: K. Chen et al. 2021, section 2.1.
    """
    if not 1 <= k <= samples:
        raise ValueError(f"pass@{k} needs 1 <= k <= {samples} samples")
    c = np.asarray(correct, dtype=np.int64)
    wrong = samples - c
    # C(K-c, k) / C(K, k) = prod over i = 0..k-1 of (K - c - i) / (K - i); a factor 0 once K - c < k
    i = np.arange(k)
    factors = np.clip(wrong[:, None] - i, 0, None) / (samples - i)
    return 1.0 - factors.prod(axis=1)


# ------------------------------------------------------------------------------------------------ several seeds


def seed_spread(values: Sequence[float]) -> float:
    """Standard deviation between training seeds (S - 1 in the denominator); NaN for one seed."""
    return float(np.std(values, ddof=1)) if len(values) > 1 else float("nan")


@dataclass(frozen=True)
class OverSeeds:
    """A number over problems and training seeds.

    problems: with the error for new problems, the trained models given (the interval printed in tables).
    both: with the error for new problems AND new training seeds; NaN where a trained side has one seed.
    falling: the part of problems.se^2 that more seeds lower as 1 / S (interaction, sampling); NaN likewise.
    """

    problems: Estimate
    both: Estimate
    falling: float = float("nan")

    @property
    def mean(self) -> float:
        return self.problems.mean

    @property
    def several_seeds(self) -> bool:
        """Return whether every trained side has two or more seeds: only then can it speak of methods, not of models."""
        return bool(np.isfinite(self.both.se))

    @property
    def tested(self) -> Estimate:
        """Return the stricter estimate that the data allow."""
        return self.both if self.several_seeds else self.problems


@dataclass(frozen=True)
class SeedMean(OverSeeds):
    """A mean over training seeds and problems. seed_means [S]: each seed's accuracy; seed_sd: their spread."""

    seed_means: tuple[float, ...] = ()
    seed_sd: float = float("nan")


class SeedDifference(OverSeeds):
    """a minus b, paired on the same problems."""


def _table(values: np.ndarray) -> np.ndarray:
    """[S, n] of problem means, from [S, n] or [S, n, K]."""
    values = np.asarray(values, dtype=np.float64)
    if values.ndim not in (2, 3):
        raise ValueError(f"expected [seeds, problems] or [seeds, problems, samples], got shape {values.shape}")
    return values if values.ndim == 2 else values.mean(axis=2)


def _problem_variance(columns: Sequence[np.ndarray]) -> tuple[float, float]:
    """(V, df) of the average over B benchmarks of problem means x_b [n_b]: V = sum V_b / B^2, V_b = var(x_b) / n_b."""
    parts = [(x.var(ddof=1) / len(x) if len(x) > 1 else np.nan, len(x) - 1) for x in columns]
    return _combined([(v / len(columns) ** 2, df) for v, df in parts])


def _combined(parts: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Sum of independent variances and its Satterthwaite degrees of freedom."""
    total = sum(v for v, _ in parts)
    weights = sum(v**2 / df for v, df in parts if v > 0)
    return float(total), float(total**2 / weights) if weights > 0 else float(sum(df for _, df in parts))


def _interaction_variance(tables: Sequence[np.ndarray]) -> float:
    """V_interaction: what seeds that are better at some problems, and sampling, add to the variance of the grand mean.

    NaN for one seed.
    """
    seeds, variance = len(tables[0]), 0.0
    if seeds < 2:
        return float("nan")
    for t in tables:
        n = t.shape[1]
        residual = t - t.mean(axis=1, keepdims=True) - t.mean(axis=0, keepdims=True) + t.mean()
        mean_square = (residual**2).sum() / max(1, (n - 1) * (seeds - 1))
        variance += mean_square / (n * seeds) / len(tables) ** 2
    return float(variance)


def _seed_variance(tables: Sequence[np.ndarray]) -> tuple[float, float, float]:
    """Return what training seeds add to the variance of the grand mean: (excess, V_seeds, df).

    Crossed random effects: Var(mean) = (MS_problems + MS_seeds - MS_interaction) / (n S). The problems' term already
    holds the interaction and the sampling noise, so only the excess V_seeds - V_interaction is new; it is not let
    below 0. Benchmarks share their seeds (one trained model answers them all), so V_seeds is that of their average.
    """
    seeds = len(tables[0])
    if seeds < 2:
        return float("nan"), float("nan"), 0.0
    per_seed = np.mean([t.mean(axis=1) for t in tables], axis=0)
    v_seeds = per_seed.var(ddof=1) / seeds
    return float(max(0.0, v_seeds - _interaction_variance(tables))), float(v_seeds), seeds - 1.0


def _with_seeds(mean: float, problems: tuple[float, float], seeds: Sequence[tuple[float, float, float]]) -> Estimate:
    """Return the estimate whose variance is the problems' plus every seed excess.

    Satterthwaite's degrees of freedom, where a variance is a difference of two, can fall below those of every part,
    which makes intervals of thousands of points; they are kept at the least part's.
    """
    total = problems[0] + sum(excess for excess, _, _ in seeds)
    weights = problems[0] ** 2 / problems[1] if problems[1] > 0 else 0.0
    weights += sum(v**2 / df for _, v, df in seeds if df > 0)
    least = min([problems[1], *(df for _, _, df in seeds)])
    return Estimate(mean, float(np.sqrt(total)), max(float(total**2 / weights), least) if weights > 0 else problems[1])


def mean_over_seeds(*benchmarks: np.ndarray) -> SeedMean:
    """Return the mean over S seeds and n problems of one benchmark, or the average of the means of several.

    benchmarks: one array [S, n_b] or [S, n_b, K] each, the same seeds in the same order in all of them. Each problem is
    averaged over seeds and samples, then :func:`clustered`; several benchmarks: SE = sqrt(sum SE_b^2) / B.
    """
    tables = [_table(b) for b in benchmarks]
    means = [t.mean(axis=0) for t in tables]
    mean = float(np.mean([m.mean() for m in means]))
    variance = _problem_variance(means)
    seed_means = np.mean([t.mean(axis=1) for t in tables], axis=0)
    return SeedMean(
        problems=Estimate(mean, float(np.sqrt(variance[0])), variance[1]),
        both=_with_seeds(mean, variance, [_seed_variance(tables)]),
        seed_means=tuple(float(m) for m in seed_means),
        seed_sd=seed_spread(seed_means),
        falling=_interaction_variance(tables),
    )


def difference_over_seeds(
    a: Sequence[np.ndarray], b: Sequence[np.ndarray], fixed: tuple[bool, bool] = (False, False)
) -> SeedDifference:
    """Mean of a minus mean of b: problems paired, training seeds independent.

    a, b: a list of benchmarks each, [S, n] or [S, n, K], on the same problems in the same order; S may differ.
    fixed: whether a side is one given model (the base) and not a sample of training runs: it adds no seed variance.
    """
    tables = [[_table(x) for x in side] for side in (a, b)]
    if [t.shape[1] for t in tables[0]] != [t.shape[1] for t in tables[1]]:
        raise ValueError("difference_over_seeds needs the same benchmarks with the same problems on both sides")
    d = [x.mean(axis=0) - y.mean(axis=0) for x, y in zip(*tables, strict=True)]
    mean = float(np.mean([x.mean() for x in d]))
    variance = _problem_variance(d)
    trained = [side for side, is_fixed in zip(tables, fixed, strict=True) if not is_fixed]
    return SeedDifference(
        problems=Estimate(mean, float(np.sqrt(variance[0])), variance[1]),
        both=_with_seeds(mean, variance, [_seed_variance(side) for side in trained]),
        falling=float(sum(_interaction_variance(side) for side in trained)),
    )


def paired_over_seeds(tables: Sequence[np.ndarray]) -> SeedDifference:
    """Mean of differences with problems paired, and training seeds too: each table [S, n] holds those of one benchmark.

    The error is that of a crossed design. What two runs of one seed share (base, prompts, their order) cancels.
    """
    mean = mean_over_seeds(*tables)
    return SeedDifference(mean.problems, mean.both, mean.falling)


def average_standard_error(errors: Sequence[float]) -> float:
    """Standard error of the average of B independent benchmarks: sqrt(sum SE_b^2) / B."""
    squares = np.asarray(errors, dtype=np.float64) ** 2
    return float(np.sqrt(squares.sum()) / len(errors))


# ------------------------------------------------------------------------------------------------ many comparisons


def holm(p_values: Sequence[float]) -> np.ndarray:
    """Holm-adjusted p-values [m], in the order given: max over smaller p of min(1, (m - rank) p)."""
    p = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(p, kind="stable")
    scaled = (len(p) - np.arange(len(p))) * p[order]
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(1.0, np.maximum.accumulate(scaled))
    return adjusted


# ------------------------------------------------------------------------------------------------ power


def power(
    difference: float,
    problem_variance: float,
    seed_variance: float,
    seeds: int,
    level: float = 0.05,
    freedom: float = 2.0,
) -> float:
    """Return the chance that a two-sided t test finds a true ``difference`` of two methods with ``seeds`` seeds each.

    problem_variance: of the paired mean difference from the choice of problems (of its squared standard error the part
    that seeds do not lower and more problems do); seed_variance: of a single seed of one method, with all that falls as
    1 / S; fractions squared. The degrees of freedom are those of the seeds, ``freedom`` (S - 1), which is cautious: 2
    for two methods with seeds of their own, 1 where the two are paired by seed.
    """
    from scipy.stats import nct, norm, t

    if seeds < 2:
        return float("nan")
    error = np.sqrt(problem_variance + 2 * seed_variance / seeds)
    if error == 0:
        return 1.0 if difference else level
    df = freedom * (seeds - 1)
    limit, shift = t.isf(level / 2, df), abs(difference) / error
    chance = np.nan if df > 60 or shift > 10 else float(nct.sf(limit, df, shift) + nct.cdf(-limit, df, shift))
    if np.isfinite(chance):
        return chance
    # scipy's non-central t fails far out, in places from a shift of 8 on; there it is as good as normal
    spread = np.sqrt(1 + limit**2 / (2 * df))
    return float(norm.sf((limit - shift) / spread) + norm.cdf((-limit - shift) / spread))


def seeds_needed(
    difference: float,
    problem_variance: float,
    seed_variance: float,
    wanted: float = 0.8,
    level: float = 0.05,
    freedom: float = 2.0,
) -> int | None:
    """Return the fewest seeds that find ``difference`` with the ``wanted`` power; the rest as for :func:`power`.

    None where no number does: then the problems are too few, or the difference is 0.
    """
    effect = (difference, problem_variance, seed_variance)
    if difference == 0 or power(*effect, MOST_SEEDS, level, freedom) < wanted:
        return None
    low, high = 1, MOST_SEEDS
    while high - low > 1:
        middle = (low + high) // 2
        if power(*effect, middle, level, freedom) >= wanted:
            high = middle
        else:
            low = middle
    return high
