"""What comes back from earlier steps, by hand: Prompt Replay's prompts, FIFO replay's and FreshPER's groups."""

from __future__ import annotations

import math

import numpy as np
import pytest
from support.scripted import NoSampler, ScriptedSampler, build, fresh, group, ids, parts

from bapo.algorithm.rollouts import REPLAYED

# ---------------------------------------------------------------- Prompt Replay


def step(m, number: int, sampler: ScriptedSampler, corrects: dict[str, int]) -> list[str]:
    """Draw and answer the prompts of a step, of 8 responses each; returns what was drawn."""
    drawn = m.draw_prompts(number, sampler)
    batch = m.build_batch(number, [group(p.id, corrects.get(p.id, 0), number) for p in drawn], sampler)
    assert ids(batch.groups) == ids_of(drawn) and not any(g.origin == REPLAYED for g in batch.groups)
    assert batch.metrics == {"replayed_prompts": len(m.chosen), "prompt_buffer": len(m.buffer)}
    return ids_of(drawn)


def ids_of(prompts) -> list[str]:
    return [p.id for p in prompts]


def test_prompts_near_half_right_come_back_after_the_cooldown_and_not_too_often():
    m, sampler = build("prompt_replay", 4, share=0.5, cooldown=2, uses=1), ScriptedSampler(stream="abcdefghijklmnop")
    assert step(m, 1, sampler, {"a": 6, "b": 4, "c": 1, "d": 2}) == ["a", "b", "c", "d"]
    assert list(m.buffer) == ["a", "b", "d"]  # 1 of 8 is below a quarter
    assert step(m, 2, sampler, {}) == ["e", "f", "g", "h"]  # all wrong; the others wait for another step
    # half of the batch: b is nearest to one half, then a before d, which is as far
    assert step(m, 3, sampler, {"b": 4, "a": 8}) == ["b", "a", "i", "j"]
    assert m.buffer == {"d": (0.25, 1, 0), "b": (0.5, 3, 1)}  # a is all right now
    assert step(m, 5, sampler, {}) == ["d", "k", "l", "m"]  # b has come back once
    assert list(m.buffer) == ["b"]


def test_a_prompt_that_the_stream_draws_in_the_same_step_does_not_come_back_too():
    m, sampler = build("prompt_replay", 2, share=0.5, cooldown=1), ScriptedSampler(stream="abaxy")
    assert step(m, 1, sampler, {"a": 4, "b": 3}) == ["a", "b"]
    assert step(m, 2, sampler, {"a": 4, "b": 4}) == ["b", "a"]
    assert m.buffer == {"b": (0.5, 2, 1), "a": (0.5, 2, 0)}  # drawn again is not come back


# ---------------------------------------------------------------- FIFO replay


def test_fifo_replay_draws_from_the_newest_groups_alone():
    m = build("fifo_replay", 4, fresh_share=0.5, horizon=4)
    assert ids_of(m.draw_prompts(1, ScriptedSampler(stream="abcd"))) == ["a", "b"]
    assert ids(m.build_batch(1, fresh(1, [4, 4]), NoSampler()).groups) == ["1a", "1b"]  # all that there is
    seen: list[int] = []
    for number in range(2, 60):
        batch = m.build_batch(number, fresh(number, [4, 4]), NoSampler())
        ages = [number - g.step for g in batch.groups]
        assert len(set(ids(batch.groups))) == 4 and max(ages) < min(4, number)  # no group twice
        assert len(parts(batch)[2]) == sum(age > 0 for age in ages)  # what is older than the step is replayed
        assert batch.metrics["replay_age"] == pytest.approx(np.mean(ages))
        seen += ages
    assert len(m.kept) == 8
    # uniform: each of the four ages is a quarter of what is drawn, within three standard deviations
    shares = np.bincount(seen) / len(seen)
    assert np.abs(shares - 0.25).max() < 3 * math.sqrt(0.25 * 0.75 / len(seen)) + 4 / len(seen)


# ---------------------------------------------------------------- FreshPER


def test_chances_are_advantage_times_freshness_to_the_power_alpha():
    m = build("freshper", 2, age_decay=2.0, exponent=0.5)
    m.kept = [*fresh(1, [4, 8]), *fresh(3, [1])]
    # 4 of 8 right: |A| = 1; 1 of 8: standard deviation sqrt(7)/8, mean |A| (7 + 7)/8 / sqrt(7); all right: 0
    masses = [1.0 * math.exp(-2 / 2), 1e-6 * math.exp(-2 / 2), 14 / 8 / math.sqrt(7) * math.exp(0)]
    found, expected = m.chances(3), np.sqrt(masses) / np.sqrt(masses).sum()
    np.testing.assert_allclose(found, expected, rtol=1e-4)


def test_a_second_batch_is_drawn_in_equal_shares_of_the_mass_and_weighted():
    m = build("freshper", 4, age_decay=1e9, exponent=1.0, correction=1.0)
    first = m.build_batch(1, fresh(1, [4, 4, 4, 1]), NoSampler())
    assert parts(first)[2] == [] and len(m.kept) == 4  # nothing was stored before the draw
    batch = m.build_batch(2, fresh(2, [0, 0, 0, 0]), NoSampler())
    replayed = [g for g in batch.groups if g.origin == REPLAYED]
    # masses 1, 1, 1, 0.661: each quarter of 3.661 is 0.915, so no group comes more than twice and three at least come
    assert len(replayed) == 4 and len(set(ids(replayed))) >= 3
    assert [m.separate(g) for g in batch.groups] == [0] * 4 + [1] * 4
    weights = {g.prompt.id: g.weight for g in replayed}
    rare = 14 / 8 / math.sqrt(7)
    for name, weight in weights.items():  # 1/P over the largest such weight of the draw
        assert weight == pytest.approx(1.0 if name == "1d" or "1d" not in weights else rare, abs=1e-4)
    assert all(g.weight == 1.0 for g in batch.groups[:4])
    assert len(m.kept) == 8


def test_the_oldest_groups_leave_a_full_buffer():
    m = build("freshper", 2, capacity=3)
    for number in (1, 2):
        m.build_batch(number, fresh(number, [4, 4]), NoSampler())
    assert ids(m.kept) == ["1b", "2a", "2b"]
