"""GSPO: one importance ratio a sequence, with a matching clip."""

from __future__ import annotations

from pydantic import PositiveFloat

from bapo.algorithm.losses import LossInputs
from bapo.methods.base import Method, OpenShare, Tensor, WithoutKL


class GSPOConfig(WithoutKL):
    clip_low: OpenShare = 3e-4
    clip_high: PositiveFloat = 4e-4
    dual_clip: float = 0.0
    unread = ("clip_centre",)


class GSPO(Method):
    """Group sequence policy optimization (Zheng et al. 2507.18071, eq. 5-7; verl's policy loss ``gspo``).

    GRPO with the ratio s(y) = (pi_theta(y) / alpha(y))^(1/|y|), clipped to [1 - 3e-4, 1 + 4e-4].
    """

    Config = GSPOConfig
    config: GSPOConfig
    title = "+GSPO"
    summary = "GRPO with one importance ratio a sequence"
    source = "Zheng et al. 2507.18071; verl policy loss gspo"

    def ratio(self, inputs: LossInputs) -> Tensor:
        """Return s(y) [N, T], the geometric mean over the response, with each token's log-probability gradient.

        s(y) pi(y_t) / sg[pi(y_t)] (GSPO-token, eq. 7; the log clamped at 10 as in verl).
        """
        new, old, mask = inputs.logprobs, inputs.behaviour_logprobs, inputs.mask
        mean = ((new - old) * mask).sum(1, keepdim=True) / mask.sum(1, keepdim=True).clamp(min=1.0)
        return (new - new.detach() + mean.detach()).clamp(max=10.0).exp()
