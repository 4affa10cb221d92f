"""M2PO: stale responses; the second moment of the log-ratios says how far the clip opens."""

from __future__ import annotations

import math

from pydantic import NonNegativeFloat, PositiveFloat

from bapo.algorithm import losses
from bapo.algorithm.losses import LossInputs
from bapo.methods.base import Mean, OpenShare, Tensor
from bapo.methods.grpo_stale import GRPOStale, StaleConfig


class M2POConfig(StaleConfig):
    entropy_coef: float | None = 0.0
    aggregation: Mean = "token-mean"
    threshold: PositiveFloat = 0.04  # tau_M2, the same in all of the paper's runs
    clip_low: OpenShare = 0.3  # the clip is never tighter than [0.7, 1.5]
    clip_high: PositiveFloat = 0.5
    dual_clip: NonNegativeFloat = 0.0
    unread = ("clip_centre", "dual_clip")


class M2PO(GRPOStale):
    """Second-moment trust policy optimization (Zheng et al. 2510.01161), as its authors' code has it.

    PPO's clip to [exp(-c), exp(c)] of r = pi_theta / alpha, with a bound c that follows the current policy. It is
    decided on the tokens that the policy has moved as their advantage wants: A > 0 and r > 1, or A < 0 and r < 1. While
    the mean of their (log r)^2 is at most tau there is no clip. Otherwise c is the largest |log r| among them that, as
    a cap on all of them, leaves a mean below tau. The paper has a mask: a token behind the clip has no gradient either.

    This follows compute_m2po_policy_loss in verl/trainer/ppo/core_algos.py of Infini-AI-Lab/M2PO at af54a3e, with its
    helpers, its caller and the scripts. That the clip is never tighter than [0.7, 1.5] is the function's default. The
    caller passes None where the configuration names no such floor, and the scripts name none.

    The code decides in each micro-batch of each GPU, and so does this class. Unlike for all other methods, a smaller
    train.micro_batch_size gives other numbers, and so do in verl other GPUs: their number and memory, and flash-attn.
    """

    Config = M2POConfig
    config: M2POConfig
    revision = 2  # masked tokens once a step from pi_k / alpha, and had no clip
    title = "+M2PO"
    summary = "responses 4 steps old; a clip as wide as the second moment of log pi_theta / alpha allows"
    source = "Zheng et al. 2510.01161; Infini-AI-Lab/M2PO"
    judges_micro_batches = True

    def surrogate(self, ratio: Tensor, inputs: LossInputs) -> tuple[Tensor, Tensor]:
        c, values, now = self.config, inputs.advantages[:, None], ratio.detach()
        moved = ((now - 1) * values > 0) & (inputs.mask > 0)
        # the bound is a little wider, so that the token that sets it is inside whatever the rounding
        bound = (1 + 1e-6) * largest_cap(now[moved].log() ** 2, c.threshold)
        low, high = max(c.clip_low, 1 - math.exp(-bound)), max(c.clip_high, math.exp(bound) - 1)
        return losses.clipped_surrogate(ratio, values, low, high)


def largest_cap(squares: Tensor, mean: float) -> float:
    """Return the root of the largest of ``squares`` [n] that, as a cap on all of them, leaves a mean below ``mean``.

    Infinity if they need no cap; 0 if even the smallest is too large.
    """
    count = len(squares)
    values = squares.double().sort().values
    if not count or float(values.mean()) <= mean:
        return math.inf
    above = count - values.new_ones(count).cumsum(0)  # how many follow each value
    fitting = int((values.cumsum(0) + values * above < mean * count).sum())
    return math.sqrt(float(values[fitting - 1])) if fitting else 0.0
