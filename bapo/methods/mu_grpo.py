"""mu-GRPO: long stages of one rollout policy, a wide clip, a veto on negative responses."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt

from bapo.algorithm.losses import LossInputs
from bapo.methods.base import KL, Centre, OpenShare, Phase, Tensor
from bapo.methods.parts.delayed import DelayedConfig, DelayedGRPO


class MuGRPOConfig(DelayedConfig):
    v: PositiveInt = 40  # steps of a stage: four stages in 150 steps
    sync_phase: Phase = "first"
    clip_centre: Centre = "one"
    clip_low: Annotated[float, Field(gt=0, le=1)] = 1.0
    clip_high: PositiveFloat = 4.0
    dual_clip: NonNegativeFloat = 0.0
    kl_to: KL = "none"
    kl_coef: NonNegativeFloat | None = 0.0
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
    title = "+mu-GRPO"
    summary = (
        "a new rollout policy every 40 steps, clip [0, 5], a veto behind ratios below 0.0001 in negative responses"
    )
    source = "Tian et al. 2605.17570"

    def surrogate(self, ratio: Tensor, inputs: LossInputs) -> tuple[Tensor, Tensor]:
        values, clipped = super().surrogate(ratio, inputs)
        trigger = ((ratio < self.config.veto) & (inputs.mask > 0)).long()
        dropped = (trigger.cumsum(1) > trigger) & (inputs.advantages[:, None] < 0)
        return values.masked_fill(dropped, 0.0), clipped.masked_fill(dropped, 1.0)
