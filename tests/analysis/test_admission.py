"""X2's admission against sampling alone: hand-worked distributions, and runs whose truth is known."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from support.late import LATE

from analysis.beyond import admission
from analysis.beyond.admission import admissions, expected, fit, passing, tries_of, windows

if LATE:
    from scipy.stats import binom


def test_the_distribution_and_what_follows_from_it() -> None:
    """A quarter of the prompts at p = 1/2 and the others at p = 0, two answers each: 13/16, 1/8 and 1/16 of them."""
    weights = fit(np.array([13.0, 2.0, 1.0]), rounds=3000)
    assert (weights * admission.GRID).sum() == pytest.approx(1 / 8, abs=1e-3)  # the mean, of the first two moments
    assert (weights * admission.GRID**2).sum() == pytest.approx(1 / 16, abs=1e-3)
    # eight answers a prompt, half of the prompts at p = 1/2: P(k = 0) = 1/2 + 1/512, so 1/257 of those are at 1/2
    counts = 0.5 * binom.pmf(np.arange(9), 8, 0) + 0.5 * binom.pmf(np.arange(9), 8, 0.5)
    chances = expected(fit(counts, rounds=3000), np.array([0, 1]), np.array([8, 8]), 8, 0.125)
    passed = 1 - (1 + 8 + 1) / 256  # of p = 1/2: all but 0, 1 and 8 of 8
    assert chances[0] == pytest.approx(passed / 257, abs=5e-4) and chances[1] == pytest.approx(passed, abs=0.01)


def test_eq_6_by_counts() -> None:
    assert np.flatnonzero(passing(8, 0.125)).tolist() == [2, 3, 4, 5, 6, 7]
    assert np.flatnonzero(passing(4, 0.25)).tolist() == [2, 3]
    assert np.flatnonzero(passing(8, 0.0)).tolist() == [1, 2, 3, 4, 5, 6, 7]


def test_a_prompt_that_failed_again_has_a_smaller_chance() -> None:
    weights = np.ones(len(admission.GRID))
    weights[[0, -1]] = 0.5  # the trapezoidal rule
    once, twice = expected(weights, np.array([0, 0]), np.array([8, 16]), 8, 0.125)
    # p uniform: Beta(1, 9) after 8 failures; P(k) = C(8, k) B(k + 1, 17 - k) / B(1, 9), and 0, 1, 8 of 8 are left out
    assert once == pytest.approx(1 - 9 / 17 - 8 * 9 / (17 * 16) - 9 / (17 * 12870), abs=2e-3)
    assert twice == pytest.approx(1 - 17 / 25 - 8 * 17 / (25 * 24) - 17 / (25 * 735471), abs=2e-3)


def test_windows_are_rollout_policies() -> None:
    version = np.repeat([0, 4, 9], [4, 5, 5])
    assert windows(version, fewest=4).tolist() == [0] * 4 + [1] * 5 + [2] * 5
    assert windows(version, fewest=6).tolist() == [0] * 9 + [0] * 5  # the last five are too few for their own
    assert windows(version, fewest=100).tolist() == [0] * 14


def row(step: int, prompt: str, origin: str, correct: int, size: int = 4) -> dict:
    rewards = np.array([1.0] * correct + [0.0] * (size - correct))
    common = {"step": step, "prompt_id": prompt, "origin": origin, "version": 0, "generated_step": step}
    return common | {"rewards": rewards}


def test_the_stored_group_is_the_latest_hard_one_before() -> None:
    rows = [
        row(1, "a", "fresh", 1),
        row(1, "b", "fresh", 3),
        row(3, "a", "fresh", 0),
        row(4, "a", "fresh", 3),  # not hard: B_bad keeps the entry of step 3
        row(5, "a", "re-evaluated", 1),
        row(5, "a", "fresh", 1),  # stored after this step's re-evaluation
        row(5, "c", "re-evaluated", 2),  # stored before the table begins
        row(10, "a", "re-evaluated", 2),
        row(15, "a", "re-evaluated", 0),
    ]
    tries = tries_of(pd.DataFrame(rows), 0.25)
    columns = ("stored", "correct", "tries", "admitted")
    assert [tries.table[c].tolist() for c in columns] == [[0, 1, 1], [0, 1, 3], [4, 4, 8], [False, True, False]]
    assert tries.size == 4 and {tries.prompts[p] for p in tries.table["prompt"]} == {"a"}
    assert tries_of(pd.DataFrame([row(1, "a", "fresh", 1)]), 0.25) is None
    assert tries_of(pd.DataFrame([*rows, row(2, "d", "fresh", 1, size=3)]), 0.25) is None  # a part of a group


def runs(rng: np.random.Generator, gain: float, steps: int = 30, batch: int = 32) -> pd.DataFrame:
    """One run of prompts with p from Beta(0.4, 1.6); each hard one is sampled again at p + gain (1 - p)."""
    chance = np.random.default_rng(0).beta(0.4, 1.6, 400)
    rows = []
    for step in range(1, steps + 1):
        for i in rng.choice(400, batch, replace=False):
            k = int(rng.binomial(8, chance[i]))
            rows.append(row(step, f"p{i}", "fresh", k, 8))
            if k <= 1:
                again = int(rng.binomial(8, chance[i] + gain * (1 - chance[i])))
                rows.append(row(step + 0.5, f"p{i}", "re-evaluated", again, 8))
    return pd.DataFrame(rows)


def test_the_unchanged_policy_is_expected_and_a_better_one_is_above() -> None:
    rng = np.random.default_rng(1)
    for gain, above in ((0.0, False), (0.2, True)):
        tries = {s: tries_of(runs(rng, gain), 0.125) for s in (1, 2, 3)}
        zero, one, every = admissions(tries, draws=60)
        assert [each["stored"] for each in (zero, one, every)] == [0, 1, None]
        assert zero["count"] + one["count"] == every["count"] == sum(len(t.table) for t in tries.values())
        assert list(every["by_seed"]) == [1, 2, 3] and every["difference"].df == 2
        for each in (zero, one, every):
            e = each["difference"]
            assert e.mean == pytest.approx(each["admitted"].mean - each["expected"].mean)
            assert (e.mean > 4 * e.se) if above else abs(e.mean) < 4 * e.se
        share = np.mean(np.concatenate([t.table["admitted"] for t in tries.values()]))
        assert every["admitted"].mean == pytest.approx(share)
    prompts = tries[1].table["prompt"].nunique()
    assert admissions({1: tries[1]}, draws=20)[-1]["difference"].df == prompts - 1
