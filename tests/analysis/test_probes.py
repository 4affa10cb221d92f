"""Probes compared within a run and across seeds, by hand."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from analysis import probes
from analysis.probes import Probes
from analysis.reading import NotRecorded

IDS = ("a", "b", "c", "d")


def frame(ids: tuple[str, ...] = IDS, **columns: list[int]) -> pd.DataFrame:
    """Columns s0, s9 ..: correct answers at step 0, 9 .."""
    return pd.DataFrame({int(name[1:]): values for name, values in columns.items()}, index=list(ids))


TWO = {1: frame(s0=[0, 0, 1, 2], s9=[1, 0, 2, 2]), 2: frame(s0=[0, 1, 0, 2], s9=[2, 2, 0, 1])}


def two() -> Probes:
    return Probes.of(TWO, 2)


def test_migration_by_hand() -> None:
    counts = probes.migration(np.array([0, 0, 2, 2, 1]), np.array([0, 2, 1, 2, 0]), 2)
    assert counts.tolist() == [[1, 0, 1], [1, 0, 0], [0, 1, 1]]  # row: before, column: now
    assert probes.degraded(counts) == pytest.approx(2 / 5)  # 2 -> 1 and 1 -> 0
    assert probes.degraded(np.diag([3, 4])) == 0


def test_improved_by_hand() -> None:
    assert probes.improved(np.array([0, 0, 0, 5]), np.array([0, 1, 8, 0])) == pytest.approx(2 / 3)
    assert np.isnan(probes.improved(np.array([1]), np.array([2])))


def test_distance_of_histograms_by_hand() -> None:
    before, after = probes.histogram(np.array([0, 0, 1, 2]), 2), probes.histogram(np.array([0, 1, 2, 2]), 2)
    assert (before.tolist(), after.tolist()) == ([2, 1, 1], [1, 1, 2])
    assert probes.distance(before, after) == pytest.approx(1 / 4)  # of four prompts at least one has moved
    assert probes.distance(before, before) == 0 and probes.distance(np.array([3, 0]), np.array([0, 5])) == 1


def test_prompts_are_chosen_by_the_other_seed() -> None:
    # seed 1 by seed 2's zeros a, c: 1 and 2 at step 9, both solved; its own base: 0 and 1, one of two
    # seed 2 by seed 1's zeros a, b: 2 and 2 at step 9, both solved; its own base: 0 and 1, one of two
    assert probes.improved_across(two(), 9) == (1, [1, 1])
    assert probes.improved_across(two(), 0) == (0.5, [0.5, 0.5])
    # within a run: seed 1's zeros a, b: 1 and 0; seed 2's zeros a, c: 2 and 0. At step 0 never any
    assert two().within(9, probes.improved).tolist() == [0.5, 0.5]
    assert two().within(0, probes.improved).tolist() == [0, 0]


def test_every_ordered_pair_counts_the_same() -> None:
    found = Probes.of({**TWO, 3: frame(s0=[1, 0, 0, 2], s9=[0, 0, 0, 2])}, 2)
    # seed 3 by seed 1 (a, b) and seed 2 (a, c): a, b, a, c at step 9: none solved; its base: a solved, twice of four
    assert probes.improved_across(found, 9)[1][2] == 0
    assert probes.improved_across(found, 0)[1][2] == 0.5
    # seed 1 by 2 (a, c) and 3 (b, c): 3 of 4; seed 2 by 1 (a, b) and 3 (b, c): 3 of 4
    assert probes.improved_across(found, 9) == (pytest.approx(6 / 12), [0.75, 0.75, 0])
    fewer = found.across(9, lambda base, now: (now < base).mean())
    # fallen, against either other base: seed 1: b, none; seed 2: c and d, d; seed 3: c, b
    by_hand = [(1 + 0) / 8, (2 + 1) / 8, (1 + 1) / 8]
    assert fewer.tolist() == by_hand


def test_migration_across_seeds_by_hand() -> None:
    def matrix(base: np.ndarray, now: np.ndarray) -> np.ndarray:
        return probes.migration(base, now, 2)

    # seed 2's base 0 1 0 2 against seed 1's step 9: 1 0 2 2; seed 1's base 0 0 1 2 against seed 2's: 2 2 0 1
    assert two().across(9, matrix).tolist() == [[[0, 1, 1], [1, 0, 0], [0, 0, 1]], [[0, 0, 2], [1, 0, 0], [0, 1, 0]]]
    # the unchanged base is not on the diagonal, and its mean over ordered pairs is symmetric
    unchanged = two().across(0, matrix).mean(axis=0)
    assert unchanged.tolist() == [[1, 1, 0], [1, 0, 0], [0, 0, 1]]
    assert probes.degraded(unchanged) == 0.25
    assert two().within(0, matrix).sum(axis=0).tolist() == [[4, 0, 0], [0, 2, 0], [0, 0, 2]]


def test_prompts_are_matched_by_id_not_by_place() -> None:
    shuffled = frame(("d", "c", "b", "a"), s0=[2, 0, 1, 0], s9=[1, 0, 2, 2])  # seed 2 of two() in another order
    found = Probes.of({**TWO, 2: shuffled}, 2)
    assert found.prompts == (IDS, IDS) and not found.obstacle
    assert found.at(9)[1].tolist() == [2, 2, 0, 1]


def test_only_steps_that_every_seed_has() -> None:
    found = Probes.of({1: frame(s0=[0] * 4, s5=[1] * 4, s9=[2] * 4), 2: frame(s0=[1] * 4, s9=[2] * 4)}, 2)
    assert found.steps == (0, 9)
    assert found.within(9, lambda base, now: (now - base).sum()).tolist() == [8, 4]


def test_the_last_probe_is_each_seeds_own() -> None:
    """Seeds with a budget of rollouts end at different steps."""
    found = Probes.of({1: frame(s0=[0] * 4, s5=[1] * 4, s9=[2] * 4), 2: frame(s0=[0] * 4, s5=[2] * 4, s7=[1] * 4)}, 2)
    assert found.steps == (0, 5, 9)
    assert [counts.tolist() for counts in found.at(9)] == [[2] * 4, [1] * 4]


def test_what_makes_a_comparison_unfair() -> None:
    one = TWO[1]
    elsewhere = frame(("a", "b", "c", "e"), s0=[0, 1, 0, 2], s9=[2, 2, 0, 1])
    unfair = {
        "one seed: what chance alone shows needs a second sampling of the base": {1: one},
        "the seeds share their samples of the base, so chance cannot be told": {1: one, 2: one},
        "the seeds were probed on different prompts": {1: one, 2: elsewhere},
        "the base was not probed (no step 0)": {k: frame(s4=[k] * 4, s9=[2] * 4) for k in (0, 1)},
    }
    for why, frames in unfair.items():
        found = Probes.of(frames, 2)
        assert found.obstacle == why
        with pytest.raises(NotRecorded, match="^" + why.replace("(", r"\(").replace(")", r"\)")):
            found.across(9, probes.improved)
        assert len(found.within(9, probes.improved)) == len(frames)  # the paper's count needs none of this
    assert two().obstacle == ""
