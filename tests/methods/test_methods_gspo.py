"""GSPO's ratio: values and gradients by hand, and against verl's formula."""

from __future__ import annotations

import math

import pytest
from support.late import LATE

from bapo import methods

if LATE:
    import torch

    from bapo.algorithm.losses import LossInputs

    MASK = torch.tensor([[1.0, 1.0, 1.0], [1.0, 0.0, 0.0]])


def inputs(logprobs, behaviour, advantages=(1.0, -1.0)):
    return LossInputs(
        logprobs, behaviour, torch.tensor(advantages), MASK, torch.tensor([False, False]), nominal_sequences=2
    )


def test_the_ratio_is_the_geometric_mean_over_the_response():
    new = torch.log(torch.tensor([[0.2, 0.4, 0.9], [0.3, 0.5, 0.5]]))
    old = torch.log(torch.tensor([[0.1, 0.4, 0.3], [0.6, 0.1, 0.1]]))
    ratio = methods.build({"algorithm": "gspo"}, 4, 1).ratio(inputs(new, old))
    # (2 * 1 * 3) ** (1/3), and 1/2: what lies behind the end of the second response does not count
    assert torch.allclose(ratio, torch.tensor([[6 ** (1 / 3)] * 3, [0.5] * 3]), atol=1e-6)


def test_each_token_gets_the_gradient_of_its_own_log_probability():
    new = torch.zeros(2, 3, requires_grad=True)
    old = torch.full((2, 3), -math.log(2.0))
    (methods.build({"algorithm": "gspo"}, 4, 1).ratio(inputs(new, old)) * MASK).sum().backward()
    assert torch.allclose(new.grad, 2.0 * MASK)  # d s / d log pi_t = s


def test_the_loss_by_hand():
    method = methods.build({"algorithm": "gspo", "clip_low": 0.1, "clip_high": 0.2, "entropy_coef": 0.0}, 4, 1)
    new = torch.log(torch.tensor([[0.2, 0.4, 0.9], [0.3, 0.5, 0.5]]))
    old = torch.log(torch.tensor([[0.1, 0.4, 0.3], [0.6, 0.1, 0.1]]))
    loss, metrics = method.loss(inputs(new, old))
    # A = 1: s = 1.817 clips to 1.2; A = -1: s = 0.5 clips to 0.9, and max(0.5, 0.9) = 0.9
    assert float(loss) == pytest.approx((-1.2 + 0.9) / 2, abs=1e-6)
    assert float(metrics["clip_fraction"]) == 1.0


def test_it_is_verl_s_gspo():
    core = pytest.importorskip("verl.trainer.ppo.core_algos", reason="the extra `verl` is not installed")
    from verl.workers.config import FSDPActorConfig

    torch.manual_seed(0)
    new = (torch.randn(2, 3) - 1).requires_grad_()
    old = new.detach() + 0.002 * torch.randn(2, 3)
    method = methods.build({"algorithm": "gspo", "entropy_coef": 0.0}, 4, 1)
    loss, _ = method.loss(inputs(new, old))
    loss.backward()
    ours, new.grad = new.grad.clone(), None
    actor = FSDPActorConfig(
        strategy="fsdp",
        clip_ratio=3e-4,
        clip_ratio_low=3e-4,
        clip_ratio_high=4e-4,
        ppo_micro_batch_size_per_gpu=2,
        rollout_n=2,
    )
    theirs, _ = core.compute_policy_loss_gspo(
        old, new, torch.tensor([[1.0], [-1.0]]).expand(2, 3), MASK, loss_agg_mode="seq-mean-token-mean", config=actor
    )
    theirs.backward()
    assert float(loss.detach()) == pytest.approx(float(theirs.detach()), abs=1e-6)
    assert torch.allclose(ours, new.grad, atol=1e-6)
