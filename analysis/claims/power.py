"""How many training seeds a difference of two methods needs (Colas et al. 2018)."""

from __future__ import annotations

import numpy as np

#: more seeds than anybody would train
MOST_SEEDS = 10_000


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
