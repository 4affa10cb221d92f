"""A control: GRPO on coin flips, whose gains do not come from the verifier."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from bapo.algorithm.rollouts import Group
from bapo.methods.base import Batch, Method, MethodConfig, OpenShare, Sampler


class RandomRewardConfig(MethodConfig):
    chance: OpenShare = 0.5  # probability of reward 1


class RandomReward(Method):
    """GRPO trained on coin flips (the control of Shao et al. 2506.10947, "Spurious Rewards").

    Any gain over the base does not come from the verifier but from the pull of clipping and KL on a policy, or from
    noise. ``reward_mean`` and the probe keep the verifier's rewards; the batch, and so ``groups.parquet``, holds the
    random ones.
    """

    Config = RandomRewardConfig
    config: RandomRewardConfig
    title = "+GRPO, random reward"
    summary = "control: GRPO on coin flips instead of the verifier's rewards"
    source = "control; Shao et al. 2506.10947"

    def build_batch(self, step: int, fresh: list[Group], sampler: Sampler) -> Batch:
        rng = self.random("random reward", step)
        return Batch([replace(g, rewards=(rng.random(g.size) < self.config.chance).astype(np.float32)) for g in fresh])
