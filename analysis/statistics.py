"""Error bars for benchmark accuracies: pure functions over arrays of problems, samples and training seeds.

Symbols: n problems of a benchmark, K samples a problem, S training seeds, B benchmarks; p_i = mean of problem i.
Accuracies are fractions in [0, 1]. Intervals are two-sided t intervals, 95% unless said.

Sources: Miller 2024 "Adding Error Bars to Evals" (problems as clusters, paired differences); Cornfield and Tukey 1956
(variance of the mean of a crossed problems x seeds table); Satterthwaite 1946; Holm 1979; Schuirmann 1987 (two
one-sided tests); Dunnett 1955 (many against one); DerSimonian and Laird 1986, Hartung and Knapp 2001 (random effects).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from bapo.evaluation.scores import standard_error

CONFIDENCE = 0.95


def t_quantile(df: float) -> float:
    """Return the half-width of the two-sided t interval in standard errors; NaN without a degree of freedom."""
    from scipy.special import stdtrit

    return float(stdtrit(df, 0.5 + CONFIDENCE / 2)) if df > 0 else float("nan")


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
    def ends(self) -> tuple[float, float, float]:
        """Return mean, low and high."""
        return self.mean, self.low, self.high

    @property
    def points(self) -> tuple[float, float, float]:
        """Return a fraction's mean, low and high in percent or points."""
        return self.times(100).ends

    def times(self, factor: float) -> Estimate:
        """Return the estimate in another unit, of which there are ``factor`` in one of this."""
        return Estimate(factor * self.mean, factor * self.se, self.df)

    @property
    def p(self) -> float:
        """Return the two-sided p-value of "the mean is 0". Without any spread it is 1 at exactly 0, else 0."""
        from scipy.special import stdtr

        if self.se == 0:
            return 1.0 if self.mean == 0 else 0.0
        if not self.se > 0 or not self.df > 0:
            return float("nan")
        return float(2 * stdtr(self.df, -abs(self.mean) / self.se))

    def p_equivalent(self, margin: float) -> float:
        """Return the p-value of "the mean is ``margin`` or more, on either side of 0"; 1 without interval or margin.

        That is the larger of two one-sided tests. Below 5%, the 90% interval lies inside -margin to +margin.
        """
        from scipy.special import stdtr

        if not (self.se >= 0 and self.df > 0 and margin > 0):
            return 1.0
        if self.se == 0:
            return float(abs(self.mean) >= margin)
        return float(stdtr(self.df, (abs(self.mean) - margin) / self.se))


# ------------------------------------------------------------------------------------------------ one trained model


def clustered(outcomes: np.ndarray) -> Estimate:
    """Return the accuracy with the error for NEW problems and n - 1 degrees of freedom.

    The error is that of :func:`bapo.evaluation.scores.standard_error`. outcomes: 0/1 [n, K], or p_i [n]. The K samples
    of a problem are one cluster: they are not K independent facts.
    """
    p = np.asarray(outcomes, dtype=np.float64)
    p = p if p.ndim == 1 else p.mean(axis=-1)
    se = standard_error(p.tolist())
    return Estimate(float(p.mean()), float("nan") if se is None else se, len(p) - 1)


def sampling_noise(outcomes: np.ndarray) -> np.ndarray:
    """Return the standard error on THESE problems, from sampling alone: sqrt(sum p_i (1 - p_i) / (K - 1)) / n.

    outcomes: 0/1 [..., n, K], returned [...]. NaN for K = 1.
    """
    (n, k), p = outcomes.shape[-2:], outcomes.mean(axis=-1)
    return np.sqrt((p * (1 - p)).sum(axis=-1) / (k - 1 or np.nan)) / n


# ------------------------------------------------------------------------------------------------ several seeds


@dataclass(frozen=True)
class OverSeeds:
    """A number over problems and training seeds.

    problems: with the error for new problems, the trained models given (the interval printed in tables).
    both: with the error for new problems AND new training seeds; NaN where a trained side has one seed.
    falling: the part of problems.se^2 that more seeds lower as 1 / S (interaction, sampling); NaN likewise.
    seeds: of the trained side that has fewest; freedom: degrees of freedom that one more seed adds, 2 for a difference
    of two trained sides with seeds of their own. seed_means [S]: the number of each seed; by_seed: of a difference, by
    the training seeds that both sides have, empty where their seeds are independent.
    """

    problems: Estimate
    both: Estimate
    falling: float = float("nan")
    seeds: int = 1
    freedom: float = 1.0
    seed_means: tuple[float, ...] = ()
    by_seed: Mapping[int, float] = field(default_factory=dict)

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

    @property
    def seed_sd(self) -> float:
        """Return the standard deviation between training seeds (S - 1 in the denominator); NaN for one seed."""
        return float(np.std(self.seed_means, ddof=1)) if len(self.seed_means) > 1 else float("nan")


@dataclass(frozen=True)
class Side:
    """One side of a comparison. tables: of each benchmark, [S, n]; seeds: the training seed of each row.

    Without seeds it is one given model (the base), which is no sample of training runs and adds no seed variance.
    """

    tables: Sequence[np.ndarray]
    seeds: Sequence[int] = ()

    def of(self, seeds: Sequence[int]) -> Side:
        """Return the rows of these training seeds, in this order."""
        rows = [self.seeds.index(seed) for seed in seeds]
        return Side([table[rows] for table in self.tables], seeds)


def _problem_variance(columns: Sequence[np.ndarray]) -> tuple[float, float]:
    """(V, df) of the average over B benchmarks of problem means x_b [n_b]: V = sum SE_b^2 / B^2."""
    return combined([(e.se**2 / len(columns) ** 2, e.df) for e in map(clustered, columns)])


def combined(parts: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return the sum of independent variances and its Satterthwaite degrees of freedom. parts: (variance, df) each."""
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


def _parts(means: Sequence[np.ndarray], trained: Sequence[Sequence[np.ndarray]]) -> dict[str, Any]:
    """Return the fields of OverSeeds of averaged problem means [n_b]. trained: tables of the sides with seeds."""
    mean, variance = float(np.mean([m.mean() for m in means])), _problem_variance(means)
    return {
        "problems": Estimate(mean, float(np.sqrt(variance[0])), variance[1]),
        "both": _with_seeds(mean, variance, [_seed_variance(tables) for tables in trained]),
        "falling": float(sum(_interaction_variance(tables) for tables in trained)),
        "seeds": min((len(tables[0]) for tables in trained), default=1),
    }


def mean_over_seeds(*benchmarks: np.ndarray) -> OverSeeds:
    """Return the mean over S seeds and n problems of one benchmark, or the average of the means of several.

    benchmarks: problems' means [S, n_b] each, the same seeds in the same order in all of them. Each problem is averaged
    over seeds, then :func:`clustered`; several benchmarks: SE = sqrt(sum SE_b^2) / B.
    """
    seed_means = np.mean([t.mean(axis=1) for t in benchmarks], axis=0)
    parts = _parts([t.mean(axis=0) for t in benchmarks], [benchmarks])
    return OverSeeds(**parts, seed_means=tuple(map(float, seed_means)))


def by_unit(table: np.ndarray, units: Sequence[str]) -> np.ndarray:
    """Return the table [S, k] of k units that stands for one of problems [S, n], for the error for NEW units.

    Its mean of each seed is the same, and its spread over units that of the sums of their residuals, so that
    :func:`mean_over_seeds` has the cluster-robust error with k / (k - 1).

    Args:
        units: What each problem asks about [n]; several problems may ask about the same.
    """
    codes = np.unique(units, return_inverse=True)[1]
    members = np.eye(codes.max() + 1)[codes]
    means = table.mean(axis=1, keepdims=True)
    return means + (table - means) @ members * (members.shape[1] / len(codes))


def aligned(a: Side, b: Side) -> tuple[Side, Side]:
    """Return the two sides with the training seeds that both have, in order; as they are where they share none."""
    if shared := sorted(set(a.seeds) & set(b.seeds)):
        return a.of(shared), b.of(shared)
    return a, b


def difference(a: Side, b: Side) -> OverSeeds:
    """Return the mean of a minus the mean of b, by the one rule of pairing (docs/evaluation.md, "Comparing two rows").

    Problems are paired, and so are the training seeds that both sides have: what two runs of one seed share (base,
    problems, their order) cancels, and the error is that of a crossed table of differences. Where the sides share no
    seed, each adds its own excess. Both must have the same problems in the same order; raises ValueError otherwise.
    """
    a, b = aligned(a, b)
    x, y = a.tables, b.tables
    if [t.shape[1] for t in x] != [t.shape[1] for t in y]:
        raise ValueError("a difference needs the same benchmarks with the same problems on both sides")
    if a.seeds and a.seeds == b.seeds:
        mean = mean_over_seeds(*[i - j for i, j in zip(x, y, strict=True)])
        return replace(mean, by_seed=dict(zip(a.seeds, mean.seed_means, strict=True)))
    trained = [tables for tables, side in ((x, a), (y, b)) if side.seeds]
    parts = _parts([i.mean(axis=0) - j.mean(axis=0) for i, j in zip(x, y, strict=True)], trained)
    return OverSeeds(**parts, freedom=2.0 if len(trained) == 2 else 1.0)


def unpaired(a: Side, b: Side) -> OverSeeds:
    """Return the mean of a minus the mean of b, paired by problem and not by seed: each side adds its own excess."""
    return difference(a, Side(b.tables, [-1 - seed for seed in b.seeds]))


def pooled(rows: Sequence[Side], a: Side, b: Side, blocks: bool = False) -> Estimate:
    """Return the mean of a minus the mean of b in one model of all ``rows``, each trained with two or more seeds.

    It is the mixed model of method (fixed), problem, problem x method and seed (random), with one variance of seeds for
    all methods. Its REML estimates are these mean squares, as the table is balanced, unless the excess falls below 0.

    Args:
        blocks: Whether the model has a random effect of a seed that all rows share, as base models in the seeds' place
            have. All rows must then have the same seeds.
    """
    tables = [row.tables for row in rows]
    if blocks:  # what a block adds to all rows cancels in their difference, and one row in each is no longer free
        shared = [np.mean(of_rows, axis=0) for of_rows in zip(*tables, strict=True)]
        tables = [[t - block for t, block in zip(of_row, shared, strict=True)] for of_row in tables]
    of_rows = [(len(of_row[0]), *_seed_variance(of_row)) for of_row in tables]
    free = (len(rows) - 1) / len(rows) if blocks else 1.0
    freedom = sum(df for *_, df in of_rows) * free
    excess, variance = (
        sum(seeds * parts[i] * parts[2] for seeds, *parts in of_rows) / freedom for i in (0, 1)
    )  # these are variances of one seed's mean
    seeds = sum(1 / len(side.tables[0]) for side in (a, b))
    means = [x.mean(axis=0) - y.mean(axis=0) for x, y in zip(a.tables, b.tables, strict=True)]
    parts = excess * seeds, variance * seeds, freedom
    return _with_seeds(float(np.mean([m.mean() for m in means])), _problem_variance(means), [parts])


def signed_ranks(differences: Sequence[float]) -> float:
    """Return the two-sided p-value of Wilcoxon's signed ranks, which takes symmetry for granted; 1 for zeros."""
    from scipy.stats import wilcoxon

    exact = np.round(differences, 12)  # what is equal in fractions is not in floats
    return float(wilcoxon(exact).pvalue) if exact.any() else 1.0


def dunnett(estimates: Sequence[Estimate]) -> np.ndarray:
    """Return the p-values [m] of m differences to one reference, adjusted for their number.

    P(max |T_j| >= |t_i|) where each T_j is t with the estimate's degrees of freedom and any two, which share the
    reference, correlate by 1/2 (Dunnett 1955). By Gauss-Hermite quadrature over the reference's mean, and by 200
    quantiles of the common standard error.
    """
    from scipy.special import chdtri, ndtr

    nodes, weights = np.polynomial.hermite_e.hermegauss(64)
    shares = (np.arange(200) + 0.5) / 200
    adjusted = []
    for e in estimates:
        if not e.se > 0:  # without spread p is that of one difference
            adjusted.append(e.p)
            continue
        scale = np.sqrt(chdtri(e.df, shares) / e.df)[:, None]
        reach = np.sqrt(2) * abs(e.mean) / e.se * scale
        inside = (ndtr(nodes + reach) - ndtr(nodes - reach)) ** len(estimates)
        adjusted.append(1 - float((inside @ weights).mean() / weights.sum()))
    return np.clip(adjusted, 0, 1)


def share_of_gain(
    of: Sequence[np.ndarray], reference: Sequence[np.ndarray], base: Sequence[np.ndarray]
) -> list[np.ndarray]:
    """Return (of - reference) / (reference - base), the ratio of the means, as tables with its mean and its spread.

    of, reference, base: an array each benchmark, paired, of accuracies [S] or [S, n]. The spread is the delta method's:
    of ratio + (d - ratio g) / mean g, with d and g the difference and the gain at one place.
    """
    d, g = ([x - y for x, y in zip(*sides, strict=True)] for sides in ((of, reference), (reference, base)))
    lead, gain = (np.mean([table.mean() for table in tables]) for tables in (d, g))
    ratio = lead / gain
    return [ratio + (x - ratio * y) / gain for x, y in zip(d, g, strict=True)]


def over_bases(bases: Sequence[Sequence[np.ndarray]]) -> Estimate:
    """Return the mean over base models, with seeds nested in bases, and bases, seeds and problems random.

    bases: of each base the tables [S, n_b] of one difference, the same problems in all. What bases add to the variance
    is at least what their seeds alone would add, since a base's number is a mean over its seeds. The mean squares of
    this balanced table are the REML estimates, and one that falls below another stands at it.
    """
    of_base = [np.stack(tables) for tables in zip(*([t.mean(axis=0) for t in base] for base in bases), strict=True)]
    excess, variances, freedom = zip(*map(_seed_variance, bases), strict=True)
    seeds = sum(excess) / len(bases) ** 2, sum(variances) / len(bases) ** 2, sum(freedom)
    part = max(_seed_variance(of_base), seeds if freedom[0] else (0.0, 0.0, 0.0))
    means = [t.mean(axis=0) for t in of_base]
    return _with_seeds(float(np.mean([m.mean() for m in means])), _problem_variance(means), [part])


def random_effects(estimates: Sequence[Estimate]) -> Estimate:
    """Return the mean of k estimates, each of an effect of its own, and its error for a further effect's kind.

    The variance between effects is DerSimonian and Laird's, the error Hartung and Knapp's with k - 1 degrees of
    freedom, at least that of effects which differ no more than their errors say.
    """
    means, variances = (np.array(values) for values in zip(*((e.mean, e.se**2) for e in estimates), strict=True))
    freedom, weights = len(means) - 1, 1 / variances
    spread = (weights * (means - np.average(means, weights=weights)) ** 2).sum() - freedom
    between = max(0.0, spread / (weights.sum() - (weights**2).sum() / weights.sum()))
    weights = 1 / (variances + between)
    mean = float(np.average(means, weights=weights))
    ratio = (weights * (means - mean) ** 2).sum() / freedom
    return Estimate(mean, float(np.sqrt(max(1.0, ratio) / weights.sum())), freedom)


# ------------------------------------------------------------------------------------------------ several tasks

#: draws of the stratified bootstrap
DRAWS = 2000


def probability_of_improvement(
    a: Sequence[np.ndarray], b: Sequence[np.ndarray], weights: Sequence[float] | None = None
) -> np.ndarray:
    """Return the chance that a run of a is above a run of b, a tie counting half, averaged over tasks.

    a, b: of each task the accuracies of its runs [..., S], returned [...]; weights: of each task.
    """
    sides = [(x[..., :, None], y[..., None, :]) for x, y in zip(a, b, strict=True)]
    return np.average([((x > y) + 0.5 * (x == y)).mean(axis=(-1, -2)) for x, y in sides], axis=0, weights=weights)


def interquartile_mean(runs: Sequence[np.ndarray]) -> np.ndarray:
    """Return the mean of the middle half of all runs of all tasks. runs: of each task [..., S], returned [...]."""
    from scipy.stats import trim_mean

    return np.asarray(trim_mean(np.concatenate(runs, axis=-1), 0.25, axis=-1))


def stratified(
    measure: Callable[..., np.ndarray], *sides: Sequence[np.ndarray], draws: int = DRAWS
) -> tuple[float, float, float]:
    """Return a measure of runs and its 95% interval: percentiles over draws of each task's runs, of each side its own.

    sides: what ``measure`` takes, of each task [S]. Agarwal et al. 2021, "Deep RL at the Edge of the Statistical
    Precipice".
    """
    random = np.random.default_rng(0)
    drawn = [[runs[random.integers(len(runs), size=(draws, len(runs)))] for runs in side] for side in sides]
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(measure(*drawn), [tail, 1 - tail])
    return float(measure(*sides)), float(low), float(high)


# ------------------------------------------------------------------------------------------------ many comparisons


def holm(p_values: Sequence[float]) -> np.ndarray:
    """Return Holm-adjusted p-values [m], in the order given: max over smaller p of min(1, (m - rank) p)."""
    p = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(p, kind="stable")
    scaled = (len(p) - np.arange(len(p))) * p[order]
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(1.0, np.maximum.accumulate(scaled))
    return adjusted
