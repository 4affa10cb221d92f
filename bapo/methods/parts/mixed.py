"""Groups that mix fresh responses with another policy's, which have a loss of their own."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Self

import numpy as np
from pydantic import model_validator

from bapo.algorithm.losses import LossInputs
from bapo.algorithm.rollouts import Group
from bapo.methods.base import Mean, Method, Spread, Tensor, WithoutKL


class MixedConfig(WithoutKL):
    """The common settings of the launch scripts of LUFFY, ExGRPO and ReLIFT.

    The scripts divide the sum of the token losses by a constant, the longest response (``loss_remove_token_mean``), so
    that a token weighs the same in every response; so does token-mean, without a constant.
    """

    #: options that are not read without on_policy_clip
    of_clip: ClassVar[tuple[str, ...]] = ("clip_low", "clip_high", "dual_clip", "clip_centre")

    advantage_std: Spread = "none"  # grpo_use_std=False
    aggregation: Mean = "token-mean"
    on_policy_clip: bool = False  # fresh responses keep GRPO's clip; the scripts have loss_remove_clip=True

    @model_validator(mode="after")
    def _clip(self) -> Self:
        if not self.on_policy_clip:
            self.require_default("on_policy_clip=false", *self.of_clip)
        return self


class MixedMethod(Method):
    """Applies GRPO's loss to fresh responses, :meth:`off_policy` to those that this step's rollout did not sample."""

    config: MixedConfig
    kind = "off"
    kl_of_second_part = False

    def off_policy(self, ratio: Tensor, inputs: LossInputs) -> Tensor:
        """Return the token losses [N, T] of another policy's responses; ratio [N, T] is pi_theta to that policy."""
        raise NotImplementedError

    def clips(self, inputs: LossInputs) -> bool:
        """Return whether fresh responses have GRPO's clip in this mini-batch."""
        return self.config.on_policy_clip

    def surrogate(self, ratio: Tensor, inputs: LossInputs) -> tuple[Tensor, Tensor]:
        values, clipped = super().surrogate(ratio, inputs)
        if not self.clips(inputs):
            values, clipped = -inputs.advantages[:, None] * ratio, clipped.new_zeros(clipped.shape)
        others = inputs.second_part[:, None]
        return self.off_policy(ratio, inputs).where(others, values), clipped.masked_fill(others, 0.0)


def mixed(group: Group, others: Group) -> Group:
    """Replace the group's last responses by ``others``, another policy's to the same prompt.

    The references generate fewer fresh responses instead; here an engine generates G for every prompt.
    """
    kept = group.select(range(group.size - others.size))
    return replace(group.with_responses_of([kept, others]), off_policy=np.arange(group.size) >= kept.size)


def shaped_loss(ratio: Tensor, inputs: LossInputs, shape: float) -> Tensor:
    """Return -A f(ratio) for each token: f(x) = x / (x + shape) is steep at tokens that the policy finds unlikely."""
    return -inputs.advantages[:, None] * (ratio / (ratio + shape) if shape else ratio)
