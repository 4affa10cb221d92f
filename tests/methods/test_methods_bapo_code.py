"""What the authors' code does (waunx/BAPO_ICLR at 5a4e246), one option each, against values from its formulas."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from support.scripted import NoSampler, ScriptedSampler, build, fresh, group, ids, loss_inputs

from bapo import methods
from bapo.algorithm.rollouts import FRESH, REEVALUATED, REPLAYED, Group, Prompt
from bapo.experiments.compose import compose_config
from bapo.methods.bapo_code import BAPOCode, StoredPrompt, quota_filter

ALL_RIGHT = [8] * 6


def bapo(batch_size: int = 6, **options) -> BAPOCode:
    return build("bapo_code", batch_size, **options)


# ---------------------------------------------------------------- (a) and (b): X3


def test_x3_takes_the_stored_responses_of_a_prompt_that_has_become_high_quality():
    """``sample_filtered_groups``: mu_current where X2 has measured one, else mu_alpha; nothing is generated for X3."""
    method = bapo(bad_capacity=6, c2_range=[0.25, 0.25], c3_range=[0.5, 0.5])
    sampler = ScriptedSampler({"1a": [3], "1b": [0]})
    method.build_batch(1, [group("1a", 0, 1), group("1b", 1, 1), group("1c", 8, 1)], NoSampler())
    method.improved_hard(5, sampler)
    # X2 finds 1a at 3/8, so its all wrong responses of step 1 may be replayed
    (again,) = method.replayable(0.25, 0.5)
    assert sorted(sampler.asked[0]) == ["1a", "1b"] and again.key == ("1a", 1) and again.rewards.sum() == 0


# ---------------------------------------------------------------- (c): r_tot


def test_r_tot_is_the_mean_of_every_group_stored_ones_twice():
    """``alpha_scores``: entered on arrival and again on storing, taken out only where a stored prompt is evicted."""
    method = bapo(bad_capacity=1, threshold_direction="rising", c2_range=[0.3, 0.3], c3_range=[0.4, 0.4])
    method.build_batch(1, [group("1a", 0, 1), group("1b", 4, 1), group("1c", 8, 1)], NoSampler())
    assert method.average_reward == pytest.approx((0 + 0.5 + 1) / 3)
    # B_high takes [0.3, 0.4], so only 1a is stored (B_bad) and counts twice from now on
    method.build_batch(2, [group("2a", 8, 2)], NoSampler())
    assert method.average_reward == pytest.approx((0.5 + 1 + 2 * 0 + 1) / 5)
    method.build_batch(3, [group("3a", 0, 3)], NoSampler())
    assert method.average_reward == pytest.approx((0.5 + 1 + 1 + 2 * 0 + 0) / 6)
    # 3a has pushed 1a out of B_bad, whose scores are gone
    method.build_batch(4, [group("4a", 8, 4)], NoSampler())
    assert method.average_reward == pytest.approx((0.5 + 1 + 1 + 2 * 0 + 1) / 6)


@pytest.mark.parametrize(
    ("corrects", "c2", "c3"),
    [
        ([0, 0, 0, 8], 0.5 - 0.375 / 12, 0.625 - 0.375 / 12),  # r_tot 1/4: ratio (0.25 - 0.2) / 0.6 = 1/12
        ([0, 0, 0, 0], 0.5, 0.625),  # at most 0.2: the easy end
        ([8, 8, 8, 8], 0.125, 0.25),  # at least 0.8: the hard end
    ],
)
def test_average_span_stretches_r_tot(corrects, c2, c3):
    """``_update_adaptive_target_range``: new = high - (high - low) * (mean - 0.2) / 0.6, held to [0, 1]."""
    method = bapo(c2_range=[0.125, 0.5], c3_range=[0.25, 0.625])
    batch = method.build_batch(1, fresh(1, corrects), NoSampler())
    assert (batch.metrics["c2"], batch.metrics["c3"]) == pytest.approx((c2, c3))


# ---------------------------------------------------------------- (d): the Gaussian filter


def test_quota_filter_by_hand():
    """``gaussian_sample_from_current_batch``: quotas of responses a bin, bin 0/8 included, 8/8 not."""
    groups = fresh(1, [0, 0, 0, 0, 2, 2, 4, 8])
    # 64 responses, 48 wanted; bins 0, 2, 4: centre 2, weights e^-0.5, 1, e^-0.5 = 0.6065, 1, 0.6065
    # shares 0.2741, 0.4519, 0.2741, so quotas int(13.16), int(21.69), int(13.16) of 32, 16 and 8 responses
    kept = quota_filter(groups, share=0.75, std=2.0, rng=np.random.default_rng(1))
    assert not any(g.mean == 1 for g in kept)
    sizes = Counter()
    for g in kept:
        sizes[g.prompt.id] += g.size
    assert sum(sizes[p] for p in ("1a", "1b", "1c", "1d")) == 13  # parts of groups
    assert (sizes["1e"], sizes["1f"], sizes["1g"]) == (8, 8, 8)  # fewer than the quota: all of them
    narrow = quota_filter(groups, share=0.75, std=0.1, rng=np.random.default_rng(1))
    assert {g.prompt.id for g in narrow} == {"1e", "1f"}
    assert sum(g.size for g in bapo().filtered_fresh(1, groups)) == 37


def test_parts_of_groups_share_a_place_in_the_mini_batch():
    method = bapo()
    parts = [group(f"p{n}", 4).select(range(n)) for n in (3, 4, 2, 8, 1)]
    assert [[g.size for g in unit] for unit in method.units(parts)] == [[3, 4, 2], [8], [1]]
    whole = [group(name, 4) for name in "abc"]
    assert method.units(whole) == [[g] for g in whole] and method.units([]) == []


# ---------------------------------------------------------------- (f) and (g), and what follows from them


def test_x2_is_any_gain_as_far_as_x1_leaves_room_and_every_prompt_stays():
    """``promoted_to_take = min(available_promoted, remaining_needed)``; all correct is admitted, an equal mean not."""
    method = bapo(bad_capacity=6, max_reevaluated=6)
    for name, mean in (("zero", 0.0), ("one", 0.125), ("all", 0.0)):
        method.bad.add(StoredPrompt(name, Prompt(name), mean, group=group(name, 0)))
    batch = method.build_batch(5, fresh(5, ALL_RIGHT), ScriptedSampler({"zero": [1], "one": [1], "all": [8]}))
    # X1 keeps all of a step that gives nothing to draw, so there is no room
    assert batch.metrics["reevaluated_prompts"] == 3 and [e.key for e in method.bad] == ["zero", "one", "all"]
    assert [e.again for e in method.bad] == [(0.125,), (0.125,), (1.0,)]
    reasons = {g.prompt.id: why for g, why in batch.rejected if g.origin == REEVALUATED}
    assert reasons == {"zero": "batch full", "all": "batch full", "one": "not improved"}
    x2, failed = method.improved_hard(10, ScriptedSampler({"zero": [1], "one": [1], "all": [8]}))
    assert (ids(x2), ids(failed)) == (["zero", "all"], ["one"])
    assert {g.origin for g in [*x2, *failed]} == {REEVALUATED}


def test_the_latest_mean_is_that_of_the_last_four_re_evaluations():
    stored = group("a", 1)
    entry = StoredPrompt("a", Prompt("a"), 1.0, again=(0.5, 0.0, 0.25, 0.25), group=stored)
    assert entry.latest == 0.25 and StoredPrompt("a", Prompt("a"), 0.125, group=stored).latest == 0.125


def test_x2_weight():
    """A group of X2 weighs three, but not when X3 brings it back."""
    method = bapo(m=1, x2_weight=3.0, max_reevaluated=1, c2_range=[0.25, 0.25], c3_range=[0.5, 0.5])
    method.build_batch(1, fresh(1, [0, 0, 0, 0]), NoSampler())
    seen = set()
    for step in (2, 3):
        batch = method.build_batch(step, fresh(step, [8] * 4), ScriptedSampler({f"1{n}": [3, 3] for n in "abcd"}))
        seen |= {(g.origin, g.weight) for g in batch.groups}
    assert seen == {(FRESH, 1.0), (REEVALUATED, 3.0), (REPLAYED, 1.0)}


def test_advantages_are_relative_to_the_latest_mean():
    """``compute_grpo_off_policy_advantage``: (r - mu) / (sigma + eps), by a stored prompt's latest scores."""
    method = bapo(bad_capacity=6)
    method.bad.add(StoredPrompt("a", Prompt("a"), 0.0, 1, again=(0.5,), group=group("a", 0, 1)))
    stored = group("5b", 1, 5)
    again = group("a", 2, 5).as_origin(REEVALUATED)
    method.improved_hard(5, ScriptedSampler({"a": [2]}))
    method.store([stored], 0.9, 0.95)
    method._note_scores([stored, group("5c", 6, 5)], [again])
    # a: the mean of both re-evaluations, (4/8 + 2/8) / 2 = 3/8, sigma = sqrt(15)/8
    sigma = 15**0.5 / 8
    assert method.advantages(again)[:3] == pytest.approx([(1 - 3 / 8) / sigma] * 2 + [-3 / 8 / sigma], rel=1e-4)
    # 5b is stored with 1/8, whatever part of it is trained on
    part = stored.select([0, 1])
    assert method.advantages(part) == pytest.approx([7 / 7**0.5, -1 / 7**0.5], rel=1e-4)
    # 5c is in no buffer: eq. 2
    other = group("5c", 6, 5)
    assert method.advantages(other) == pytest.approx(bapo().advantages(other))


def test_the_ratio_is_pi_over_pi_k_and_keeps_what_is_replayed():
    method = bapo(kl_to="none", entropy_coef=0.0, dual_clip=0)
    assert method.needs_step_policy
    now, sampled, step = [[0.55]] * 2, [[0.25]] * 2, [[0.5]] * 2
    loss, metrics = method.loss(loss_inputs(now, sampled, [1.0, 1.0], second_part=[False, True], pi_k=step))
    # fresh: 0.55 / 0.5 = 1.1; replayed: 0.55 / 0.25 = 2.2, cut at 1.2
    assert loss.item() == pytest.approx(-(1.1 + 1.2) / 2)
    assert metrics["clip_fraction"].item() == 0.5


def test_the_divergence_is_from_pi_k_or_from_the_policy_that_a_replayed_response_had():
    given = loss_inputs([[0.5]] * 2, [[0.25]] * 2, [1.0, 1.0], second_part=[False, True], pi_k=[[0.4]] * 2)
    expected = [r - np.log(r) - 1 for r in (0.4 / 0.5, 0.25 / 0.5)]
    assert bapo().divergence(given).flatten().tolist() == pytest.approx(expected, abs=1e-6)


def test_the_values_are_the_mathematics_scripts():
    config = compose_config(["task=mathematics", "method=bapo_code"])
    c, method = config.method, methods.build(config.method, 32, 1)
    assert (c.c2_range, c.c3_range, c.threshold_direction) == ([0.125, 0.375], [0.375, 0.75], "falling")
    # max_total_uids = B: a quarter for the high-quality, the rest for the difficult
    assert (method.high.capacity, method.bad.capacity, c.x2_weight) == (8, 24, 1.0)
    assert c.max_reevaluated is None  # half the batch, max_reeval_ids=128 of 256
    assert (c.clip_centre, c.kl_to, c.kl_coef) == ("one", "step-policy", 0.001)
    assert c.sync_phase == "first"


def test_the_countdown_script_differs_in_five_values():
    c = compose_config(["task=countdown", "method=bapo_code"]).method
    assert (c.high_capacity, c.bad_capacity, c.max_reevaluated) == (32, 96, 32)  # 1,024 and 256 of B = 256
    assert (c.c2_range, c.c3_range) == ([0.125, 0.125], [0.375, 0.375])  # enable_adaptive_target_range=False
    assert (c.x2_weight, c.kl_coef, c.entropy_coef) == (3.0, 0.005, 0.0)


class Scoring(ScriptedSampler):
    """The policy of step s gives every token the log-probability -s."""

    def score(self, groups: list[Group]) -> list[np.ndarray]:
        return [np.full_like(g.samples.logprobs, -self.step) for g in groups]


def test_the_release_keeps_the_log_probabilities_of_the_step_that_generated():
    """X1 and X2 have those of the running step, X3 those of its own."""
    method = build("bapo_released", 4, m=2, c2_range=[0.25, 0.25], c3_range=[0.75, 0.75])
    sampler = Scoring({"1b": [3], "1c": [0]})
    method.build_batch(1, fresh(1, [4, 0, 0, 8]), sampler)
    sampler.step = 2
    batch = method.build_batch(2, fresh(2, [5, 8, 8, 8]), sampler)
    found = {(g.prompt.id, g.origin): set(g.step_logprobs.ravel().tolist()) for g in batch.groups}
    assert found == {("2a", FRESH): {-2.0}, ("1b", REEVALUATED): {-2.0}, ("1a", REPLAYED): {-1.0}}
    assert all(g.step_logprobs is None for g, _ in batch.rejected if g.prompt.id == "1c")  # it is not trained on
    assert batch.groups[0].select([3]).step_logprobs.shape == (1, 2)


def test_the_ratio_of_the_release_is_to_the_policy_of_the_responses_step():
    """0.24 over pi_s = 0.2 is 1.2; pi_s over alpha_s = 0.05 is 4, whose weight is 3. 0.28 is the upper clip."""
    method = build("bapo_released", 2, kl_to="none", entropy_coef=0.0, clip_high=0.28)
    given = loss_inputs([[0.24], [0.4]], [[0.05], [0.1]], [1.0, 1.0], second_part=[True, False], pi_k=[[0.2], [0.2]])
    value, metrics = method.loss(given)
    assert value.item() == pytest.approx(-(3 * 1.2 + 2 * 1.28) / 2)
    assert metrics["clip_fraction"].item() == 0.5
    assert method.keeps_step_logprobs and not method.needs_step_policy
