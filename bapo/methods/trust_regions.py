"""Trust regions for stale responses: M2PO's mask, the moving clip of Xi's BAPO, the wide clip and veto of mu-GRPO."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np
from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt

from bapo.algorithm import losses
from bapo.algorithm.rollouts import Group
from bapo.methods.base import KL, Batch, Centre, Mean, OpenShare, Sampler, Share
from bapo.methods.grpo import DelayedConfig, DelayedGRPO, Stale, StaleConfig

if TYPE_CHECKING:
    from torch import Tensor

    from bapo.algorithm.losses import LossInputs


class JudgedConfig(StaleConfig):
    entropy_coef: float = 0.0
    aggregation: Mean = "token-mean"


class Judged(Stale):
    """Stale batches whose trust region is decided once a step, from r = pi_k / alpha on all tokens of the batch.

    The papers decide it from pi_theta / alpha in each update, and their code in each micro-batch. Here the size of a
    micro-batch is a matter of memory and must not change a number. AReaL's M2PO decides from pi_k, too.
    """

    def build_batch(self, step: int, fresh: list[Group], sampler: Sampler) -> Batch:
        batch = super().build_batch(step, fresh, sampler)
        scored = sampler.score(batch.groups)
        batch.metrics |= self.judge(
            batch.groups, [own - g.samples.logprobs for g, own in zip(batch.groups, scored, strict=True)]
        )
        return batch

    def judge(self, groups: list[Group], log_ratios: list[np.ndarray]) -> dict[str, float]:
        """Decide the step's trust region. log_ratios: log r of each group, float32 [G, T]. Returns metrics."""
        raise NotImplementedError


class M2POConfig(JudgedConfig):
    threshold: PositiveFloat = 0.04  # tau_M2, the same in all of the paper's runs


class M2PO(Judged):
    """Second-moment trust policy optimization (Zheng et al. 2510.01161; AReaL, docs/algorithms/m2po).

    J = 1 / sum_i |o_i| * sum_i sum_t M_it pi_theta(o_it) / alpha(o_it) A_i, without a clip. The mask M leaves out the
    tokens with the largest (log r)^2, until the mean of the others is at most tau. It is decided as in :class:`Judged`.
    M considers all tokens, as AReaL's documents say. The authors' code (Infini-AI-Lab/M2PO) clips instead of masking,
    and looks only at tokens that the policy has moved as their advantage wants: A > 0 and r > 1, or A < 0 and r < 1.
    """

    Config = M2POConfig
    config: M2POConfig
    summary = "stale batches; tokens masked until the second moment of log r is small, no clip"
    source = "Zheng et al. 2510.01161; AReaL"
    cost = "1 x rollouts, batch scored"

    def judge(self, groups: list[Group], log_ratios: list[np.ndarray]) -> dict[str, float]:
        insides = [inside(g) for g in groups]
        squares = np.concatenate([r[own] for r, own in zip(log_ratios, insides, strict=True)]) ** 2
        kept = smallest(squares, self.config.threshold)
        self.masks = {id(g): own.astype(np.float32) for g, own in zip(groups, insides, strict=True)}
        ends = np.cumsum([own.sum() for own in insides])
        for group, own, marks in zip(groups, insides, np.split(kept, ends[:-1]), strict=True):
            self.masks[id(group)][own] = marks
        return {"second_moment": float(squares.mean()), "masked_tokens": float(1 - kept.mean())}

    def advantages(self, group: Group) -> np.ndarray:
        """Return float32 [G, T]: 0 on masked tokens, which changes no denominator."""
        return super().advantages(group)[:, None] * self.masks[id(group)]

    def surrogate(self, ratio: Tensor, inputs: LossInputs) -> tuple[Tensor, Tensor]:
        return -inputs.advantages * ratio, ratio.new_zeros(ratio.shape)


class BAPOXiConfig(JudgedConfig):
    clip_low: OpenShare = 0.4  # a- = 0.6, where the lower bound begins
    clip_low_least: OpenShare = 0.1  # b- = 0.9, where it ends
    clip_high: PositiveFloat = 0.2  # a+ = 1.2, where the upper bound begins
    clip_high_most: PositiveFloat = 2.0  # b+ = 3.0, where it ends
    clip_step: PositiveFloat = 0.05
    target: Share = 0.5  # rho_0: share of positive advantages in the loss


class BAPOXi(Judged):
    """Balanced policy optimization with adaptive clipping (Xi et al. 2510.18927; WooooDyy/BAPO), another BAPO.

    PPO's clip to [c_low, c_high], whose bounds move until positive advantages are a share rho_0 of the loss:
    sum_{A>0} min(r, c_high) A >= rho_0 (sum_{A>0} min(r, c_high) A + sum_{A<0} max(r, c_low) |A|). Both begin at a; in
    steps of 0.05 first c_low rises to b-, then c_high to b+, the order of the authors' code. They are decided as in
    :class:`Judged`. (A higher c_low makes the sum of negative advantages larger, not smaller; tokens below it have no
    gradient.) The ranges are the repository's "as used in the paper"; its script has [0.8, 0.95] and [1.2, 2]. Stale
    batches take the place of the authors' two passes over a batch.

    The repository calls rho_0 = 0.5 a target, and in one place compares it with the positive sum over the negative sum.
    Here it is the positive share of the loss. Advantages relative to a group add up to 0, so the share begins near a
    half, and the bounds mostly end where they began or at b.
    """

    Config = BAPOXiConfig
    config: BAPOXiConfig
    summary = "stale batches; clip bounds move until positive advantages are half of the loss"
    source = "Xi et al. 2510.18927; WooooDyy/BAPO"
    cost = "1 x rollouts, batch scored"

    def clip(self, moves: int) -> tuple[float, float]:
        """Return clip_low and clip_high after so many moves."""
        c = self.config
        rises = self.moves(c.clip_low, c.clip_low_least)
        high = c.clip_high + c.clip_step * max(0, moves - rises)
        return max(c.clip_low - c.clip_step * moves, c.clip_low_least), min(high, c.clip_high_most)

    def moves(self, start: float, end: float) -> int:
        return round(abs(end - start) / self.config.clip_step)

    def judge(self, groups: list[Group], log_ratios: list[np.ndarray]) -> dict[str, float]:
        """Set the phase to the number of moves."""
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
    clip_low: OpenShare = 0.9
    clip_high: PositiveFloat = 9.0
    dual_clip: NonNegativeFloat = 0.0
    kl_to: KL = "none"
    kl_coef: NonNegativeFloat = 0.0
    veto: OpenShare = 0.1  # ratio below which a token of a negative response ends the response


class MuGRPO(DelayedGRPO):
    """mu-GRPO (Tian et al. 2605.17570): a few long stages, in each of which one policy generates all responses.

    Relaxed clipping, rho in [1 - clip_low, 1 + clip_high], keeps the gradients of stale responses. The veto drops, from
    a response with A < 0, all tokens behind the first whose ratio is below ``veto``: the current policy would hardly
    write what they follow. Dropped tokens still count in denominators.

    Only the abstract and two notes on the paper could be read, without its numbers. So v = 40, [0.1, 10] and a veto at
    the lower bound are chosen here. Each step generates its responses from the stage's first policy, which gives the
    same responses as generating all at the start.
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


def smallest(values: np.ndarray, mean: float) -> np.ndarray:
    """Mark the most of the smallest ``values`` [n] whose mean is at most ``mean``, bool [n]."""
    order = np.argsort(values, kind="stable")
    means = np.cumsum(values[order], dtype=np.float64) / np.arange(1, len(values) + 1)
    marks = np.zeros(len(values), dtype=bool)
    marks[order[: int((means <= mean).sum())]] = True
    return marks
