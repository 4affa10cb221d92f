"""PPO and BA-PPO: advantages, value loss and batches against values worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
from support.late import LATE
from support.scripted import NoSampler, ScriptedSampler, fresh, ids, loss_inputs

from bapo import methods
from bapo.algorithm.advantages import explained_variance, gae, whiten
from bapo.algorithm.rollouts import FRESH, REEVALUATED, REPLAYED

if LATE:
    import torch

    from bapo.algorithm.losses import ValueInputs, clipped_value_loss


B = 4


def build(algorithm: str = "ppo", batch_size: int = B, **options):
    return methods.build({"algorithm": algorithm, **options}, batch_size, seed=1)


#: two responses, of three tokens and of one; the reward comes with the last token
VALUES = np.array([[0.2, 0.5, 0.6], [0.4, 9.0, 9.0]])
REWARDS = np.array([[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]])
MASK = np.array([[1, 1, 1], [1, 0, 0]])


def test_gamma_and_gae_lambda():
    # delta_2 = 1 - 0.6 = 0.4; delta_1 = 0.9 * 0.6 - 0.5 = 0.04; delta_0 = 0.9 * 0.5 - 0.2 = 0.25
    # A_2 = 0.4; A_1 = 0.04 + 0.9 * 0.5 * 0.4 = 0.22; A_0 = 0.25 + 0.45 * 0.22 = 0.349; returns: A + V
    advantages, returns = gae(REWARDS, VALUES, MASK, gamma=0.9, lam=0.5)
    assert advantages[0] == pytest.approx([0.349, 0.22, 0.4], abs=1e-6)
    assert returns[0] == pytest.approx([0.549, 0.72, 1.0], abs=1e-6)
    one = build(gamma=0.9, gae_lambda=0.5, whiten_advantages=False)
    assert one.token_advantages(REWARDS, VALUES, MASK)[0][0] == pytest.approx([0.349, 0.22, 0.4], abs=1e-6)


def test_a_token_that_is_not_the_policys_is_passed_over():
    """As verl does with a tool's output: the error of the token before it looks at the next one of the policy."""
    # places 0 and 2 count: delta_2 = 1 - 0.6 = 0.4; delta_0 = 0.6 - 0.2 = 0.4; A_0 = 0.4 + 0.4
    advantages, _ = gae(REWARDS[:1], VALUES[:1], np.array([[1, 0, 1]]))
    assert advantages[0] == pytest.approx([0.8, 0.0, 0.4], abs=1e-6)


def test_whiten_advantages():
    # 0.8, 0.5, 0.4, 0.6: mean 0.575; squares 0.050625 + 0.005625 + 0.030625 + 0.000625 = 0.0875; / 3 = 0.0291667
    # divided by 0.1707825: 1.317465, -0.439155, -1.024695, 0.146385
    advantages, returns = build(whiten_advantages=True).token_advantages(REWARDS, VALUES, MASK)
    assert advantages[0] == pytest.approx([1.317465, -0.439155, -1.024695], abs=2e-6)
    assert advantages[1] == pytest.approx([0.146385, 0, 0], abs=2e-6)
    assert returns[0] == pytest.approx([1, 1, 1])  # the critic's goal stays as it is
    plain, _ = build(whiten_advantages=False).token_advantages(REWARDS, VALUES, MASK)
    assert plain[0] == pytest.approx([0.8, 0.5, 0.4])


def test_whitening_one_token_or_equal_ones_gives_zeros():
    assert whiten(np.array([[3.0, 5.0]]), np.array([[1, 0]])).tolist() == [[0, 0]]
    assert whiten(np.full((2, 2), 0.25), np.ones((2, 2))).tolist() == [[0, 0], [0, 0]]


def test_explained_variance():
    # returns 1, 1, 0, 0: variance 1/3. Errors 0.5, 0.5, -0.5, 0: mean 0.125; squares 2 * 0.140625 + 0.390625 + 0.015625
    # = 0.6875; / 3 = 0.2291667; 1 - 0.2291667 / (0.3333333 + 0.00001) = 0.312521
    values, returns, mask = np.array([[[0.5, 0.5, 0.5, 0.0, 8.0]], [[1, 1, 0, 0, 8.0]], [[1, 1, 1, 1, 0]]])
    assert explained_variance(values, returns, mask) == pytest.approx(0.312521, abs=1e-6)
    assert explained_variance(returns, returns, mask) == pytest.approx(1.0)
    assert np.isnan(explained_variance(values, returns, np.array([[1, 0, 0, 0, 0]])))
    # two: returns 1 and 0 vary by 1/2, errors 0.5 and -0.5 by as much
    assert explained_variance(values, returns, np.array([[0, 1, 1, 0, 0]])) == pytest.approx(0.0, abs=1e-4)


def test_value_clip_takes_the_worse_of_the_two():
    values = torch.tensor([[0.9, 0.1, -0.9, 0.3]])
    old, returns = torch.zeros(1, 4), torch.tensor([[0.0, 1.0, 1.0, 1.0]])
    # near: 0.5, 0.1, -0.5, 0.3. The first moved 0.9 away from its goal: 0.81 against 0.25. The second is within reach.
    # The third moved away too: 3.61 against 2.25.
    loss, clipped = clipped_value_loss(values, old, returns, 0.5)
    assert loss[0].tolist() == pytest.approx([0.405, 0.405, 1.805, 0.245], abs=1e-6)
    assert clipped[0].tolist() == [0, 0, 0, 0]
    # and one that overshoots: 0.9 towards a goal of 1 is 0.01, clipped to 0.5 it is 0.25, which counts and has no slope
    value = torch.tensor([[0.9]], requires_grad=True)
    loss, clipped = clipped_value_loss(value, torch.zeros(1, 1), torch.ones(1, 1), 0.5)
    loss.sum().backward()
    assert (loss.item(), clipped.item(), value.grad.item()) == (pytest.approx(0.125), 1.0, 0.0)
    loss, clipped = clipped_value_loss(value, torch.zeros(1, 1), torch.ones(1, 1), 0.0)
    assert (loss.item(), clipped.item()) == (pytest.approx(0.005), 0.0)


def value_inputs(**more) -> ValueInputs:
    """Errors 1, 1 and, behind a response of one token, 0.5 and nothing."""
    values = torch.tensor([[1.0, 1.0], [0.5, 7.0]])
    return ValueInputs(values, values, torch.zeros(2, 2), torch.tensor([[1.0, 1.0], [1.0, 0.0]]), **more)


def test_the_value_loss_is_averaged_as_the_policys():
    loss, metrics = build().value_loss(value_inputs())  # token means 0.5 and 0.125, their mean
    assert loss.item() == pytest.approx(0.3125)
    assert metrics["value_clip_fraction"].item() == 0.0
    assert build(aggregation="token-mean").value_loss(value_inputs())[0].item() == pytest.approx(1.125 / 3)
    assert build().value_loss(value_inputs(nominal_sequences=8))[0].item() == pytest.approx(0.625 / 8)
    token_mean = build(aggregation="token-mean").value_loss(value_inputs(nominal_tokens=9))[0]
    assert token_mean.item() == pytest.approx(1.125 / 9)
    moved = value_inputs()
    moved.values = moved.values + torch.tensor([[-0.4, -0.4], [0.0, 0.0]])
    # with the clip 0.1 two of three tokens count as 0.9 away
    loss, metrics = build(value_clip=0.1, aggregation="token-mean").value_loss(moved)
    assert metrics["value_clip_fraction"].item() == pytest.approx(2 / 3)
    assert loss.item() == pytest.approx((0.5 * 0.81 * 2 + 0.125) / 3)


def test_each_token_has_its_own_advantage_in_the_policys_loss():
    ones = [[1.0] * 2] * 2
    inputs = loss_inputs(ones, ones, [[1.0, -3.0], [2.0, 99.0]], [[1.0, 1.0], [1.0, 0.0]], reference=ones)
    loss, _ = build(entropy_coef=0.0).loss(inputs)  # the ratio is 1: minus the mean of -1 and 2
    assert loss.item() == pytest.approx(-0.5)
    loss, _ = build("ba_ppo", entropy_coef=0.0, aggregation="token-mean").loss(inputs)
    assert loss.item() == pytest.approx(0.0)  # 1 - 3 + 2


def test_critic_warmup_delays_the_policy():
    assert [build(critic_warmup=2).trains_policy(t) for t in (1, 2, 3, 4)] == [False, False, True, True]
    assert build().trains_policy(1) and build("grpo").trains_policy(1)


def test_only_these_methods_have_a_critic():
    with_critic = {name for name in methods.names() if build(name).uses_critic}
    assert with_critic == {"ppo", "ba_ppo"}
    with pytest.raises(NotImplementedError, match="grpo has no critic"):
        build("grpo").token_advantages(REWARDS, VALUES, MASK)


def test_defaults_are_a_9s():
    """BAPO's own values where A.9 says nothing else, and verl's for the critic."""
    c, bapo = build("ba_ppo").config, build("bapo").config
    assert {k for k, v in bapo if getattr(c, k) != v} == {"algorithm", "name", "title"}
    p = build("ppo").config
    for config in (c, p):
        assert (config.gamma, config.gae_lambda, config.value_clip) == (1.0, 1.0, 0.5)
        assert config.critic_rate_ratio * 1e-6 == pytest.approx(1e-5)
    assert (p.kind, p.kl_to, c.kind, c.kl_to) == ("on", "reference", "off", "rollout")
    assert build("ba_ppo", batch_size=256).bad.capacity == 64
    assert build("ba_ppo", batch_size=256, bad_capacity=5).bad.capacity == 5
    assert build("ba_ppo", batch_size=2).bad.capacity == 1


def test_ba_ppo_builds_bapos_batches():
    """Step 1 fills the buffers, step 2 brings both back; at a buffer of one, only the newest hard prompt is left."""
    one = build("ba_ppo", v=5, m=2, c2_range=[0.25, 0.25], c3_range=[0.5, 0.5])
    assert one.bad.capacity == 1 and one.delays_rollout_policy and not one.needs_reference
    first = one.build_batch(1, fresh(1, [0, 1, 3, 8]), NoSampler())
    assert ids(first.groups) == ["1b", "1c"]
    second = one.build_batch(2, fresh(2, [8, 8, 8, 6]), ScriptedSampler({"1b": [4]}))
    assert [(g.prompt.id, g.origin) for g in second.groups] == [("2d", FRESH), ("1b", REEVALUATED), ("1c", REPLAYED)]
