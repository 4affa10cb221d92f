"""Error bars: values worked out by hand, the same numbers from SciPy, and simulations with known truth."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.late import LATE

from analysis import statistics as s
from bapo.evaluation.scores import pass_at_k

if LATE:
    from scipy import stats


def bits(seed: int, n: int = 25, k: int = 8) -> np.ndarray:
    random = np.random.default_rng(seed)
    return (random.random((n, k)) < random.beta(0.7, 1.3, (n, 1))).astype(int)


def test_clustered_is_the_t_interval_of_problem_means() -> None:
    x = bits(1)
    test = stats.ttest_1samp(x.mean(axis=1), 0)
    found = s.clustered(x)
    assert (found.low, found.high) == pytest.approx(tuple(test.confidence_interval(0.95)))
    assert found.p == pytest.approx(test.pvalue)


@pytest.mark.filterwarnings("error")
def test_one_problem_has_no_error_bar_and_two_have_one() -> None:
    assert s.clustered(np.array([1.0, 0.0])).se == pytest.approx(0.5)
    assert math.isnan(s.mean_over_seeds(np.array([[1.0], [0.0]])).problems.se)
    assert math.isnan(s.clustered(np.array([[1, 0]])).se)
    assert math.isnan(s.clustered(np.array([[1, 0]])).high)


def test_sampling_noise_by_hand() -> None:
    # p = 1/2, 1, 1/4 of K = 4: sqrt((1/4 + 0 + 3/16) / 3) / 3
    x = np.array([[1, 1, 0, 0], [1, 1, 1, 1], [0, 0, 0, 1]])
    assert s.sampling_noise(x) == pytest.approx(math.sqrt(0.4375 / 3) / 3)
    assert s.sampling_noise(x[:, 1:3]) == pytest.approx(math.sqrt(0.25) / 3)  # p = 1/2, 1, 0 of two
    with np.errstate(all="raise"):
        assert math.isnan(s.sampling_noise(x[:, :1]))


def paired(a: np.ndarray, b: np.ndarray) -> s.Estimate:
    return s.difference(*(s.Side([x.mean(axis=1)[None]], [1]) for x in (a, b))).problems


def test_a_paired_difference_is_the_paired_t_test() -> None:
    a, b = bits(4), bits(5, k=16)
    test = stats.ttest_rel(a.mean(axis=1), b.mean(axis=1))
    found = paired(a, b)
    assert found.p == pytest.approx(test.pvalue)
    assert (found.low, found.high) == pytest.approx(tuple(test.confidence_interval(0.95)))
    with pytest.raises(ValueError, match="same problems"):
        paired(a, b[:-1])


def test_p_without_spread() -> None:
    assert s.clustered(np.zeros(4)).p == 1.0
    assert s.clustered(np.ones(4)).p == 0.0


def test_coverage_of_clustered_and_binomial_intervals() -> None:
    """n = 30 problems x K = 32 samples: t about 0.94, the binomial over all 960 samples far below."""
    random = np.random.default_rng(6)
    p = random.beta(0.5, 0.8, (4000, 30))
    means = random.binomial(32, p) / 32
    truth = 0.5 / 1.3
    centre = means.mean(axis=1)
    quantile = s.t_quantile(29)
    clustered = quantile * np.array([s.clustered(x).se for x in means])
    binomial = 1.96 * np.sqrt(centre * (1 - centre) / 960)
    assert 0.925 < np.mean(np.abs(centre - truth) < clustered) < 0.96
    assert np.mean(np.abs(centre - truth) < binomial) < 0.5


def test_pass_at_k_of_many_samples_does_not_overflow() -> None:
    assert [pass_at_k(correct, 10_000, 5_000) for correct in (0, 1, 10_000)] == pytest.approx([0, 0.5, 1])


def test_mean_over_seeds_by_hand() -> None:
    # seeds x problems; problem means 1/2, 1, 0; seed means 2/3, 1/3
    x = np.array([[1.0, 1.0, 0.0], [0.0, 1.0, 0.0]])
    found = s.mean_over_seeds(x)
    assert found.mean == 0.5
    assert found.problems.se == pytest.approx(math.sqrt(0.25 / 3))
    assert found.seed_means == pytest.approx((2 / 3, 1 / 3))
    assert found.seed_sd == pytest.approx(math.sqrt(2) / 6) and found.seeds == 2
    # interaction residuals: +-1/3 at the first problem, -+1/6 at the others; mean square (2/9 + 4/36) / 2 = 1/6
    excess = (1 / 18) / 2 - (1 / 6) / 6
    assert excess == pytest.approx(0)
    assert found.both.se == pytest.approx(found.problems.se)


def test_seed_variance_is_that_of_the_crossed_table() -> None:
    """Var(mean) = (MS_problems + MS_seeds - MS_interaction) / (n S), from a textbook two-way table."""
    random = np.random.default_rng(7)
    x = random.normal(0, 1, (4, 12)) + random.normal(0, 2, (4, 1)) + random.normal(0, 1.5, (1, 12))
    seeds, n = x.shape
    row, column, grand = x.mean(axis=1), x.mean(axis=0), x.mean()
    ms_seeds = n * ((row - grand) ** 2).sum() / (seeds - 1)
    ms_problems = seeds * ((column - grand) ** 2).sum() / (n - 1)
    total = ((x - grand) ** 2).sum()
    ms_inside = (total - ms_seeds * (seeds - 1) - ms_problems * (n - 1)) / ((n - 1) * (seeds - 1))
    assert s.mean_over_seeds(x).both.se ** 2 == pytest.approx((ms_problems + ms_seeds - ms_inside) / (n * seeds))


@pytest.mark.parametrize(("seeds", "problems"), [(3, (12, 7)), (2, (9,)), (3, (2,))])
def test_seeds_of_several_benchmarks_by_the_formulas(seeds: int, problems: tuple[int, ...]) -> None:
    random = np.random.default_rng(17)
    shift = random.normal(0, 0.8, (seeds, 1))
    tables = [shift + random.normal(0, 1, (seeds, n)) for n in problems]
    found = s.mean_over_seeds(*tables)
    v_seeds = np.mean([t.mean(axis=1) for t in tables], axis=0).var(ddof=1) / seeds
    inside = 0.0
    for t in tables:
        additive = t.mean(axis=1)[:, None] + t.mean(axis=0)[None] - t.mean()
        inside += ((t - additive) ** 2).sum() / ((t.shape[1] - 1) * (seeds - 1)) / t.size / len(tables) ** 2
    assert found.falling == pytest.approx(inside) and v_seeds > inside
    v, df = found.problems.se**2, found.problems.df
    assert found.both.se**2 == pytest.approx(v + v_seeds - inside)
    satterthwaite = found.both.se**4 / (v**2 / df + v_seeds**2 / (seeds - 1))
    assert found.both.df == pytest.approx(max(satterthwaite, min(df, seeds - 1)))


def test_degrees_of_freedom_without_variance_add_up() -> None:
    assert s.combined([(0.0, 3), (0.0, 4)]) == (0.0, 7.0)
    assert s.mean_over_seeds(np.ones((2, 3))).both == s.Estimate(1.0, 0.0, 2)


def test_one_seed_says_nothing_about_seeds() -> None:
    found = s.mean_over_seeds(bits(8).mean(axis=1)[None])
    assert found.tested == found.problems == s.clustered(bits(8))
    assert math.isnan(found.seed_sd) and math.isnan(found.both.se) and math.isnan(found.both.high)


def test_interval_for_problems_and_seeds_covers_and_the_one_for_problems_does_not() -> None:
    """New problems and new training seeds each time, seed effects as large as the problems' share of the error."""
    random = np.random.default_rng(9)
    inside = {"problems": 0, "both": 0}
    for _ in range(800):
        x = 0.5 + random.normal(0, 0.2, (1, 60)) + random.normal(0, 0.06, (4, 1)) + random.normal(0, 0.1, (4, 60))
        found = s.mean_over_seeds(x)
        inside["problems"] += found.problems.low < 0.5 < found.problems.high
        inside["both"] += found.both.low < 0.5 < found.both.high
    assert inside["problems"] / 800 < 0.87
    assert 0.92 < inside["both"] / 800 < 0.98


def test_a_table_of_units_has_the_cluster_robust_error() -> None:
    """Three units of 1, 2 and 3 problems: sqrt(k / (k - 1) * sum of squared sums of residuals) / n."""
    x = np.array([[1.0, 0.0, 0.5, 1.0, 1.0, 0.25]])
    units = ["b", "a", "a", "c", "c", "c"]
    residuals = x[0] - x.mean()
    sums = [residuals[[0]].sum(), residuals[[1, 2]].sum(), residuals[[3, 4, 5]].sum()]
    found = s.clustered(s.by_unit(x, units)[0])
    assert found.mean == pytest.approx(x.mean()) and found.df == 2
    assert found.se == pytest.approx(math.sqrt(3 / 2 * sum(r**2 for r in sums)) / 6)
    several = np.random.default_rng(3).normal(size=(4, 6))
    shifted = several + np.array([[5.0], [0], [0], [0]])  # a better seed adds to the seeds' part alone
    parts = [s._interaction_variance([s.by_unit(table, units)]) for table in (several, shifted)]
    assert parts[0] == pytest.approx(parts[1])
    assert s.by_unit(several, units).mean(axis=1) == pytest.approx(several.mean(axis=1))
    assert np.sort(s.by_unit(several, list("abcdef"))) == pytest.approx(np.sort(several))


def test_average_over_benchmarks() -> None:
    a, b = (np.stack([bits(i), bits(i + 1)]).mean(axis=2) for i in (10, 12))
    b = b[:, :9]
    both, each = s.mean_over_seeds(a, b), [s.mean_over_seeds(x) for x in (a, b)]
    assert both.mean == pytest.approx((each[0].mean + each[1].mean) / 2)
    assert both.problems.se == pytest.approx(math.hypot(each[0].problems.se, each[1].problems.se) / 2)
    assert 8 < both.problems.df < 24 + 8  # between the smaller benchmark's and the sum
    assert both.seed_means == pytest.approx(np.mean([e.seed_means for e in each], axis=0))


def apart(a: np.ndarray, b: np.ndarray) -> s.OverSeeds:
    """a minus b of one benchmark, of seeds that they do not share."""
    return s.difference(s.Side([a], range(len(a))), s.Side([b], range(100, 100 + len(b))))


def test_seeds_that_two_sides_share_are_paired_and_only_these() -> None:
    """Seeds 1 and 2 are on both sides, in another order; of each, d = 1, 0 and 0, 0: mean 1/4."""
    a = s.Side([np.array([[9.0, 9.0], [1.0, 1.0], [1.0, 0.0]])], [7, 2, 1])
    b = s.Side([np.array([[0.0, 0.0], [1.0, 1.0]])], [1, 2])
    found = s.difference(a, b)
    assert found.by_seed == {1: 0.5, 2: 0.0} and (found.mean, found.seeds, found.freedom) == (0.25, 2, 1.0)
    # problems: d 1/2 and 0, variance 1/8 of 2; V_seeds (1/8) / 2 = V_interaction (1/4) / (2 2): no excess
    assert found.problems.se == pytest.approx(0.25) and found.both.se == pytest.approx(0.25)
    assert found.falling == s.mean_over_seeds(np.array([[1.0, 0.0], [0.0, 0.0]])).falling > 0
    # what a seed shares cancels: 40 points more on both sides change nothing
    more = s.Side([b.tables[0] + np.array([[0.4], [0.0]])], [1, 2])
    moved = s.Side([a.tables[0] + np.array([[0.0], [0.0], [0.4]])], [7, 2, 1])
    assert s.difference(moved, more).both.se == pytest.approx(found.both.se)
    # none in common: independent, each side with its own; one given model has none
    alone = s.difference(s.Side(a.tables, [7, 8, 9]), b)
    assert alone.by_seed == {} and (alone.seeds, alone.freedom) == (2, 2.0)
    given = s.difference(a, s.Side([np.array([[0.5, 0.5]])]))
    assert given.by_seed == {} and (given.seeds, given.freedom) == (3, 1.0)
    models = s.difference(s.Side([np.array([[1.0, 0.5]])]), s.Side([np.array([[0.5, 0.5]])]))
    assert (models.mean, models.seeds, models.freedom) == (0.25, 1, 1.0)


def test_a_share_of_gain_by_hand() -> None:
    # leads 1, 2, 3 over gains 4, 4, 4: 1/2, with the spread of the leads over 4
    base, reference = np.zeros(3), np.full(3, 4.0)
    (share,) = s.share_of_gain([reference + np.arange(1.0, 4)], [reference], [base])
    assert share == pytest.approx([0.25, 0.5, 0.75])
    # leads 1, 2 over gains 2, 4: half of the gain in each seed, so nothing varies
    (share,) = s.share_of_gain([np.array([3.0, 6.0])], [np.array([2.0, 4.0])], [np.zeros(2)])
    assert share == pytest.approx([0.5, 0.5])
    # two benchmarks: leads 1 and 0 over gains 2 and 6, ratio of the means 1/8
    tables = s.share_of_gain(
        [np.array([[3.0]]), np.array([[6.0]])], [np.array([[2.0]]), np.array([[6.0]])], [np.zeros(1), np.zeros(1)]
    )
    assert np.mean([t.mean() for t in tables]) == pytest.approx(1 / 8)


def test_equivalence_is_two_one_sided_tests() -> None:
    # t(0.95, 10) = 1.8125: 0.5 + 1.8125 = 2.3125; the 95% interval reaches 2.728
    for e in (s.Estimate(0.5, 1.0, 10), s.Estimate(-0.5, 1.0, 10)):
        assert e.p_equivalent(2.3125) == pytest.approx(0.05, abs=1e-4)
        assert e.p_equivalent(2.32) < 0.05 < e.p_equivalent(2.31)
    nothing = s.Estimate(0.5, 1.0, 10).p_equivalent(float("nan")), s.Estimate(0.0, float("nan"), 0).p_equivalent(1)
    assert nothing == (1.0, 1.0)
    assert (s.Estimate(1.0, 0.0, 10).p_equivalent(1.0), s.Estimate(1.0, 0.0, 10).p_equivalent(1.1)) == (1.0, 0.0)
    low, high = (stats.ttest_1samp([1, 2, 3, 4], x, alternative=way).pvalue for x, way in ((1, "greater"), (4, "less")))
    x = s.clustered(np.array([1.0, 2, 3, 4]) - 2.0)  # a mean of 0.5; the margin 1.5 on either side of 0
    assert x.p_equivalent(1.5) == pytest.approx(stats.ttest_1samp([1, 2, 3, 4], 3.5, alternative="less").pvalue)
    assert s.clustered(np.array([1.0, 2, 3, 4]) - 2.5).p_equivalent(1.5) == pytest.approx(max(low, high))


def test_bases_seeds_and_problems_are_one_mixed_model() -> None:
    """Three bases, two seeds, two problems, no interaction: the base's variance, or its seeds' where that is more."""
    problems, seeds = np.array([0.0, 0.2]), np.array([[-0.1], [0.1]])

    def bases(*effects: float) -> list[list[np.ndarray]]:
        return [[effect + seeds + problems] for effect in effects]

    of_problems = 0.02 / 2  # var(0, 0.2) / 2 problems, 1 degree of freedom
    apart = s.over_bases(bases(0.0, 0.5, 1.0))  # var(0, 0.5, 1) / 3 = 1/12, 2 degrees
    assert (apart.mean, apart.se) == (pytest.approx(0.6), pytest.approx((of_problems + 1 / 12) ** 0.5))
    assert apart.df == pytest.approx((of_problems + 1 / 12) ** 2 / (of_problems**2 / 1 + (1 / 12) ** 2 / 2))
    alike = s.over_bases(bases(0.0, 0.0, 0.0))  # a base's mean over seeds has var(-0.1, 0.1) / 2 = 0.01
    assert alike.se == pytest.approx((of_problems + 0.01 / 3) ** 0.5)
    one_seed = s.over_bases([[x[:1] for x in base] for base in bases(0.0, 0.5, 1.0)])
    assert one_seed.se == pytest.approx(apart.se)


def test_the_pooled_model_has_one_variance_of_seeds() -> None:
    """Two rows of two seeds and the reference, without interaction: seeds' variances 0.02, 0.08 and 0 in one seed."""
    problems = np.array([0.0, 0.1, 0.5])
    a, b, c = (s.Side([spread * np.array([[-0.1], [0.1]]) + problems], [1, 2]) for spread in (1, 2, 0))
    found = s.pooled([a, b, c], a, c)
    # no problem differs between rows; one variance (0.02 + 0.08 + 0) / 3, of two means of two seeds
    assert (found.mean, found.se, found.df) == (pytest.approx(0), pytest.approx((0.1 / 3) ** 0.5), pytest.approx(3))
    assert s.unpaired(a, c).tested.se == pytest.approx(0.02**0.5 / 2**0.5)
    assert s.difference(a, c).by_seed and not s.unpaired(a, c).by_seed


def test_with_blocks_the_pooled_model_is_a_two_way_table() -> None:
    """Three rows from four base models of unlike strength: the error is that of rows x bases, here by hand."""
    random = np.random.default_rng(7)
    bases = random.normal(0, 5, (4, 1)) + random.normal(0, 1, (3, 4, 1)) + np.array([0.0, 0.1, 0.5])
    rows = [s.Side([table], [1, 2, 3, 4]) for table in bases]
    found = s.pooled(rows, rows[0], rows[2], blocks=True)
    means = bases.mean(axis=2)
    residual = means - means.mean(axis=0) - means.mean(axis=1, keepdims=True) + means.mean()
    assert found.mean == pytest.approx(means[0].mean() - means[2].mean())
    assert (found.se, found.df) == (pytest.approx(((residual**2).sum() / 6 * 2 / 4) ** 0.5), pytest.approx(6))
    assert s.pooled(rows, rows[0], rows[2]).se > 3 * found.se  # which counts what bases differ by


def test_with_blocks_no_difference_is_found_in_a_twentieth() -> None:
    """Seven rows from 24 base models, of which none differs: any p after Dunnett below 5% in 5%, up to chance."""
    random, draws = np.random.default_rng(24), 400
    found = 0
    for _ in range(draws):
        bases, problems = random.normal(0, 3, (24, 1)), random.normal(0, 30, 100)
        tables = bases + problems + random.normal(0, 1, (7, 24, 1)) + random.normal(0, 14, (7, 24, 100))
        rows = [s.Side([table], range(24)) for table in tables]
        found += s.dunnett([s.pooled(rows, row, rows[0], blocks=True) for row in rows[1:]]).min() < 0.05
    assert 0.02 <= found / draws <= 0.085


def test_signed_ranks() -> None:
    assert s.signed_ranks([1, 2, 3, 4, 5, -6]) == pytest.approx(2 * 14 / 64)  # 14 of 2^6 signs have a sum of 6 or less
    assert s.signed_ranks([0.0, 0.0]) == s.signed_ranks([1e-17] * 24) == 1.0


@pytest.mark.parametrize(("rows", "seeds"), [(1, 5), (6, 8), (28, 3)])
def test_dunnetts_p_values_are_scipys(rows: int, seeds: int) -> None:
    random = np.random.default_rng(rows)
    others, one = random.normal(0.4, 1, (rows, seeds)), random.normal(0, 1, seeds)
    df = (rows + 1) * (seeds - 1)
    variance = (others.var(axis=1, ddof=1).sum() + one.var(ddof=1)) / (rows + 1)
    estimates = [s.Estimate(float(x.mean() - one.mean()), float((2 * variance / seeds) ** 0.5), df) for x in others]
    theirs = stats.dunnett(*others, control=one, random_state=random).pvalue
    assert s.dunnett(estimates) == pytest.approx(theirs, abs=1e-3)


def test_dunnetts_p_without_spread_is_that_of_one_difference() -> None:
    assert s.dunnett([s.Estimate(0.0, 0.0, 3), s.Estimate(1.0, 0.0, 3)]).tolist() == [1.0, 0.0]


@pytest.mark.parametrize(("bases", "seeds"), [(3, 8), (24, 1)])
def test_intervals_over_bases_cover_the_truth(bases: int, seeds: int) -> None:
    """In 300 draws of a difference of 0, with a standard deviation between bases of 0.6 seeds', 95% up to chance."""
    random, draws = np.random.default_rng(bases), 300
    covered = 0
    for _ in range(draws):
        table = random.normal(0, 1.4, (bases, seeds, 1)) + random.normal(0, 0.6, (bases, 1, 1))
        table = table + random.normal(0, 3.5, 200) + random.normal(0, 10, (bases, seeds, 200))
        estimate = s.over_bases([[base] for base in table])
        covered += estimate.low < 0 < estimate.high
    assert 0.91 <= covered / draws <= 0.99


def test_difference_of_sides_that_share_no_seed() -> None:
    random = np.random.default_rng(16)
    hard = random.beta(0.7, 1.3, (1, 50))
    a = hard + random.normal(0.03, 0.02, (3, 1)) + random.normal(0, 0.05, (3, 50))
    b = hard + random.normal(0.00, 0.02, (4, 1)) + random.normal(0, 0.05, (4, 50))
    there, back = apart(a, b), apart(b, a)
    assert there.mean == pytest.approx(a.mean() - b.mean())
    assert back.mean == -there.mean and back.both.se == pytest.approx(there.both.se)
    # paired on problems: far below the error of two independent sets of problems
    unpaired = math.hypot(s.mean_over_seeds(a).problems.se, s.mean_over_seeds(b).problems.se)
    assert there.problems.se < unpaired / 5
    # seeds add their excess, each side its own; a given model adds none
    excess = [s.mean_over_seeds(x).both.se ** 2 - s.mean_over_seeds(x).problems.se ** 2 for x in (a, b)]
    assert there.both.se**2 == pytest.approx(there.problems.se**2 + sum(excess))
    given = s.difference(s.Side([a], range(3)), s.Side([b]))
    assert given.both.se**2 == pytest.approx(there.problems.se**2 + excess[0])
    assert there.tested == there.both
    assert there.falling == pytest.approx(sum(s.mean_over_seeds(x).falling for x in (a, b)))
    assert given.falling == pytest.approx(s.mean_over_seeds(a).falling)
    with pytest.raises(ValueError, match="same problems"):
        apart(a, b[:, :-1])


def test_no_error_is_less_certain_than_its_least_certain_part() -> None:
    """Problems that differ alike and seeds whose excess is near 0 once gave a fifth of a degree of freedom."""
    rng = np.random.default_rng(0)
    for _ in range(300):
        table = rng.normal(0, 1, 40)
        a, b = (table + rng.normal(0, 0.3, (2, 1)) + rng.normal(0, 1.5, (2, 40)) for _ in range(2))
        assert apart(a, b).both.df >= 1


def test_seed_differences_are_not_found_where_there_are_none() -> None:
    """Two methods with equal means: the test with seeds rejects about 5%, the one without far more."""
    random = np.random.default_rng(17)
    low = {"problems": 0, "both": 0}
    for _ in range(600):
        hard = random.normal(0.5, 0.2, (1, 80))
        a, b = (hard + random.normal(0, 0.03, (3, 1)) + random.normal(0, 0.1, (3, 80)) for _ in range(2))
        found = apart(a, b)
        low["problems"] += found.problems.p < 0.05
        low["both"] += found.both.p < 0.05
    assert low["both"] / 600 < 0.08
    assert low["problems"] / 600 > 0.3


@pytest.mark.parametrize(
    ("estimates", "mean", "se"),
    [
        # equal weights; Q = 8, so tau^2 = (8 - 2) / (3 - 1) = 3, and the error is that of three numbers: sqrt(4 / 3)
        ([(1, 1), (3, 1), (5, 1)], 3, math.sqrt(4 / 3)),
        # no spread: tau^2 = 0, and the error is that of one common effect
        ([(1, 1), (1, 1), (1, 1)], 1, math.sqrt(1 / 3)),
        # weights 1, 1/4: common mean 0.6, Q = 1.8, tau^2 = 0.8 / 0.4 = 2; then weights 1/3, 1/6 and a ratio of 1
        ([(0, 1), (3, 2)], 1, math.sqrt(2)),
    ],
)
def test_random_effects_by_hand(estimates: list[tuple[float, float]], mean: float, se: float) -> None:
    found = s.random_effects([s.Estimate(m, e, 9.0) for m, e in estimates])
    assert (found.mean, found.se, found.df) == (pytest.approx(mean), pytest.approx(se), len(estimates) - 1)


def test_improvement_over_tasks_by_hand() -> None:
    a, b = [np.array([1.0, 2]), np.array([5.0])], [np.array([1.0, 3]), np.array([4.0, 5])]
    # 1.5 of 4 pairs, then 1.5 of 2
    assert s.probability_of_improvement(a, b) == pytest.approx((0.375 + 0.75) / 2)
    assert s.interquartile_mean([np.array([0.0, 9]), np.array([1.0, 2])]) == 1.5  # without the 0 and the 9
    # of one run each there is nothing to draw; of two there are means of 1, 1.5 and 2, one half of the draws in between
    assert s.stratified(s.interquartile_mean, [np.array([1.0]), np.array([2.0])]) == (1.5, 1.5, 1.5)
    assert s.stratified(s.interquartile_mean, [np.array([1.0, 2.0])]) == (1.5, 1.0, 2.0)
    assert s.stratified(s.probability_of_improvement, [np.array([3.0, 4])], [np.array([1.0, 2])]) == (1, 1, 1)


def test_holm_by_hand() -> None:
    # sorted .005 .01 .03 .04 times 4 3 2 1 = .02 .03 .06 .04, and never falling
    assert s.holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert s.holm([0.5, 0.9]).tolist() == [1.0, 1.0]
    assert s.holm([0.03]).tolist() == [0.03]


@given(st.lists(st.floats(0, 1), min_size=1, max_size=30))
def test_holm_never_lowers_a_p_value_and_keeps_the_order(p: list[float]) -> None:
    adjusted = s.holm(p)
    assert (adjusted >= np.array(p) - 1e-15).all() and (adjusted <= 1).all()
    assert (np.diff(adjusted[np.argsort(p, kind="stable")]) >= 0).all()
    assert adjusted.min() == pytest.approx(min(1, len(p) * min(p)))


@given(st.integers(1, 32), st.data())
def test_pass_at_k_rises_with_k_and_with_the_number_correct(samples: int, data: st.DataObject) -> None:
    k = data.draw(st.integers(1, samples))
    shares, of_one, of_more = (
        np.array([pass_at_k(correct, samples, tries) for correct in range(samples + 1)])
        for tries in (k, 1, min(k + 1, samples))
    )
    assert shares[0] == 0 and shares[-1] == 1 and (np.diff(shares) >= -1e-12).all()
    assert of_one == pytest.approx(np.arange(samples + 1) / samples) and (of_more >= shares - 1e-12).all()


@given(st.integers(0, 10**6), st.integers(2, 5), st.integers(2, 12))
def test_estimates_do_not_depend_on_the_order_of_problems_or_seeds(draws: int, seeds: int, problems: int) -> None:
    rng = np.random.default_rng(draws)
    a, b = rng.random((2, seeds, problems))
    rows, columns = rng.permutation(seeds), rng.permutation(problems)
    mixed = s.mean_over_seeds(a[rows][:, columns])
    assert (mixed.mean, mixed.both.se) == pytest.approx((s.mean_over_seeds(a).mean, s.mean_over_seeds(a).both.se))
    there, back = apart(a, b), apart(b, a)
    assert (there.mean, there.tested.se) == pytest.approx((-back.mean, back.tested.se))
    assert there.tested.low < there.mean < there.tested.high and there.both.se >= there.problems.se - 1e-15
