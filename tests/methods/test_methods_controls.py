"""The controls: random rewards, duplicates for X3, replayed responses under other prompts."""

from __future__ import annotations

import numpy as np
from support.scripted import NoSampler, build, fresh, ids, rewards

from bapo.algorithm.rollouts import FRESH, REPLAYED

B = 8


def method(algorithm, **options):
    return build(algorithm, B, 3, **options, **({"m": 100} if "bapo" in algorithm else {}))


def second_batch(algorithm):
    """Step 1 stores groups of accuracy 2/8 and 3/8; step 2 has three informative fresh groups and room for five."""
    m = method(algorithm, c2_range=[0.25, 0.25], c3_range=[0.375, 0.375])
    m.build_batch(1, fresh(1, [2, 3, 2, 3, 8, 8, 8, 8]), NoSampler())
    return m.build_batch(2, fresh(2, [4, 5, 6, 0, 0, 8, 8, 8]), NoSampler())


def test_random_rewards_know_nothing_of_the_responses():
    groups = fresh(1, [0, 8, 3, 5] * 50)
    batch = method("grpo_random_reward").build_batch(1, groups, NoSampler())
    drawn = np.array([g.rewards for g in batch.groups])
    assert set(np.unique(drawn)) == {0.0, 1.0} and abs(drawn.mean() - 0.5) < 0.05
    # as often 1 where the response was right as where it was wrong
    was = np.array([g.rewards for g in groups])
    assert abs(drawn[was == 1].mean() - drawn[was == 0].mean()) < 0.1
    assert [g.samples for g in batch.groups] == [g.samples for g in groups]
    again = method("grpo_random_reward").build_batch(1, groups, NoSampler())
    other = method("grpo_random_reward").build_batch(2, groups, NoSampler())
    assert np.array_equal(drawn, [g.rewards for g in again.groups])
    assert not np.array_equal(drawn, [g.rewards for g in other.groups])
    assert np.array_equal(groups[1].rewards, rewards(8))  # the log keeps the verifier's


def test_the_chance_of_a_random_reward():
    batch = method("grpo_random_reward", chance=0.9).build_batch(1, fresh(1, [0] * 40), NoSampler())
    assert 0.8 < np.mean([g.rewards for g in batch.groups]) < 1.0


def test_duplicates_take_the_places_of_x3():
    plain, control = second_batch("bapo"), second_batch("bapo_duplicates")
    count = sum(g.origin == REPLAYED for g in plain.groups)
    assert count == 4
    assert ids([g for g in control.groups if g.origin == FRESH]) == ["2a", "2b", "2c"]
    copies = [g for g in control.groups if g.origin == REPLAYED]
    assert len(copies) == count and set(ids(copies)) == {"2a", "2b", "2c"}  # each once before any comes twice
    assert all(g.step == 2 for g in copies)


def test_duplicates_without_x1_are_none():
    m = method("bapo_duplicates")
    m.build_batch(1, fresh(1, [2, 3, 2, 3, 2, 3, 2, 3]), NoSampler())
    assert m.build_batch(2, fresh(2, [0] * 8), NoSampler()).groups == []


def test_no_replayed_prompt_keeps_its_own_responses():
    m = method("bapo_shuffled", c2_range=[0.25, 0.25], c3_range=[0.375, 0.375])
    first = fresh(1, [2, 3, 2, 3, 8, 8, 8, 8])
    m.build_batch(1, first, NoSampler())
    batch = m.build_batch(2, fresh(2, [4, 5, 6, 0, 0, 8, 8, 8]), NoSampler())
    owner = {id(g.samples): g for g in first}
    replayed = [g for g in batch.groups if g.origin == REPLAYED]
    assert sorted(ids(replayed)) == sorted(owner[id(g.samples)].prompt.id for g in replayed)
    for g in replayed:
        came_from = owner[id(g.samples)]
        assert came_from.prompt.id != g.prompt.id and np.array_equal(came_from.rewards, g.rewards)


def test_one_replayed_group_alone_is_dropped():
    m = method("bapo_shuffled", c2_range=[0.25, 0.25], c3_range=[0.375, 0.375])
    m.build_batch(1, fresh(1, [2, 8, 8, 8, 8, 8, 8, 8]), NoSampler())
    assert ids(m.build_batch(2, fresh(2, [4, 0, 0, 0, 0, 0, 0, 0]), NoSampler()).groups) == ["2a"]
