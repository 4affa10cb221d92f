"""Groups with responses of another policy among fresh ones, and a loss with a term of its own for those (LUFFY, ExGRPO,
ReLIFT)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from bapo.methods.base import Method, MethodConfig
from bapo.rollouts import Group

if TYPE_CHECKING:
    from torch import Tensor

    from bapo.losses import LossInputs


@dataclass
class MixedConfig(MethodConfig):
    """What the launch scripts of LUFFY, ExGRPO and ReLIFT have in common.

    They divide the sum of the token losses by a constant, the longest response (``loss_remove_token_mean``), so that a
    token weighs the same in every response; token-mean does too, and needs no constant.
    """

    kind: str = "off"
    advantage_std: str = "none"  # grpo_use_std=False
    aggregation: str = "token-mean"
    kl_to: str = "none"
    kl_coef: float = 0.0
    on_policy_clip: bool = False  # whether fresh responses keep GRPO's clip; the scripts have loss_remove_clip=True

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(self.ratio == "behaviour", "ratio", "must be behaviour: other policies' tokens have a loss apart")


class MixedMethod(Method):
    """GRPO on fresh responses, :meth:`off_policy` on those that this step's rollout did not sample."""

    config: MixedConfig

    def off_policy(self, ratio: Tensor, inputs: LossInputs) -> Tensor:
        """The token losses [N, T] of another policy's responses; ratio [N, T] is pi_theta to that policy."""
        raise NotImplementedError

    def clips(self, inputs: LossInputs) -> bool:
        """Whether fresh responses have GRPO's clip in this mini-batch."""
        return self.config.on_policy_clip

    def surrogate(self, ratio: Tensor, centre: Tensor | None, inputs: LossInputs) -> tuple[Tensor, Tensor]:
        import torch

        values, clipped = super().surrogate(ratio, centre, inputs)
        if not self.clips(inputs):
            values, clipped = -inputs.advantages[:, None] * ratio, torch.zeros_like(clipped)
        others = inputs.replayed[:, None]
        return torch.where(others, self.off_policy(ratio, inputs), values), clipped.masked_fill(others, 0.0)


def mixed(group: Group, others: Group) -> Group:
    """The group with its last responses replaced by ``others``, another policy's to the same prompt.

    The references generate fewer fresh responses instead; an engine here generates G for every prompt.
    """
    kept = group.select(range(group.size - others.size))
    return replace(
        group,
        rewards=np.concatenate([kept.rewards, others.rewards]),
        samples=kept.samples and type(kept.samples).concatenate([kept.samples, others.samples]),
        off_policy=np.arange(group.size) >= kept.size,
    )
