"""Readings of the paper's text that BAPO leaves to an option, and controls, each against values worked out by hand."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from support import scripted
from support.scripted import NoSampler, ScriptedSampler, build, fresh, group, ids, loss_inputs, parts, with_bad

from bapo.algorithm.replay import HardPrompt
from bapo.algorithm.rollouts import FRESH, REEVALUATED, REPLAYED, Prompt

ALL_RIGHT = [8] * 6  # nothing for X1


bapo = partial(build, "bapo", 6)


def test_the_default_is_the_texts_plain_reading():
    c = bapo().config
    assert (c.remove_replayed, c.x3_filter, c.store_promoted) == (False, "current", True)
    assert (c.expectations, c.failed_prompt, c.x2_policy) == ("pooled", "requeue", "current")


@pytest.mark.parametrize(("x3_filter", "drawn"), [("current", []), ("none", ["1a", "1b"])])
def test_x3_filter_by_eq_7_takes_what_the_thresholds_have_left_behind(x3_filter, drawn):
    method = bapo(x3_filter=x3_filter)
    # r_tot = 1/2: c2 = 0.3125, c3 = 0.4375, so 3/8 enters B_high
    method.build_batch(1, fresh(1, [3, 3, 2, 4, 4, 8]), NoSampler())
    assert ids(method.high) == ["1a", "1b"]
    # r_tot = 0: c2 = 1/8, c3 = 2/8, and 3/8 is no longer "high-quality"
    assert parts(method.build_batch(2, fresh(2, [0] * 6), NoSampler()))[2] == drawn


@pytest.mark.parametrize("store", [True, False])
def test_what_x2_admits_is_stored_for_x3_unless_it_is_turned_off(store):
    method = with_bad("ab", store_promoted=store)
    # r_tot = 1: c2 = 4/8, c3 = 5/8: of X2, a with 5/8 is high-quality and b with 2/8 is not
    sampler = ScriptedSampler({"a": [5], "b": [2]})
    sampler.step = 5
    batch = method.build_batch(5, fresh(5, ALL_RIGHT), sampler)
    assert parts(batch)[1] == ["a", "b"]
    assert ids(method.high) == (["a"] if store else [])
    again = method.build_batch(6, fresh(6, ALL_RIGHT), NoSampler())
    assert parts(again)[2] == (["a"] if store else [])


@pytest.mark.parametrize(("failed_prompt", "asked"), [("requeue", ["def"]), ("keep", ["abc"])])
def test_failed_prompt_has_its_turn_or_keeps_its_place(failed_prompt, asked):
    method = with_bad("abcdef", failed_prompt=failed_prompt)
    sampler = ScriptedSampler({name: [1, 0] for name in "abcdef"})
    method.build_batch(5, fresh(5, ALL_RIGHT), sampler)
    means = {e.key: e.mean for e in method.bad}
    assert means["a"] == (0.125 if failed_prompt == "requeue" else 0.0) and means["d"] == 0.0
    method.build_batch(10, fresh(10, ALL_RIGHT), sampler)
    assert sampler.asked == [list("abc"), *map(list, asked)]


@pytest.mark.parametrize("policy", ["current", "rollout"])
def test_x2_policy_is_handed_to_the_sampler(policy):
    sampler = ScriptedSampler({"a": [3]})
    with_bad("a", x2_policy=policy).build_batch(5, fresh(5, ALL_RIGHT), sampler)
    assert sampler.policies == [policy]


def test_expectations_separate_is_the_sum_of_eq_3():
    """Rows of two tokens, one and two: X1 with advantage 1, X2 with -1, X3 with 2; all ratios are 1."""
    groups = [group("x1", 4), group("x2", 4).as_origin(REEVALUATED), group("x3", 4).as_origin(REPLAYED)]
    values, ones, mask = {}, [[1.0] * 2] * 3, [[1.0, 1.0], [1.0, 0.0], [1.0, 1.0]]
    for kind in ("pooled", "separate"):
        method = bapo(expectations=kind, kl_coef=0.0, entropy_coef=0.0, aggregation="token-mean")
        marks = [bool(method.second_part(g)[0]) for g in groups]
        values[kind] = method.loss(loss_inputs(ones, ones, [1.0, -1.0, 2.0], mask, marks))[0].item()
    # pooled: -(2 - 1 + 4) / 5; separate: -1 for X1, -(-1 + 4) / 3 for what the buffers gave
    assert values["pooled"] == pytest.approx(-1)
    assert values["separate"] == pytest.approx(-1 - 1)


def test_the_denominators_of_separate_expectations_count_x2_as_historical():
    from omegaconf import OmegaConf

    from bapo.engines.shared.loss_inputs import denominators

    train = OmegaConf.create({"mini_batch_size": 3, "group_size": 8, "underfilled": "fewer-updates"})
    groups = [group("x1", 4), group("x2", 4).as_origin(REEVALUATED), group("x3", 4).as_origin(REPLAYED)]
    for kind, counts in (("pooled", (16, 8)), ("separate", (8, 16))):
        marks = [bapo(expectations=kind).second_part(g) for g in groups]
        assert denominators(train, groups, marks).part_sequences == counts


@pytest.mark.parametrize(
    ("direction", "c2", "c3", "stored"),
    [
        # r_tot = 12/48 = 1/4: 0.125 + 0.25 * 0.375, 0.25 + 0.25 * 0.375: the bin of 2/8
        ("rising", 0.21875, 0.34375, ["1b"]),
        # share 3/4: 0.125 + 0.75 * 0.375, 0.25 + 0.75 * 0.375: the bin of 4/8
        ("falling", 0.40625, 0.53125, ["1d"]),
    ],
)
def test_threshold_direction(direction, c2, c3, stored):
    method = bapo(threshold_direction=direction)
    batch = method.build_batch(1, fresh(1, [1, 2, 3, 4, 1, 1]), NoSampler())
    assert batch.metrics["r_tot"] == 0.25
    assert (batch.metrics["c2"], batch.metrics["c3"]) == (c2, c3)
    assert ids(method.high) == stored


def test_average_reward_of_the_batch_or_moving():
    for kind, decay, third in (("batch", 0.9, 1.0), ("moving-average", 0.9, 0.505), ("moving-average", 0.5, 0.625)):
        method = bapo(average_reward=kind, average_decay=decay)
        batches = [method.build_batch(step, fresh(step, [c] * 6), NoSampler()) for step, c in ((1, 4), (2, 0), (3, 8))]
        r = [batch.metrics["r_tot"] for batch in batches]
        # decay 0.9: 0.5, 0.45, 0.405 + 0.1 = 0.505; decay 0.5: 0.5, 0.25, 0.125 + 0.5 = 0.625
        assert r[0] == 0.5 and r[2] == pytest.approx(third)


def test_online_filters():
    groups = fresh(1, [0, 1, 4, 7, 8] * 400)

    def kept(**options):
        return [g.mean for g in bapo(**options).filtered_fresh(1, groups)]

    assert set(kept()) == {0.125, 0.5, 0.875} and len(kept()) == 1200
    narrow = kept(online_filter="gaussian", filter_mean=0.875, filter_std=0.01, filter_share=0.2)
    assert set(narrow) == {0.875} and len(narrow) == 400
    uniform = kept(online_filter="uniform", filter_share=0.25)
    assert set(uniform) == {0.0, 0.125, 0.5, 0.875, 1.0} and len(uniform) == 500


# ---------------------------------------------------------------- controls

B = 8


def control(algorithm, **options):
    return build(algorithm, B, 3, **options, **({"m": 100} if "bapo" in algorithm else {}))


def second_batch(algorithm):
    """Step 1 stores groups of accuracy 2/8 and 3/8; step 2 has three informative fresh groups and room for five."""
    m = control(algorithm, c2_range=[0.25, 0.25], c3_range=[0.375, 0.375])
    m.build_batch(1, fresh(1, [2, 3, 2, 3, 8, 8, 8, 8]), NoSampler())
    return m.build_batch(2, fresh(2, [4, 5, 6, 0, 0, 8, 8, 8]), NoSampler())


def test_random_rewards_know_nothing_of_the_responses():
    groups = fresh(1, [0, 8, 3, 5] * 50)
    batch = control("grpo_random_reward").build_batch(1, groups, NoSampler())
    drawn = np.array([g.rewards for g in batch.groups])
    assert set(np.unique(drawn)) == {0.0, 1.0} and abs(drawn.mean() - 0.5) < 0.05
    # as often 1 where the response was right as where it was wrong
    was = np.array([g.rewards for g in groups])
    assert abs(drawn[was == 1].mean() - drawn[was == 0].mean()) < 0.1
    assert [g.samples for g in batch.groups] == [g.samples for g in groups]
    again = control("grpo_random_reward").build_batch(1, groups, NoSampler())
    other = control("grpo_random_reward").build_batch(2, groups, NoSampler())
    assert np.array_equal(drawn, [g.rewards for g in again.groups])
    assert not np.array_equal(drawn, [g.rewards for g in other.groups])
    assert np.array_equal(groups[1].rewards, scripted.rewards(8))  # the log keeps the verifier's


def test_the_chance_of_a_random_reward():
    batch = control("grpo_random_reward", chance=0.9).build_batch(1, fresh(1, [0] * 40), NoSampler())
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
    m = control("bapo_duplicates")
    m.build_batch(1, fresh(1, [2, 3, 2, 3, 2, 3, 2, 3]), NoSampler())
    assert m.build_batch(2, fresh(2, [0] * 8), NoSampler()).groups == []


def test_no_replayed_prompt_keeps_its_own_responses():
    m = control("bapo_shuffled", c2_range=[0.25, 0.25], c3_range=[0.375, 0.375])
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
    m = control("bapo_shuffled", c2_range=[0.25, 0.25], c3_range=[0.375, 0.375])
    m.build_batch(1, fresh(1, [2, 8, 8, 8, 8, 8, 8, 8]), NoSampler())
    assert ids(m.build_batch(2, fresh(2, [4, 0, 0, 0, 0, 0, 0, 0]), NoSampler()).groups) == ["2a"]


def test_fresh_groups_of_the_rollout_policy_fill_the_batch():
    m = build("bapo_filled", 4)
    sampler = ScriptedSampler({"a": [8], "b": [3], "c": [0], "d": [5], "e": [4], "f": [4], "g": [4]}, "abcdefg")
    batch = m.build_batch(1, fresh(1, [2, 0, 8, 8]), sampler)
    assert parts(batch) == (["1a", "b", "d", "e"], [], [])  # the first four with a signal, f without need
    reasons = {g.prompt.id: reason for g, reason in batch.rejected}
    assert (reasons["f"], reasons["g"], reasons["c"]) == ("batch full", "batch full", "no signal in X1")
    assert sampler.asked == [["a", "b", "c", "d"], ["e", "f", "g"]] and set(sampler.policies) == {"rollout"}
    limited = ScriptedSampler({"a": [8], "b": [8], "c": [8], "d": [8]}, "abcd")
    assert parts(build("bapo_filled", 1).build_batch(1, fresh(1, [8]), limited)) == ([], [], [])
    assert limited.asked == [["a"], ["b"], ["c"]]  # DAPO's limit of four batches


def test_an_oracle_puts_a_solution_into_each_group_of_x2():
    m = build("bapo_oracle", 4, m=1, kl_coef=0.0, entropy_coef=0.0)
    for name in "ab":
        m.bad.add(HardPrompt(name, Prompt(name)))
    sampler = scripted.ExpertSampler(unknown="b")
    sampler.answers = {"a": [0], "b": [0]}
    batch = m.build_batch(1, fresh(1, [8, 8, 8, 8]), sampler)
    (solved,) = batch.groups  # 1/8 is not above c1, and b has no solution
    assert solved.origin == REEVALUATED and solved.off_policy.tolist() == [False] * 7 + [True]
    none = m.second_part(group("c", 3))
    assert m.second_part(solved).tolist() == [False] * 7 + [True] and none.dtype == bool and not none.any()
    # an expert's token of probability 0.3: -A 0.3 / (0.3 + 0.1); another response's ratio 2 is clipped at 1.2
    inputs = loss_inputs([[0.3], [0.8]], [[1.0], [0.4]], [1.0, 1.0], second_part=[True, False])
    loss, _ = m.loss(inputs)
    assert loss.item() == pytest.approx(-(0.75 + 1.2) / 2)


def test_passes_are_an_option_of_every_method():
    assert [build(name, 4, passes=3).passes(1) for name in ("grpo", "dapo", "bapo")] == [3, 3, 3]
