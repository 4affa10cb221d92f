"""AReaL: rollouts that run ahead of the updates, with bounded staleness and a decoupled loss."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat, model_validator

from bapo.algorithm import losses
from bapo.algorithm.losses import LossInputs
from bapo.algorithm.rollouts import FRESH, REPLAYED, Group, Prompt
from bapo.methods.base import KL, Batch, Method, MethodConfig, Sampler, Type

if TYPE_CHECKING:
    from torch import Tensor


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


class AReaLConfig(DecoupledConfig):
    kind: Type = "off"
    kl_to: KL = "none"
    kl_coef: NonNegativeFloat = 0.0
    #: eta: steps between the policy that generates a group and the one that trains on it
    staleness: NonNegativeInt = 4


class AReaL(Decoupled):
    """Asynchronous rollouts (Fu et al. 2505.24298) as a schedule: their effect on the data, not on the clock.

    The generator fills the queue up to eta batches ahead, at first with the base model, then one batch per step with
    the newest weights. So step t trains on groups of policy max(0, t - 1 - eta), the oldest that eta allows.
    Interrupted generation, which mixes the tokens of several policies in one response, is not simulated. The last eta
    batches are generated and count as rollouts, but are never trained on.
    """

    Config = AReaLConfig
    config: AReaLConfig
    kept: list[Group]
    summary = "rollouts eta steps ahead of the updates, decoupled PPO loss"
    source = "Fu et al. 2505.24298"
    cost = "1 x rollouts"

    def draw_prompts(self, step: int, sampler: Sampler) -> list[Prompt]:
        return sampler.draw(self.batch_size * (1 + self.config.staleness * (step == 1)))

    def build_batch(self, step: int, fresh: list[Group], sampler: Sampler) -> Batch:
        self.kept += fresh
        batch, self.kept = self.kept[: self.batch_size], self.kept[self.batch_size :]
        return Batch(
            [g.as_origin(FRESH if g.step == step else REPLAYED) for g in batch], metrics={"queue": len(self.kept)}
        )
