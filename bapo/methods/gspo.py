"""GSPO: one importance ratio per sequence instead of one per token."""

from __future__ import annotations

from typing import Self

from pydantic import NonNegativeFloat, PositiveFloat, model_validator

from bapo.methods.base import KL, Method, MethodConfig, OpenShare


class GSPOConfig(MethodConfig):
    ratio: str = "sequence"
    clip_low: OpenShare = 3e-4
    clip_high: PositiveFloat = 4e-4
    dual_clip: float = 0.0
    kl_to: KL = "none"
    kl_coef: NonNegativeFloat = 0.0

    @model_validator(mode="after")
    def _gspo(self) -> Self:
        self.require(self.ratio == "sequence", "ratio", "must be sequence; method=grpo has the others")
        return self


class GSPO(Method):
    """Group sequence policy optimization (Zheng et al. 2507.18071, eq. 5-7; verl's policy loss ``gspo``).

    GRPO with the ratio s(y) = (pi_theta(y) / alpha(y))^(1/|y|), clipped to [1 - 3e-4, 1 + 4e-4]. Other methods take
    it with ``ratio=sequence``.
    """

    Config = GSPOConfig
    config: GSPOConfig
    summary = "GRPO with one importance ratio a sequence"
    source = "Zheng et al. 2507.18071; verl policy loss gspo"
