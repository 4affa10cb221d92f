"""ARPO and rollout replay: which responses come back, when, and what a resumed run knows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from support.scripted import NoSampler, ScriptedSampler, fresh, group, ids
from support.scripted import build as built

from bapo.algorithm.rollouts import FRESH, REPLAYED

B = 4


def build(algorithm, **options):
    return built(algorithm, B, **options)


# ---------------------------------------------------------------------------------------------------- ARPO


def test_a_failed_group_gets_one_stored_correct_response_in_its_first_place():
    arpo = build("arpo")
    first = group("a", 2, step=1)
    assert arpo.build_batch(1, [first], NoSampler()).groups == [first]
    failed = group("a", 0, step=7)
    batch = arpo.build_batch(2, [failed], NoSampler())
    (helped,) = batch.groups
    assert helped.rewards.tolist() == [1, 0, 0, 0, 0, 0, 0, 0] and helped.size == failed.size
    assert batch.metrics == {"replayed_responses": 1}
    # the stored response with its own log-probabilities, then the group's others with theirs
    assert any(np.array_equal(helped.samples.logprobs[0], first.samples.logprobs[i]) for i in (0, 1))
    assert np.array_equal(helped.samples.logprobs[1:], failed.samples.logprobs[1:])
    assert helped.origin == FRESH and helped.step == 7
    assert helped.replayed.tolist() == [True] + [False] * 7 and failed.off_policy is None
    assert failed.rewards.sum() == 0  # the log's group is untouched
    # (r - mean) / std with mean 1/8: the stored response is pushed up, the failures down
    assert arpo.advantages(helped)[0] > 2 > 0 > arpo.advantages(helped)[1]


def test_only_failed_groups_are_helped_and_only_by_their_own_prompt():
    arpo = build("arpo")
    arpo.build_batch(1, [group("a", 8), group("b", 1)], NoSampler())
    groups = [group("b", 1, 2), group("c", 0, 2)]  # not failed; no stored response
    assert arpo.build_batch(2, groups, NoSampler()).groups == groups


def test_this_steps_responses_come_too_late_and_the_oldest_are_forgotten():
    arpo = build("arpo", capacity=2)
    failed, solved = group("a", 0), group("a", 3)
    assert arpo.build_batch(1, [failed, solved], NoSampler()).groups == [failed, solved]
    kept = arpo.kept.of("a")
    assert [k.samples.logprobs[0, 0] for k in kept] == [solved.samples.logprobs[i, 0] for i in (1, 2)]


def test_what_is_failed_and_what_is_kept():
    # rewards of 0.25 are kept where positive is below that, and a group of them is failed where max_mean is above it
    strict, loose = build("arpo", positive=0.5, max_mean=0.2), build("arpo", positive=0.1, max_mean=0.3, max_std=0.01)
    for arpo in (strict, loose):
        arpo.build_batch(1, [replace(group("a", 0), rewards=np.full(8, 0.25))], NoSampler())
    assert not strict.kept.of("a") and len(loose.kept.of("a")) == 8
    again = replace(group("a", 0, 2), rewards=np.full(8, 0.25))
    assert loose.build_batch(2, [again], NoSampler()).groups[0] is not again
    assert build("arpo", positive=0.1, max_mean=0.25)._helped(again, np.random.default_rng(0)) is again  # not below
    assert build("arpo", max_std=0.0)._helped(again, np.random.default_rng(0)) is again  # no spread is below 0


# ---------------------------------------------------------------------------------------------------- rollout replay


def stream():
    return ScriptedSampler(stream=[f"p{i}" for i in range(40)])


def test_it_generates_sigma_of_the_batch_after_the_first_steps():
    rr = build("dots_rr", first_steps=2)
    assert [len(rr.draw_prompts(step, stream())) for step in (1, 2, 3, 4)] == [4, 4, 2, 2]
    shares = {0.25: 1, 1.0: B}
    assert {share: len(build("dots_rr", fresh_share=share).draw_prompts(3, stream())) for share in shares} == shares


def test_the_rest_is_replayed_from_informative_groups():
    rr = build("dots_rr", first_steps=1)
    rr.build_batch(1, fresh(1, [0, 8, 3, 5]), NoSampler())
    batch = rr.build_batch(2, fresh(2, [4, 0]), NoSampler())
    assert ids(batch.groups) == ["2a", "2b", "1c", "1d"]
    assert [g.origin for g in batch.groups] == [FRESH] * 2 + [REPLAYED] * 2
    assert ids(rr.kept) == ["1c", "1d", "2a"] and batch.metrics == {"replay_buffer": 3}


def test_a_prompt_is_in_the_buffer_once_with_its_newest_group():
    rr = build("dots_rr")
    rr.build_batch(1, [group("a", 3), group("b", 4)], NoSampler())
    newest = group("a", 5, step=2)
    rr.build_batch(2, [newest], NoSampler())
    assert ids(rr.kept) == ["b", "a"] and rr.kept[1] is newest
    rr.build_batch(2, [group("b", 8, 2)], NoSampler())  # learnt: nothing left to learn from it
    assert ids(rr.kept) == ["a"]


def test_the_buffer_is_bounded_and_drops_the_oldest():
    rr = build("dots_rr", capacity=3)
    rr.build_batch(1, fresh(1, [1, 2, 3, 4]), NoSampler())
    assert ids(rr.kept) == ["1b", "1c", "1d"]


def test_with_too_little_to_replay_the_batch_is_smaller():
    rr = build("dots_rr", first_steps=1)
    rr.build_batch(1, fresh(1, [0, 0, 0, 1]), NoSampler())
    assert ids(rr.build_batch(2, fresh(2, [0, 8]), NoSampler()).groups) == ["2a", "2b", "1d"]
