"""Variance components on designs whose parts are known, and power against simulated tests."""

from __future__ import annotations

import numpy as np
import pytest
from support.late import LATE

from analysis.beyond.variance import components
from analysis.statistics import power, seeds_needed

if LATE:
    from scipy import stats


def design(
    rng, s, c, n, k, problem=0.0, seed=0.0, checkpoint=0.0, problem_seed=0.0, problem_checkpoint=0.0, sample=1.0
):
    """Outcomes [S, C, n, K] with normal effects of the given standard deviations."""
    y = rng.normal(0, sample, (s, c, n, k))
    y += rng.normal(0, problem, (1, 1, n, 1)) + rng.normal(0, seed, (s, 1, 1, 1))
    y += rng.normal(0, checkpoint, (s, c, 1, 1)) + rng.normal(0, problem_seed, (s, 1, n, 1))
    return y + rng.normal(0, problem_checkpoint, (s, c, n, 1))


def test_a_table_by_hand():
    # one seed, one checkpoint: problem means 1/4 and 3/4, each of four samples
    y = np.array([[[[1, 0, 0, 0], [1, 1, 1, 0]]]])
    found = components(y)
    assert found.sample == pytest.approx((0.75 + 0.75) / 6)  # within: 2 problems x 3 degrees of freedom
    assert found.problem == pytest.approx((4 * 2 * 0.25**2 - 0.25) / 4)  # (MS_problem - MS_within) / K
    assert np.isnan([found.seed, found.checkpoint, found.problem_seed, found.problem_checkpoint]).all()


@pytest.mark.parametrize(
    "truth",
    [
        {"problem": 0.5, "seed": 0.3, "checkpoint": 0.2, "problem_seed": 0.4, "problem_checkpoint": 0.3, "sample": 0.8},
        {"problem": 0.5, "sample": 0.8},
        {"seed": 0.4, "problem_seed": 0.3, "sample": 0.5},
        {"checkpoint": 0.4, "sample": 0.5},
    ],
)
def test_known_parts_are_found_on_average(truth):
    rng = np.random.default_rng(1)
    found = [components(design(rng, 6, 4, 40, 4, **truth)) for _ in range(60)]
    for name in ("problem", "seed", "checkpoint", "problem_seed", "problem_checkpoint", "sample"):
        values = np.array([getattr(f, name) for f in found])
        # estimates below 0 are cut, which lifts the mean of those that are 0
        assert values.mean() == pytest.approx(truth.get(name, 0) ** 2, abs=4 * values.std() / 60**0.5 + 0.01), name


def test_the_parts_add_up_to_the_variance_of_the_mean():
    rng = np.random.default_rng(2)
    truth = {"problem": 0.5, "seed": 0.3, "problem_seed": 0.4, "sample": 0.8}
    means, errors = [], []
    for _ in range(300):
        y = design(rng, 5, 1, 30, 4, **truth)
        means.append(y.mean())
        parts = components(y).of_mean(30, 5, 1, 4)
        errors.append(np.nansum(list(parts.values())))
    assert np.mean(errors) == pytest.approx(np.var(means), rel=0.25)
    assert components(y).of_mean(60, 5, 1, 4)["seed"] == components(y).of_mean(30, 5, 1, 4)["seed"]


def test_without_seeds_their_part_is_not_told():
    rng = np.random.default_rng(3)
    found = components(design(rng, 1, 3, 20, 4, problem=0.5, checkpoint=0.3))
    assert np.isnan(found.seed) and np.isnan(found.problem_seed) and found.checkpoint > 0


@pytest.mark.parametrize("shape", [(2, 5, 4), (2, 1, 1, 4), (2, 1, 5, 1)])
def test_other_shapes_are_refused(shape):
    with pytest.raises(ValueError, match="got shape"):
        components(np.zeros(shape))


# ------------------------------------------------------------------------------------------------ power


@pytest.mark.parametrize(("difference", "seeds"), [(0.02, 3), (0.02, 8), (0.01, 5)])
def test_power_is_the_share_of_tests_that_find_it(difference, seeds):
    rng = np.random.default_rng(4)
    sd = 0.012
    a = rng.normal(difference, sd, (4000, seeds))
    b = rng.normal(0, sd, (4000, seeds))
    found = np.mean(stats.ttest_ind(a, b, axis=1).pvalue < 0.05)
    assert power(difference, 0.0, sd**2, seeds) == pytest.approx(found, abs=0.03)


def test_power_of_nothing_is_the_level():
    assert power(0.0, 1e-5, 1e-4, 5) == pytest.approx(0.05, abs=1e-6)
    assert np.isnan(power(0.1, 0.0, 1e-4, 1)) and power(0.1, 0.0, 0.0, 3) == 1.0
    assert power(1e6, 1e-9, 1e-9, 3) == 1.0


def test_the_fewest_seeds():
    n = seeds_needed(0.02, 0.0, 0.012**2)
    assert power(0.02, 0.0, 0.012**2, n) >= 0.8 > power(0.02, 0.0, 0.012**2, n - 1)
    assert n == 7  # standardised difference 1.67: the textbook's 7 a group
    assert seeds_needed(0.02, 0.0, (2 * 0.012) ** 2) > 3 * n  # twice the spread, about four times the seeds


def test_power_rises_with_every_seed():
    """scipy's non-central t is NaN at 18 to 22 seeds here: a search that trusted it found 23 to be the fewest."""
    found = [power(2.0, 0.0, 0.5, n, freedom=1.0) for n in range(2, 40)]
    assert np.isfinite(found).all() and (np.diff(found) > -1e-6).all()
    assert seeds_needed(2.0, 0.0, 0.5, freedom=1.0) == 5  # one-sample t test, standardised difference 2
    assert seeds_needed(2.0, 0.0, 0.5) == 4


def test_seeds_do_not_make_up_for_too_few_problems():
    assert seeds_needed(0.02, 0.01**2, 0.001**2) is None  # the problems alone leave a standard error of one point
    assert seeds_needed(0.05, 0.01**2, 0.001**2) is not None
    assert seeds_needed(0.0, 0.0, 1e-4) is None
