"""Trust regions for stale responses: the moving clips of M2PO and Xi's BAPO, the wide clip and veto of mu-GRPO."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt

from bapo.algorithm import losses
from bapo.algorithm.rollouts import Group
from bapo.methods.base import KL, Batch, Centre, Mean, OpenShare, Sampler, Share
from bapo.methods.grpo import DelayedConfig, DelayedGRPO, Stale, StaleConfig

if TYPE_CHECKING:
    from torch import Tensor

    from bapo.algorithm.losses import LossInputs


class TokenMeanConfig(StaleConfig):
    entropy_coef: float = 0.0
    aggregation: Mean = "token-mean"


class M2POConfig(TokenMeanConfig):
    threshold: PositiveFloat = 0.04  # tau_M2, the same in all of the paper's runs
    clip_low: OpenShare = 0.3  # the clip is never tighter than [0.7, 1.5]
    clip_high: PositiveFloat = 0.5
    dual_clip: NonNegativeFloat = 0.0


class M2PO(Stale):
    """Second-moment trust policy optimization (Zheng et al. 2510.01161), as its authors' code has it.

    PPO's clip to [exp(-c), exp(c)] of r = pi_theta / alpha, with a bound c that follows the current policy. It is
    decided on the tokens that the policy has moved as their advantage wants: A > 0 and r > 1, or A < 0 and r < 1. While
    the mean of their (log r)^2 is at most tau there is no clip. Otherwise c is the largest |log r| among them that, as
    a cap on all of them, leaves a mean below tau. The paper has a mask: a token behind the clip has no gradient either.

    Read: compute_m2po_policy_loss in verl/trainer/ppo/core_algos.py of Infini-AI-Lab/M2PO at af54a3e, its helpers, its
    caller and the scripts. That the clip is never tighter than [0.7, 1.5] is the function's default. The caller passes
    None where the configuration names no such floor, and the scripts name none.

    The code decides in each micro-batch of each GPU, and so does this class. Unlike for all other methods, a smaller
    train.micro_batch_size gives other numbers, and so do in verl other GPUs: their number and memory, and flash-attn.
    """

    Config = M2POConfig
    config: M2POConfig
    revision = 2  # masked tokens once a step from pi_k / alpha, and had no clip
    summary = "stale batches; a clip that opens as far as the second moment of log r allows"
    source = "Zheng et al. 2510.01161; Infini-AI-Lab/M2PO"
    cost = "1 x rollouts"
    judges_micro_batches = True

    def surrogate(self, ratio: Tensor, inputs: LossInputs) -> tuple[Tensor, Tensor]:
        c, values, now = self.config, inputs.advantages[:, None], ratio.detach()
        moved = ((now - 1) * values > 0) & (inputs.mask > 0)
        # a little wider, so that the token that sets the bound is inside whatever the rounding
        bound = (1 + 1e-6) * largest_cap(now[moved].log() ** 2, c.threshold)
        low, high = max(c.clip_low, 1 - math.exp(-bound)), max(c.clip_high, math.exp(bound) - 1)
        return losses.clipped_surrogate(ratio, values, low, high)


class BAPOXiConfig(TokenMeanConfig):
    clip_low: OpenShare = 0.4  # a- = 0.6, where the lower bound begins
    clip_low_least: OpenShare = 0.1  # b- = 0.9, where it ends
    clip_high: PositiveFloat = 0.2  # a+ = 1.2, where the upper bound begins
    clip_high_most: PositiveFloat = 2.0  # b+ = 3.0, where it ends
    clip_step: PositiveFloat = 0.05
    target: Share = 0.5  # rho_0: share of positive advantages in the loss


class BAPOXi(Stale):
    """Balanced policy optimization with adaptive clipping (Xi et al. 2510.18927; WooooDyy/BAPO), another BAPO.

    PPO's clip to [c_low, c_high], whose bounds move until positive advantages are a share rho_0 of the loss:
    sum_{A>0} min(r, c_high) A >= rho_0 (sum_{A>0} min(r, c_high) A + sum_{A<0} max(r, c_low) |A|). Both begin at a; in
    steps of 0.05 first c_low rises to b-, then c_high to b+, the order of the authors' code. (A higher c_low makes the
    sum of negative advantages larger, not smaller; tokens below it have no gradient.) The ranges are the repository's
    "as used in the paper"; its script has [0.8, 0.95] and [1.2, 2]. Stale batches take the place of the authors' two
    passes over a batch.

    The paper decides the bounds in each update, and its code in each micro-batch. Here it is once a step, from
    r = pi_k / alpha on all tokens of the batch, so that the size of a micro-batch changes no number.

    The repository calls rho_0 = 0.5 a target, and in one place compares it with the positive sum over the negative sum.
    Here it is the positive share of the loss. Advantages relative to a group add up to 0, so the share begins near a
    half, and the bounds mostly end where they began or at b.
    """

    Config = BAPOXiConfig
    config: BAPOXiConfig
    summary = "stale batches; clip bounds move until positive advantages are half of the loss"
    source = "Xi et al. 2510.18927; WooooDyy/BAPO"
    cost = "1 x rollouts, batch scored"

    def build_batch(self, step: int, fresh: list[Group], sampler: Sampler) -> Batch:
        batch = super().build_batch(step, fresh, sampler)
        scored = sampler.score(batch.groups)
        batch.metrics |= self.judge(
            batch.groups, [own - g.samples.logprobs for g, own in zip(batch.groups, scored, strict=True)]
        )
        return batch

    def clip(self, moves: int) -> tuple[float, float]:
        """Return clip_low and clip_high after so many moves."""
        c = self.config
        rises = self.moves(c.clip_low, c.clip_low_least)
        high = c.clip_high + c.clip_step * max(0, moves - rises)
        return max(c.clip_low - c.clip_step * moves, c.clip_low_least), min(high, c.clip_high_most)

    def moves(self, start: float, end: float) -> int:
        return round(abs(end - start) / self.config.clip_step)

    def judge(self, groups: list[Group], log_ratios: list[np.ndarray]) -> dict[str, float]:
        """Set the phase to the number of moves. log_ratios: log r of each group, float32 [G, T]. Returns metrics."""
        c, limit = self.config, losses.LOG_RATIO_LIMIT
        ratios = np.exp(
            np.concatenate([r[inside(g)] for g, r in zip(groups, log_ratios, strict=True)]).clip(-limit, limit)
        )
        values = np.concatenate([np.repeat(self.advantages(g), g.samples.lengths) for g in groups])
        positive, negative = values.clip(min=0), -values.clip(max=0)
        most = self.moves(c.clip_low, c.clip_low_least) + self.moves(c.clip_high, c.clip_high_most)
        for self.phase in range(most + 1):
            low, high = self.clip(self.phase)
            gain = float((ratios.clip(max=1 + high) * positive).sum())
            whole = gain + float((ratios.clip(min=1 - low) * negative).sum())
            if gain >= c.target * whole:
                break
        return {"clip_low": low, "clip_high": high, "positive_share": gain / whole if whole else float("nan")}

    def surrogate(self, ratio: Tensor, inputs: LossInputs) -> tuple[Tensor, Tensor]:
        low, high = self.clip(inputs.phase)
        return losses.clipped_surrogate(ratio, inputs.advantages[:, None], low, high, self.config.dual_clip)


class MuGRPOConfig(DelayedConfig):
    v: PositiveInt = 40  # steps of a stage: four stages in 150 steps
    sync_phase: Literal["literal", "first"] = "first"
    clip_centre: Centre = "one"
    clip_low: Annotated[float, Field(gt=0, le=1)] = 1.0
    clip_high: PositiveFloat = 4.0
    dual_clip: NonNegativeFloat = 0.0
    kl_to: KL = "none"
    kl_coef: NonNegativeFloat = 0.0
    veto: OpenShare = 1e-4  # ratio below which a token of a negative response ends the response


class MuGRPO(DelayedGRPO):
    """mu-GRPO (Tian et al. 2605.17570): a few long stages, in each of which one policy generates all responses.

    Relaxed clipping, rho in [0, 5], keeps the gradients of stale responses. The veto drops, from a response with A < 0,
    all tokens behind the first whose ratio is below ``veto``: the current policy would hardly write what they follow.
    Dropped tokens still count in denominators.

    The paper could not be read, only its authors' project page (BenjaminT2048/mu-grpo-project-page). It names the clip,
    four stages, and a trigger that is "extremely small", in its example below 1e-4. So v = 40 steps, about a quarter of
    a run, and the value of the veto are chosen here. Each step generates its responses from the stage's first policy,
    which gives the same responses as generating all at the start.
    """

    Config = MuGRPOConfig
    config: MuGRPOConfig
    summary = "long stages of one rollout policy, wide clip, veto on negative responses"
    source = "Tian et al. 2605.17570"

    def surrogate(self, ratio: Tensor, inputs: LossInputs) -> tuple[Tensor, Tensor]:
        values, clipped = super().surrogate(ratio, inputs)
        trigger = ((ratio < self.config.veto) & (inputs.mask > 0)).long()
        dropped = (trigger.cumsum(1) > trigger) & (inputs.advantages[:, None] < 0)
        return values.masked_fill(dropped, 0.0), clipped.masked_fill(dropped, 1.0)


def inside(group: Group) -> np.ndarray:
    """Mark the tokens of each response, bool [G, T]."""
    return np.arange(group.samples.tokens.shape[1]) < group.samples.lengths[:, None]


def largest_cap(squares: Tensor, mean: float) -> float:
    """Return the root of the largest of ``squares`` [n] that, as a cap on all of them, leaves a mean below ``mean``.

    Infinity if they need no cap; 0 if even the smallest is too large.
    """
    count = len(squares)
    values = squares.double().sort().values
    if not count or float(values.mean()) <= mean:
        return math.inf
    above = count - values.new_ones(count).cumsum(0)  # how many are behind each
    fitting = int((values.cumsum(0) + values * above < mean * count).sum())
    return math.sqrt(float(values[fitting - 1])) if fitting else 0.0
