"""GRPO (the base class), delayed GRPO and GSPO: hooks and loss with each option, by hand; DAPO's dynamic sampling."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from support.late import LATE
from support.scripted import NoSampler, ScriptedSampler, build, fresh, group, ids, loss_inputs

from bapo.algorithm.rollouts import FRESH
from bapo.errors import UserError

if LATE:
    import torch


# two sequences: the first has two tokens with ratios 1.5 and 0.9, the second one token with ratio 0.5
NOW = [[0.75, 0.45], [0.25, 0.9]]
STORED = [[0.5, 0.5], [0.5, 0.5]]
REFERENCE = [[0.75, 0.9], [0.125, 0.1]]
MASK = [[1.0, 1.0], [1.0, 0.0]]


def method(algorithm: str = "grpo", **options):
    return build(algorithm, 4, **options)


def inputs(advantages=(1.0, -1.0), **more):
    return loss_inputs(NOW, STORED, advantages, MASK, **more)


def plain(**options):
    """Only the surrogate."""
    return method(**{"kl_to": "none", "entropy_coef": 0.0, "dual_clip": 0.0, **options})


def loss(m, given) -> float:
    return m.loss(given)[0].item()


def test_hooks_of_grpo():
    m = method()
    assert [p.id for p in m.draw_prompts(1, ScriptedSampler(stream="abcdef"))] == ["a", "b", "c", "d"]
    assert [m.syncs_rollout_policy(t) for t in (1, 2, 3)] == [True] * 3
    assert not m.delays_rollout_policy
    groups = fresh(1, [0, 3, 8, 4])
    batch = m.build_batch(1, groups, NoSampler())
    assert ids(batch.groups) == ["1a", "1b", "1c", "1d"] and batch.rejected == []  # groups without a signal included
    assert m.units(groups) == [[g] for g in groups]
    assert m.state() == ({}, [])


UNBIASED = {"advantage_std": "unbiased", "advantage_eps_inside": False}


@pytest.mark.parametrize(
    ("options", "first"),
    [
        # rewards 1 0 0 0 0 0 0 0; see test_advantages
        ({}, 2.645739),
        (UNBIASED, 2.474867),
        (UNBIASED | {"advantage_eps": 0.01}, 2.406799),
        ({"advantage_eps": 0.01}, 2.532511),
    ],
)
def test_advantage_options(options, first):
    assert method(**options).advantages(group("p", 1))[0] == pytest.approx(first, abs=2e-6)


def test_equation_1_with_its_defaults():
    # surrogate: ratios 1.5 -> 1.2, 0.9 (A = 1): -1.2, -0.9; ratio 0.5 (A = -1) -> 0.8: 0.8
    # KL to the reference, exp(d) - d - 1: pi = ref: 0; ref/pi = 2: 2 - ln 2 - 1; 1/2: 1/2 + ln 2 - 1
    # entropy 0.5, 0.3 | 0.2 with coefficient 0.001
    kl = [0.0, 1 - math.log(2), math.log(2) - 0.5]
    first = (-1.2 - 0.9 + 0.001 * (kl[0] + kl[1]) - 0.001 * 0.8) / 2
    second = 0.8 + 0.001 * kl[2] - 0.001 * 0.2
    m = method()
    assert m.needs_reference and not m.needs_step_policy
    given = inputs(reference=REFERENCE, entropy=torch.tensor([[0.5, 0.3], [0.2, 9.0]]))
    value, metrics = m.loss(given)
    assert value.item() == pytest.approx((first + second) / 2, abs=1e-7)
    assert metrics["clip_fraction"].item() == pytest.approx(2 / 3)
    assert metrics["clipped"].tolist() == [0.5, 1.0]  # of each sequence
    assert metrics["kl"].item() == pytest.approx(sum(kl) / 3, abs=1e-6)
    assert not metrics["kl"].requires_grad
    value.backward()
    g = given.logprobs.grad
    assert g[1, 1] == 0  # padding
    assert g[0, 0].item() == pytest.approx(0.0, abs=1e-7)  # clipped, and at the reference
    # -rho A + 0.001 (1 - ref/pi), over 2 tokens and 2 sequences
    assert g[0, 1].item() == pytest.approx((-0.9 + 0.001 * (1 - 2)) / 4, abs=1e-6)


def test_kl_coef_and_kl_to():
    base = loss(plain(), inputs())
    # token means of KL to the reference: (0 + 1 - ln 2) / 2 and ln 2 - 1/2; mean 0.1732868
    to_reference = ((1 - math.log(2)) / 2 + math.log(2) - 0.5) / 2
    m = plain(kl_to="reference", kl_coef=0.5)
    assert m.needs_reference
    assert loss(m, inputs(reference=REFERENCE)) == pytest.approx(base + 0.5 * to_reference, abs=1e-6)
    # to the rollout policy: stored/pi = 2/3, 1/0.9 | 2: x - 1 - ln x = 0.0721318, 0.0057506 | 0.3068528
    m = plain(kl_to="rollout", kl_coef=0.5)
    assert not m.needs_reference
    to_rollout = ((0.0721318 + 0.0057506) / 2 + 0.3068528) / 2
    assert loss(m, inputs()) == pytest.approx(base + 0.5 * to_rollout, abs=1e-6)
    # no KL: the reference is not even asked for
    for options in ({"kl_to": "none"}, {"kl_to": "reference", "kl_coef": 0.0}):
        m = plain(**options)
        assert not m.needs_reference and loss(m, inputs()) == pytest.approx(base)
        assert "kl" not in m.loss(inputs())[1]


def test_entropy_coef():
    entropy = torch.tensor([[0.5, 0.3], [0.2, 9.0]])
    base = loss(plain(), inputs())
    assert loss(plain(entropy_coef=0.1), inputs(entropy=entropy)) == pytest.approx(
        base - 0.1 * (0.4 + 0.2) / 2, abs=1e-6
    )


@pytest.mark.parametrize(
    ("options", "given", "value"),
    [
        # A = 1: ratios 1.5, 0.9; A = -1: ratio 0.5
        ({}, {}, ((-1.2 - 0.9) / 2 + 0.8) / 2),
        ({"clip_high": 0.28}, {}, ((-1.28 - 0.9) / 2 + 0.8) / 2),
        ({"clip_low": 0.4}, {}, ((-1.2 - 0.9) / 2 + 0.6) / 2),
        ({"aggregation": "token-mean"}, {}, (-1.2 - 0.9 + 0.8) / 3),
        # A = -1 for the first sequence: ratios 1.5, 0.9 cost 1.5, 0.9; the bound 1.2 cuts the first
        ({}, {"advantages": (-1.0, 0.0)}, (1.5 + 0.9) / 4),
        ({"dual_clip": 1.2}, {"advantages": (-1.0, 0.0)}, (1.2 + 0.9) / 4),
        ({}, {"nominal_sequences": 8}, ((-1.2 - 0.9) / 2 + 0.8) / 8),
        ({"aggregation": "token-mean"}, {"nominal_tokens": 10}, (-1.2 - 0.9 + 0.8) / 10),
    ],
)
def test_clips_and_the_mean(options, given, value):
    assert loss(plain(**options), inputs(**given)) == pytest.approx(value, abs=1e-6)


def test_delayed_grpo_centres_the_interval_at_the_step_policy():
    m = method("grpo_delayed", kl_to="none", entropy_coef=0.0, dual_clip=0.0)
    assert m.config.clip_centre == "step-policy" and m.needs_step_policy and m.config.v == 5
    # pi_k / alpha = 1.6, 0.5 | 0.6: intervals [1.4, 1.8], [0.3, 0.7] | [0.4, 0.8]
    # ratios 1.5 (inside), 0.9 -> 0.7 with A = 1; 0.5 inside with A = -1
    given = inputs(pi_k=[[0.8, 0.25], [0.3, 0.9]])
    value, metrics = m.loss(given)
    assert value.item() == pytest.approx(((-1.5 - 0.7) / 2 + 0.5) / 2, abs=1e-6)
    plain_interval = method("grpo_delayed", clip_centre="one", kl_to="none", entropy_coef=0.0)
    assert not plain_interval.needs_step_policy and loss(plain_interval, inputs()) == loss(plain(), inputs())
    assert metrics["clip_fraction"].item() == pytest.approx(1 / 3)
    value.backward()
    assert given.logprobs.grad.flatten().tolist() == pytest.approx([-1.5 / 4, 0.0, 0.5 / 2, 0.0], abs=1e-6)


#: probabilities now and when sampled, advantages and mask of two responses, of three tokens and of one
GSPO = (
    [[0.2, 0.4, 0.9], [0.3, 0.5, 0.5]],
    [[0.1, 0.4, 0.3], [0.6, 0.1, 0.1]],
    [1.0, -1.0],
    [[1.0, 1.0, 1.0], [1.0, 0.0, 0.0]],
)


def test_the_ratio_of_gspo_is_the_geometric_mean_over_the_response():
    ratio = method("gspo").ratio(loss_inputs(*GSPO))
    # (2 * 1 * 3) ** (1/3), and 1/2: what lies behind the end of the second response does not count
    assert torch.allclose(ratio, torch.tensor([[6 ** (1 / 3)] * 3, [0.5] * 3]), atol=1e-6)
    far = method("gspo").ratio(loss_inputs([[1.0]], [[1e-6]], [1.0]))  # a log-ratio of 13.8 is cut at 10
    assert far.item() == pytest.approx(np.exp(10), rel=1e-5)


def test_gspo_gives_each_token_the_gradient_of_its_own_log_probability():
    given = loss_inputs([[1.0] * 3] * 2, [[0.5] * 3] * 2, *GSPO[2:])
    (method("gspo").ratio(given) * given.mask).sum().backward()
    assert torch.allclose(given.logprobs.grad, 2.0 * given.mask)  # d s / d log pi_t = s


def test_the_loss_of_gspo_by_hand():
    loss, metrics = method("gspo", clip_low=0.1, clip_high=0.2, entropy_coef=0.0).loss(loss_inputs(*GSPO))
    # A = 1: s = 1.817 clips to 1.2; A = -1: s = 0.5 clips to 0.9, and max(0.5, 0.9) = 0.9
    assert loss.item() == pytest.approx((-1.2 + 0.9) / 2, abs=1e-6)
    assert float(metrics["clip_fraction"]) == 1.0


@pytest.mark.verl
def test_it_is_verl_s_gspo():
    core = pytest.importorskip("verl.trainer.ppo.core_algos", reason="the extra `verl` is not installed")
    from verl.workers.config import FSDPActorConfig

    torch.manual_seed(0)
    given = loss_inputs(torch.rand(2, 3).tolist(), [[1.0] * 3] * 2, *GSPO[2:])
    new, old = given.logprobs, given.logprobs.detach() + 0.002 * torch.randn(2, 3)
    given.behaviour_logprobs = old
    loss, _ = method("gspo", entropy_coef=0.0).loss(given)
    loss.backward()
    ours, new.grad = new.grad.clone(), None
    clip = {"clip_ratio": 3e-4, "clip_ratio_low": 3e-4, "clip_ratio_high": 4e-4}
    actor = FSDPActorConfig(strategy="fsdp", ppo_micro_batch_size_per_gpu=2, rollout_n=2, **clip)
    values = given.advantages[:, None].expand(2, 3)
    how = {"loss_agg_mode": "seq-mean-token-mean", "config": actor}
    theirs, _ = core.compute_policy_loss_gspo(old, new, values, given.mask, **how)
    theirs.backward()
    assert float(loss.detach()) == pytest.approx(float(theirs.detach()), abs=1e-6)
    assert torch.allclose(ours, new.grad, atol=1e-6)


# ---------------------------------------------------------------- DAPO

B = 4


dapo = partial(build, "dapo", B)


def sampler(corrects):
    """The prompts p0, p1, ... with the given numbers of correct responses."""
    names = [f"p{i}" for i in range(len(corrects))]
    return ScriptedSampler({n: [c] for n, c in zip(names, corrects, strict=True)}, names)


def test_a_full_batch_needs_nothing_more():
    batch = dapo().build_batch(1, fresh(1, [1, 4, 7, 3]), NoSampler())
    assert ids(batch.groups) == ["1a", "1b", "1c", "1d"]
    assert batch.metrics == {"generation_batches": 1} and batch.rejected == []


def test_it_draws_until_the_batch_is_full_and_cuts_it_to_b():
    s = sampler([8, 8, 0, 5, 2, 3, 4, 1])
    batch = dapo().build_batch(1, fresh(1, [0, 8, 3, 8]), s)
    # 1 of the first four, 1 of p0 .. p3, then 4 of p4 .. p7, of which 2 still fit
    assert ids(batch.groups) == ["1c", "p3", "p4", "p5"]
    assert batch.metrics == {"generation_batches": 3}
    assert s.asked == [["p0", "p1", "p2", "p3"], ["p4", "p5", "p6", "p7"]]
    reasons = dict.fromkeys(["1a", "1b", "1d", "p0", "p1", "p2"], "equal rewards")
    assert {g.prompt.id: why for g, why in batch.rejected} == reasons | dict.fromkeys(["p6", "p7"], "batch full")
    assert {g.origin for g in batch.groups} == {FRESH}  # the policy has not moved since the rollout


@pytest.mark.parametrize(("options", "batches"), [({}, 4), ({"max_generation_batches": 2}, 2)])
def test_at_the_limit_it_trains_on_what_there_is(options, batches):
    s = sampler([0] * 3 + [4] + [0] * 16)
    batch = dapo(**options).build_batch(1, fresh(1, [0, 0, 2, 0]), s)
    assert ids(batch.groups) == ["1c", "p3"]
    assert batch.metrics == {"generation_batches": batches}
    assert len(s.asked) == batches - 1
    assert len(batch.groups) + len(batch.rejected) == B * batches  # every generated group is accounted for


def test_an_empty_batch_is_possible():
    batch = dapo(max_generation_batches=1).build_batch(1, fresh(1, [0, 8, 0, 8]), NoSampler())
    assert batch.groups == [] and batch.metrics == {"generation_batches": 1}


def test_at_limit_raise_says_what_to_change():
    with pytest.raises(UserError, match=r"step 7: only 1 of 4 .*at_limit=train"):
        dapo(at_limit="raise").build_batch(7, fresh(7, [0, 0, 2, 0]), sampler([0] * 12))
    full = dapo(at_limit="raise").build_batch(7, fresh(7, [1, 1, 2, 1]), NoSampler())
    assert len(full.groups) == 4


def test_equal_rewards_that_are_not_exact_in_binary():
    # the float32 standard deviation of seven times 0.3 is not zero
    equal = replace(group("equal", 0, size=7), rewards=np.full(7, 0.3, dtype=np.float32))
    assert equal.rewards.std() > 0
    batch = dapo(max_generation_batches=1).build_batch(1, [equal, *fresh(1, [1])], NoSampler())
    assert ids(batch.groups) == ["1a"]


@pytest.mark.parametrize(
    ("options", "value"),
    [
        ({}, -(4.0 + 0.25) / 2),  # the mean ratio of the tokens to alpha, without a weight (and without a clip here)
        ({"sequence_weights": "truncate"}, -(2.0 + 0.25) / 2),  # pi_k(y) / alpha(y) is 16, at most 2, and 1/4
        ({"sequence_weights": "truncate", "sequence_cap": 20.0}, -(16.0 + 0.25) / 2),
        ({"sequence_weights": "mask"}, -(0.0 + 0.25) / 2),
    ],
)
def test_a_whole_response_is_weighted_by_the_steps_policy_to_its_own(options, value):
    m = plain(clip_high=100.0, **options)
    # pi_theta is pi_k: two tokens of ratio 4 to alpha, and one of ratio 1/4 with padding behind it
    now, stored, mask = [[0.8, 0.8], [0.2, 0.6]], [[0.2, 0.2], [0.8, 0.1]], [[1.0, 1.0], [1.0, 0.0]]
    given = loss_inputs(now, stored, (1.0, 1.0), mask, pi_k=now)
    assert m.needs_step_policy == bool(options)
    assert loss(m, given) == pytest.approx(value)


def test_the_clip_of_weighted_responses_is_around_the_steps_policy():
    m = plain(sequence_weights="truncate")
    given = loss_inputs([[0.9]], [[0.5]], (1.0,), pi_k=[[0.6]])  # ratio 1.5 to pi_k, weight 1.2
    assert loss(m, given) == pytest.approx(-1.2 * 1.2)
