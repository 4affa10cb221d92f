"""GRPO: the base class unchanged, with older rollout policies (delayed, AReaL), a ratio a sequence, random rewards."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal, Self

import numpy as np
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from bapo.algorithm import losses
from bapo.algorithm.losses import LossInputs
from bapo.algorithm.rollouts import FRESH, REPLAYED, Group, Prompt
from bapo.methods.base import KL, Batch, Centre, Method, MethodConfig, OpenShare, Sampler, Type, due

if TYPE_CHECKING:
    from torch import Tensor


class GRPO(Method):
    """Group Relative Policy Optimization (Shao et al. 2024), as in the paper's equations 1 and 2.

    Objective: sequence-mean of token-means of the clipped surrogate, minus beta * KL(pi || pi_ref) by the
    low-variance estimator. verl's defaults differ in three options: ``aggregation=token-mean``,
    ``advantage_std=unbiased``, ``advantage_eps_inside=false``.
    """


class DelayedConfig(MethodConfig):
    kind: Type = "off"
    #: steps between two refreshes of the rollout policy
    v: PositiveInt = 5
    #: "literal": t mod v = 0; "first": (t - 1) mod v = 0
    sync_phase: Literal["literal", "first"] = "literal"
    clip_centre: Centre = "step-policy"


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


class DecoupledConfig(MethodConfig):
    ratio_cap: PositiveFloat = 5.0  # the largest weight pi_k / alpha

    @model_validator(mode="after")
    def _decoupled(self) -> Self:
        self.require(self.clip_centre == "one", "clip_centre", "must be one: the ratio is pi / pi_k")
        return self


class Decoupled(Method):
    """Decoupled PPO (AReaL's eq. 5): the clip is around pi_k, and min(pi_k / alpha, cap) is a constant weight."""

    config: DecoupledConfig

    @property
    def needs_step_policy(self) -> bool:
        return True

    def ratio(self, inputs: LossInputs) -> Tensor:
        """Return pi_theta / pi_k [N, T]."""
        assert inputs.step_logprobs is not None
        return losses.importance_ratio(inputs.logprobs, inputs.step_logprobs)

    def surrogate(self, ratio: Tensor, inputs: LossInputs) -> tuple[Tensor, Tensor]:
        assert inputs.step_logprobs is not None
        values, clipped = super().surrogate(ratio, inputs)
        staleness = losses.importance_ratio(inputs.step_logprobs, inputs.behaviour_logprobs)
        return values * staleness.clamp(max=self.config.ratio_cap), clipped


class StaleConfig(MethodConfig):
    kind: Type = "off"
    kl_to: KL = "none"
    kl_coef: NonNegativeFloat = 0.0
    #: eta: steps between the policy that generates a group and the one that trains on it
    staleness: NonNegativeInt = 4


class Stale(Method):
    """GRPO on a queue of eta batches, filled with the base model's at first: step t trains on policy max(0, t-1-eta).

    The last eta batches are generated and count as rollouts, but are never trained on. By itself, as ``grpo_stale``, it
    is the control of methods for stale responses: their queue with GRPO's loss.
    """

    Config: type[MethodConfig] = StaleConfig
    config: StaleConfig
    kept: list[Group]
    summary = "control: GRPO on responses of eta steps before"
    source = "control of methods for stale responses"

    def draw_prompts(self, step: int, sampler: Sampler) -> list[Prompt]:
        return sampler.draw(self.batch_size * (1 + self.config.staleness * (step == 1)))

    def build_batch(self, step: int, fresh: list[Group], sampler: Sampler) -> Batch:
        self.kept += fresh
        batch, self.kept = self.kept[: self.batch_size], self.kept[self.batch_size :]
        return Batch(
            [g.as_origin(FRESH if g.step == step else REPLAYED) for g in batch], metrics={"queue": len(self.kept)}
        )


class AReaLConfig(StaleConfig, DecoupledConfig): ...


class AReaL(Stale, Decoupled):
    """Asynchronous rollouts (Fu et al. 2505.24298) as a schedule: their effect on the data, not on the clock.

    The generator fills the queue up to eta batches ahead, then makes one batch per step with the newest weights, so
    every group is the oldest that eta allows. Interrupted generation, which mixes the tokens of several policies in one
    response, is not simulated.
    """

    Config = AReaLConfig
    config: AReaLConfig
    summary = "rollouts eta steps ahead of the updates, decoupled PPO loss"
    source = "Fu et al. 2505.24298"
    cost = "1 x rollouts"


class GSPOConfig(MethodConfig):
    clip_low: OpenShare = 3e-4
    clip_high: PositiveFloat = 4e-4
    dual_clip: float = 0.0
    kl_to: KL = "none"
    kl_coef: NonNegativeFloat = 0.0

    @model_validator(mode="after")
    def _gspo(self) -> Self:
        self.require(self.clip_centre == "one", "clip_centre", "must be one: the centre pi_k / alpha is a token's")
        return self


class GSPO(Method):
    """Group sequence policy optimization (Zheng et al. 2507.18071, eq. 5-7; verl's policy loss ``gspo``).

    GRPO with the ratio s(y) = (pi_theta(y) / alpha(y))^(1/|y|), clipped to [1 - 3e-4, 1 + 4e-4].
    """

    Config = GSPOConfig
    config: GSPOConfig
    summary = "GRPO with one importance ratio a sequence"
    source = "Zheng et al. 2507.18071; verl policy loss gspo"

    def ratio(self, inputs: LossInputs) -> Tensor:
        """Return s(y) [N, T], the geometric mean over the response, with each token's log-probability gradient.

        s(y) pi(y_t) / sg[pi(y_t)] (GSPO-token, eq. 7; the log clamped at 10 as in verl).
        """
        new, old, mask = inputs.logprobs, inputs.behaviour_logprobs, inputs.mask
        mean = ((new - old) * mask).sum(1, keepdim=True) / mask.sum(1, keepdim=True).clamp(min=1.0)
        return (new - new.detach() + mean.detach()).clamp(max=10.0).exp()


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
