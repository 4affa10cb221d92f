"""Variance components on designs whose parts are known."""

from __future__ import annotations

import math

import numpy as np
import pytest

from analysis.beyond import variance
from analysis.beyond.variance import components, contributions, for_half
from bapo.errors import UserError


def design(rng: np.random.Generator, s: int, n: int, k: int, **sd: float) -> np.ndarray:
    """Outcomes [S, n, K] with normal effects of the given standard deviations."""
    y = rng.normal(0, sd.get("sample", 1.0), (s, n, k)) + rng.normal(0, sd.get("problem", 0.0), (1, n, 1))
    return y + rng.normal(0, sd.get("seed", 0.0), (s, 1, 1)) + rng.normal(0, sd.get("problem_seed", 0.0), (s, n, 1))


def test_a_table_by_hand() -> None:
    found = components(np.array([[[1, 0, 0, 0], [1, 1, 1, 0]]]))  # problem means 1/4 and 3/4, each of four samples
    assert found["sample"] == pytest.approx((0.75 + 0.75) / 6)  # within: 2 problems x 3 degrees of freedom
    assert found["problem"] == pytest.approx((4 * 2 * 0.25**2 - 0.25) / 4)  # (MS_problem - MS_within) / K
    assert math.isnan(found["seed"]) and math.isnan(found["problem_seed"])


def test_known_parts_are_found_on_average() -> None:
    rng, truth = np.random.default_rng(1), {"problem": 0.5, "seed": 0.3, "problem_seed": 0.4, "sample": 0.8}
    found = [components(design(rng, 6, 40, 4, **truth)) for _ in range(60)]
    for name, sd in truth.items():
        values = np.array([f[name] for f in found])
        assert values.mean() == pytest.approx(sd**2, abs=4 * values.std() / 60**0.5 + 0.01), name


def test_the_parts_add_up_to_the_variance_of_the_average() -> None:
    rng, truth = np.random.default_rng(2), {"problem": 0.5, "problem_seed": 0.4, "sample": 0.8}
    means, errors = [], []
    for _ in range(300):
        shared = rng.normal(0, 0.3, (5, 1, 1))  # one model answers both benchmarks
        benchmarks = [design(rng, 5, 30, 4, **truth) + shared for _ in range(2)]
        means.append(np.mean([y.mean() for y in benchmarks]))
        errors.append(sum(contributions(benchmarks).values()))
    assert np.mean(errors) == pytest.approx(np.var(means), rel=0.25)


def test_what_halves_the_error() -> None:
    parts = {"problem": 1.0, "seed": 8.0, "problem_seed": 0.0, "sample": 0.0}
    # of 9 a quarter is 2.25: the problems' 1 stays, so the seeds' 8 must become 1.25
    assert for_half(parts, "seeds", 3) == math.ceil(3 * 8 / 1.25) and math.isnan(for_half(parts, "problems", 100))


@pytest.mark.parametrize(("problems", "samples", "cure"), [(5, 1, "evaluation.samples"), (1, 32, "more problems")])
def test_one_of_a_kind_cannot_tell(problems: int, samples: int, cure: str) -> None:
    with pytest.raises(UserError, match=f"here are {problems} and {samples}; .*{cure}"):
        components(np.zeros((2, problems, samples)))


def test_answers_that_are_all_right_have_no_shares() -> None:
    row = {f"se_{source}": 0.0 for source in variance.SOURCES} | {"se": 0.0}
    row |= {kind: 3 for kind in variance.FALLS} | {f"{kind}_for_half": math.nan for kind in variance.FALLS}
    assert variance._cells("x", row)[1] == "0.00"
