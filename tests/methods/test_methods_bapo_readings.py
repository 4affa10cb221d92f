"""Readings of the paper's text that BAPO leaves to an option, each against values worked out by hand."""

from __future__ import annotations

from functools import partial

import pytest
from support.scripted import NoSampler, ScriptedSampler, build, fresh, group, ids, loss_inputs, parts

from bapo.algorithm.replay import HardPrompt
from bapo.algorithm.rollouts import REEVALUATED, REPLAYED, Prompt
from bapo.methods.bapo import BAPO

ALL_RIGHT = [8] * 6  # nothing for X1


bapo = partial(build, "bapo", 6)


def with_bad(names: str, **options) -> BAPO:
    method = bapo(**options)
    for name in names:
        method.bad.add(HardPrompt(name, Prompt(name)))
    return method


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
def test_store_promoted(store):
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
    """Three rows of one token: X1 with advantage 1, X2 with -1, X3 with 2; all ratios are 1."""
    groups = [group("x1", 4), group("x2", 4).as_origin(REEVALUATED), group("x3", 4).as_origin(REPLAYED)]
    values, ones = {}, [[1.0]] * 3
    for kind in ("pooled", "separate"):
        method = bapo(expectations=kind, kl_coef=0.0, entropy_coef=0.0)
        marks = [bool(method.historical(g)[0]) for g in groups]
        values[kind] = method.loss(loss_inputs(ones, ones, [1.0, -1.0, 2.0], replayed=marks))[0].item()
    # pooled: -(1 - 1 + 2) / 3; separate: -1 for X1, -(-1 + 2) / 2 for what the buffers gave
    assert values["pooled"] == pytest.approx(-2 / 3)
    assert values["separate"] == pytest.approx(-1 - 1 / 2)


def test_the_denominators_of_separate_expectations_count_x2_as_historical():
    from omegaconf import OmegaConf

    from bapo.engines.shared.rows import denominators

    train = OmegaConf.create({"mini_batch_size": 3, "group_size": 8, "underfilled": "fewer-updates"})
    groups = [group("x1", 4), group("x2", 4).as_origin(REEVALUATED), group("x3", 4).as_origin(REPLAYED)]
    for kind, counts in (("pooled", (16, 8)), ("separate", (8, 16))):
        marks = [bapo(expectations=kind).historical(g) for g in groups]
        assert denominators(train, groups, marks)["part_sequences"] == counts
