"""Decoupled PPO: the clip is around pi_k, and pi_k / alpha is a weight."""

from __future__ import annotations

from pydantic import PositiveFloat

from bapo.algorithm import losses
from bapo.algorithm.losses import LossInputs
from bapo.methods.base import Method, MethodConfig, Tensor


class DecoupledConfig(MethodConfig):
    ratio_cap: PositiveFloat = 5.0  # the largest weight pi_k / alpha
    unread = ("clip_centre",)


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
