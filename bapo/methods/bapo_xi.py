"""Balanced policy optimization, another BAPO: clip bounds that move with the sign of the advantages."""

from __future__ import annotations

from typing import Self

import numpy as np
from pydantic import PositiveFloat, model_validator

from bapo.algorithm import losses
from bapo.algorithm.losses import LossInputs
from bapo.algorithm.rollouts import Group
from bapo.methods.base import Batch, Mean, OpenShare, Sampler, Tensor
from bapo.methods.grpo_stale import GRPOStale, StaleConfig


class BAPOXiConfig(StaleConfig):
    entropy_coef: float | None = 0.0
    aggregation: Mean = "token-mean"
    clip_low: OpenShare = 0.4  # a- = 0.6, where the lower bound begins
    clip_low_least: OpenShare = 0.1  # b- = 0.9, where it ends
    clip_high: PositiveFloat = 0.2  # a+ = 1.2, where the upper bound begins
    clip_high_most: PositiveFloat = 2.0  # b+ = 3.0, where it ends
    clip_step: PositiveFloat = 0.05  # by which a bound moves at once
    target: OpenShare = 0.5  # rho_0: share of positive advantages in the loss
    unread = ("clip_centre",)

    @model_validator(mode="after")
    def _bounds(self) -> Self:
        low, high = self.clip_low - self.clip_low_least, self.clip_high_most - self.clip_high
        self.require(low >= 0, "clip_low_least", f"must be at most method.clip_low={self.clip_low}")
        self.require(high >= 0, "clip_high_most", f"must be at least method.clip_high={self.clip_high}")
        self.require(low + high > 0, "clip_low_least", "and method.clip_high_most leave both bounds where they begin")
        fits = all(round(width / self.clip_step) for width in (low, high) if width)
        self.require(fits, "clip_step", "is so large that a bound would never move; lower it")
        return self


class BAPOXi(GRPOStale):
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
    title = "+BAPO (Xi)"
    summary = (
        "another BAPO: responses 4 steps old; clip bounds that move until positive advantages are half of the loss"
    )
    source = "Xi et al. 2510.18927; WooooDyy/BAPO"
    cost = "1 x rollouts, batch scored"

    def build_batch(self, step: int, fresh: list[Group], sampler: Sampler) -> Batch:
        batch = super().build_batch(step, fresh, sampler)
        scored = sampler.score(batch.groups)
        ratios = [current - g.samples.logprobs for g, current in zip(batch.groups, scored, strict=True)]
        batch.phase, metrics = self.judge(batch.groups, ratios)
        batch.metrics |= metrics
        return batch

    def clip(self, moves: int) -> tuple[float, float]:
        """Return clip_low and clip_high after so many moves."""
        c = self.config
        rises = self.moves(c.clip_low, c.clip_low_least)
        high = c.clip_high + c.clip_step * max(0, moves - rises)
        return max(c.clip_low - c.clip_step * moves, c.clip_low_least), min(high, c.clip_high_most)

    def moves(self, start: float, end: float) -> int:
        return round(abs(end - start) / self.config.clip_step)

    def judge(self, groups: list[Group], log_ratios: list[np.ndarray]) -> tuple[int, dict[str, float]]:
        """Return the number of moves, and metrics. log_ratios: log r of each group, float32 [G, T]."""
        c, limit = self.config, losses.LOG_RATIO_LIMIT
        ratios = np.exp(
            np.concatenate([r[g.samples.mask] for g, r in zip(groups, log_ratios, strict=True)]).clip(-limit, limit)
        )
        values = np.concatenate([np.repeat(self.advantages(g), g.samples.lengths) for g in groups])
        positive, negative = values.clip(min=0), -values.clip(max=0)
        most = self.moves(c.clip_low, c.clip_low_least) + self.moves(c.clip_high, c.clip_high_most)
        for count in range(most + 1):
            low, high = self.clip(count)
            gain = float((ratios.clip(max=1 + high) * positive).sum())
            whole = gain + float((ratios.clip(min=1 - low) * negative).sum())
            if gain >= c.target * whole:
                break
        return count, {"clip_low": low, "clip_high": high, "positive_share": gain / whole if whole else float("nan")}

    def surrogate(self, ratio: Tensor, inputs: LossInputs) -> tuple[Tensor, Tensor]:
        low, high = self.clip(inputs.phase)
        return losses.clipped_surrogate(ratio, inputs.advantages[:, None], low, high, self.config.dual_clip)
