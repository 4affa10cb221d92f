"""LUFFY: what the expert's solution does to a group, and its loss by hand."""

from __future__ import annotations

import numpy as np
import pytest
from support.late import LATE
from support.scripted import ExpertSampler, group

from bapo import methods
from bapo.algorithm.rollouts import FRESH, Prompt
from bapo.errors import UserError

if LATE:
    import torch

    from bapo.algorithm.losses import LossInputs, shaped_ratio


def luffy(**options):
    return methods.build({"algorithm": "luffy", **options}, batch_size=2, seed=1)


# ---------------------------------------------------------------------------------------------------- the group


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
    assert luffy(advantage_std="population", advantage_eps=0.0).advantages(mixed).tolist() == [
        1,
        1,
        1,
        -1,
        -1,
        -1,
        -1,
        1,
    ]


def test_demonstrations_is_how_many_places_the_solution_takes():
    batch = luffy(demonstrations=3).build_batch(1, [group("a", 8), group("b", 0)], ExpertSampler())
    assert [g.off_policy.sum() for g in batch.groups] == [3, 3] and batch.metrics == {"demonstrations": 6}
    assert batch.groups[1].rewards.tolist() == [0, 0, 0, 0, 0, 1, 1, 1]
    with pytest.raises(UserError, match=r"method\.demonstrations=8: must be below train\.group_size=8"):
        luffy(demonstrations=8).build_batch(1, [group("a", 0)], ExpertSampler())


def test_a_prompt_without_a_solution_keeps_its_group_but_some_must_have_one():
    method, groups = luffy(), [group("a", 2), group("b", 3)]
    with pytest.raises(UserError, match=r"none of 2 prompts has an expert's solution: .*Task\.demonstration"):
        luffy().build_batch(1, groups, ExpertSampler(unknown="ab"))
    batch = method.build_batch(1, groups, ExpertSampler(unknown="a"))
    assert batch.groups[0] is groups[0] and batch.groups[1].off_policy.any()
    assert batch.metrics == {"demonstrations": 1}
    # once the expert has answered, a batch without solutions is chance; a resumed run knows that too
    resumed = luffy()
    resumed.restore(*method.state(), Prompt)
    assert resumed.build_batch(2, groups, ExpertSampler(unknown="ab")).groups == groups


# ---------------------------------------------------------------------------------------------------- the loss


def inputs(**more):
    """A fresh response (ratios 1 and 1.6) and an expert's (probabilities 0.1 and 0.9), advantages 1/2 and 1."""
    return LossInputs(
        logprobs=torch.tensor([[0.5, 0.8], [0.1, 0.9]]).log().requires_grad_(),
        behaviour_logprobs=torch.tensor([[0.5, 0.5], [1.0, 1.0]]).log(),
        advantages=torch.tensor([0.5, 1.0]),
        mask=torch.ones(2, 2),
        replayed=torch.tensor([False, True]),
        **more,
    )


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
    assert shaped_ratio(torch.tensor([0.1, 0.4, 0.9]), 0.1).tolist() == pytest.approx([0.5, 0.8, 0.9])
