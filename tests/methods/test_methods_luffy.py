"""LUFFY and ReLIFT: what an expert's solution does to a group, when a buffer of them fills, and the losses by hand."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest
from omegaconf import OmegaConf
from support.late import LATE
from support.scripted import ExpertSampler, build, fresh, group, ids, loss_inputs

from bapo.algorithm.batch import mini_batches
from bapo.algorithm.rollouts import DEMONSTRATED, FRESH
from bapo.errors import UserError

if LATE:
    import torch


luffy = partial(build, "luffy", 2)


def test_the_solution_replaces_the_last_response():
    failed = group("a", 0, step=3)
    batch = luffy().build_batch(3, [failed], ExpertSampler())
    (mixed,) = batch.groups
    assert mixed.rewards.tolist() == [0, 0, 0, 0, 0, 0, 0, 1] and mixed.origin == FRESH and mixed.version == 2
    assert mixed.off_policy.tolist() == [False] * 7 + [True] == mixed.replayed.tolist()
    assert mixed.samples.lengths.tolist() == [2] * 7 + [3]
    assert mixed.samples.tokens[7].tolist() == [9, 9, 9] and mixed.samples.logprobs[7].tolist() == [0, 0, 0]
    assert np.array_equal(mixed.samples.logprobs[:7, :2], failed.samples.logprobs[:7])
    assert batch.metrics == {"demonstrations": 1}
    assert failed.rewards.sum() == 0 and failed.off_policy is None  # the rollout's own record is untouched


def test_advantages_are_over_the_mixed_group_without_the_standard_deviation():
    (mixed,) = luffy().build_batch(1, [group("a", 3)], ExpertSampler()).groups
    # 3 of 7 fresh ones and the expert are right: the mean is 1/2
    assert luffy().advantages(mixed).tolist() == [0.5, 0.5, 0.5, -0.5, -0.5, -0.5, -0.5, 0.5]
    divided = luffy(advantage_std="population", advantage_eps=0.0).advantages(mixed)
    assert divided.tolist() == [1, 1, 1, -1, -1, -1, -1, 1]


def test_demonstrations_is_how_many_places_the_solution_takes():
    batch = luffy(demonstrations=3).build_batch(1, [group("a", 8), group("b", 0)], ExpertSampler())
    assert [g.off_policy.sum() for g in batch.groups] == [3, 3] and batch.metrics == {"demonstrations": 6}
    assert batch.groups[1].rewards.tolist() == [0, 0, 0, 0, 0, 1, 1, 1]
    with pytest.raises(UserError, match=r"method\.demonstrations=8"):
        luffy(demonstrations=8).build_batch(1, [group("a", 0)], ExpertSampler())


def test_a_prompt_without_a_solution_keeps_its_group():
    groups = [group("a", 2), group("b", 3)]
    batch = luffy().build_batch(1, groups, ExpertSampler(unknown="a"))
    assert batch.groups[0] is groups[0] and batch.groups[1].off_policy.any()
    assert batch.metrics == {"demonstrations": 1}


def inputs():
    """A fresh response (ratios 1 and 1.6) and an expert's (probabilities 0.1 and 0.9), advantages 1/2 and 1."""
    now, stored = [[0.5, 0.8], [0.1, 0.9]], [[0.5, 0.5], [1.0, 1.0]]
    return loss_inputs(now, stored, [0.5, 1.0], second_part=[False, True])


@pytest.mark.parametrize(
    ("options", "value"),
    [
        # fresh: -1/2 (1 + 1.6); expert: 0.1 / 0.2 and 0.9 / 1.0; the mean of four tokens
        ({}, -(0.5 + 0.8 + 0.5 + 0.9) / 4),
        ({"on_policy_clip": True}, -(0.5 + 0.6 + 0.5 + 0.9) / 4),
        ({"shape": 0.0}, -(0.5 + 0.8 + 0.1 + 0.9) / 4),
        ({"shape": 0.3}, -(0.5 + 0.8 + 0.25 + 0.75) / 4),
    ],
)
def test_the_loss_by_hand(options, value):
    loss, metrics = luffy(entropy_coef=0.0, **options).loss(inputs())
    assert loss.item() == pytest.approx(value, abs=1e-6)
    assert metrics["clip_fraction"].item() == (0.25 if options.get("on_policy_clip") else 0.0)


def test_shaping_pulls_hardest_at_rare_tokens_and_experts_are_never_clipped():
    given = inputs()
    luffy(entropy_coef=0.0).loss(given)[0].backward()
    # d/dlog p of p / (p + 0.1) is 0.1 p / (p + 0.1)^2: 0.25 at 0.1, where the plain ratio has 0.1; 0.09 at 0.9
    assert given.logprobs.grad.flatten().tolist() == pytest.approx([-0.125, -0.2, -0.0625, -0.0225], abs=1e-6)


# ==================================================================================================== ReLIFT

B = 4
TRAIN = OmegaConf.create({"batch_size": B, "mini_batch_size": 2, "underfilled": "fewer-updates"})


relift = partial(build, "relift", B)


def test_solutions_of_failed_questions_wait_until_there_are_as_many_as_in_a_batch():
    method, sampler = relift(), ExpertSampler()
    batch = method.build_batch(1, fresh(1, [0, 1, 0, 8]), sampler)
    assert sampler.asked == [["1a", "1c"]]  # only what nobody solved
    assert ids(batch.groups) == ["1a", "1b", "1c", "1d"] and batch.metrics == {"demonstrations": 0, "buffered": 2}
    batch = method.build_batch(2, fresh(2, [0, 0, 0, 2]), sampler)
    # the newest step's are in front, and what is left over stays
    assert ids(batch.groups[4:]) == ["2a", "2b", "2c", "1a"]
    assert {(g.origin, g.size) for g in batch.groups[4:]} == {(DEMONSTRATED, 1)}
    assert ids(method.kept) == ["1c"] and batch.metrics == {"demonstrations": 4, "buffered": 1}
    assert all(g.origin == FRESH for g in batch.groups[:4])


def test_a_supervised_update_is_a_share_of_the_batch():
    method = relift(buffer_share=0.5)
    batch = method.build_batch(1, fresh(1, [0, 0, 0, 0]), ExpertSampler())
    assert ids(batch.groups[4:]) == ["1a", "1b"] and ids(method.kept) == ["1c", "1d"]  # one update a step


def test_questions_without_a_solution_do_not_enter():
    method = relift()
    method.build_batch(1, fresh(1, [0, 0]), ExpertSampler(unknown=["1a"]))
    assert ids(method.kept) == ["1b"]


def test_the_supervised_update_comes_last_and_is_one():
    batch = relift().build_batch(1, fresh(1, [0, 0, 0, 0]), ExpertSampler())
    parts = mini_batches(relift(), TRAIN, 1, 1, batch.groups)
    assert [[g.origin for g in part] for part in parts] == [[FRESH] * 2, [FRESH] * 2, [DEMONSTRATED] * 4]
    assert sorted(ids(parts[2])) == ["1a", "1b", "1c", "1d"]


def relift_inputs(replayed, **more):
    now, stored = [[0.5, 0.8], [0.25, 0.9]], [[1.0 if replayed else 0.5] * 2] * 2
    advantages = [0.0, 0.0] if replayed else [0.5, -0.5]
    return loss_inputs(now, stored, advantages, [[1.0, 1.0], [1.0, 0.0]], [replayed] * 2, **more)


@pytest.mark.parametrize("aggregation", ["token-mean", "sequence-mean"])
def test_the_supervised_loss_is_the_mean_negative_log_likelihood_of_the_mini_batchs_tokens(aggregation):
    method = relift(entropy_coef=0.0, aggregation=aggregation)
    given = relift_inputs(True, nominal_sequences=64, nominal_tokens=6)
    loss, _ = method.loss(given)
    assert loss.item() == pytest.approx(-math.log(0.5 * 0.8 * 0.25) / 6, abs=1e-6)
    loss.backward()
    assert given.logprobs.grad.flatten().tolist() == pytest.approx([-1 / 6, -1 / 6, -1 / 6, 0], abs=1e-6)


def test_entropy_and_kl_beside_the_supervised_loss():
    entropy = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    plain = relift(entropy_coef=0.0).loss(relift_inputs(True))[0].item()
    # the bonus counts as in the reference's sft.entropy_coeff, a KL to the reference is on fresh responses only
    given = relift_inputs(True, entropy=entropy)
    assert relift(entropy_coef=0.1).loss(given)[0].item() == pytest.approx(plain - 0.1 * 2)
    other = [[0.05] * 2] * 2
    held = relift(entropy_coef=0.0, kl_to="reference", kl_coef=0.5)
    assert held.loss(relift_inputs(True, reference=other))[0].item() == pytest.approx(plain)
    assert held.loss(relift_inputs(False, reference=other))[0] > relift(entropy_coef=0.0).loss(relift_inputs(False))[0]


def test_the_policy_part_of_the_loss():
    # ratios 1 and 1.6 at advantage 1/2, 0.5 at -1/2: (-0.5 - 0.8 + 0.25) / 3; with on_policy_clip 1.2 and 0.8 stand
    assert relift(entropy_coef=0.0).loss(relift_inputs(False))[0].item() == pytest.approx(-1.05 / 3, abs=1e-6)
    clipped, metrics = relift(entropy_coef=0.0, on_policy_clip=True).loss(relift_inputs(False))
    assert clipped.item() == pytest.approx((-0.5 - 0.6 + 0.4) / 3, abs=1e-6)
    assert metrics["clip_fraction"].item() == pytest.approx(2 / 3)
