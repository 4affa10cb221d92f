"""GRPO: the base class unchanged, with a delayed rollout policy, and with random rewards."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np
from pydantic import PositiveInt

from bapo.algorithm.rollouts import Group
from bapo.methods.base import Batch, Centre, Method, MethodConfig, OpenShare, Sampler, Type


class GRPO(Method):
    """Group Relative Policy Optimization (Shao et al. 2024), as in the paper's equations 1 and 2.

    Objective: sequence-mean of token-means of the clipped surrogate, minus beta * KL(pi || pi_ref) by the
    low-variance estimator. verl's defaults differ in three options: ``aggregation=token-mean``,
    ``advantage_std=unbiased``, ``advantage_eps_inside=false``.
    """

    summary = "group-relative advantages, on policy"
    source = "Shao et al. 2024; paper eq. 1-2"


class DelayedConfig(MethodConfig):
    kind: Type = "off"
    #: steps between two refreshes of the rollout policy
    v: PositiveInt = 5
    #: "literal": t mod v = 0; "first": (t - 1) mod v = 0
    sync_phase: Literal["literal", "first"] = "literal"
    clip_centre: Centre = "step-policy"


def due(step: int, every: int, phase: str) -> bool:
    """Return whether an event that recurs every v = ``every`` steps falls on ``step`` (1-based).

    "literal" is Algorithm 1's ``t mod v = 0``: the initial policy serves only steps 1 .. v-1. "first" is
    ``(t - 1) mod v = 0``: every policy, the initial one included, serves exactly v steps.
    """
    return (step if phase == "literal" else step - 1) % every == 0


class DelayedGRPO(Method):
    """Off-policy GRPO (Mroueh et al. 2505.22257): alpha = pi_{k-v} generates and whitens the rewards.

    The clip interval is centred at pi_k / alpha: clip(rho, max(rho_k - eps, 0), rho_k + eps), rho = pi_theta / alpha.
    No public code exists; the formula is the paper's. ``clip_centre=one`` gives the plain PPO interval instead.
    """

    Config = DelayedConfig
    config: DelayedConfig
    summary = "rollout policy refreshed every v steps, clip centred at pi_k / alpha"
    source = "Mroueh et al. 2505.22257"

    @property
    def delays_rollout_policy(self) -> bool:
        return self.config.v > 1

    def syncs_rollout_policy(self, step: int) -> bool:
        return due(step, self.config.v, self.config.sync_phase)


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
    summary = "control: GRPO on coin flips instead of the verifier's rewards"
    source = "control; Shao et al. 2506.10947"

    def build_batch(self, step: int, fresh: list[Group], sampler: Sampler) -> Batch:
        rng = self.random("random reward", step)
        return Batch([replace(g, rewards=(rng.random(g.size) < self.config.chance).astype(np.float32)) for g in fresh])
