"""Groups with responses of another policy among fresh ones, and a loss with a term of its own for those (LUFFY, ExGRPO,
ReLIFT)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from bapo.algorithm.rollouts import Group, Prompt
from bapo.errors import UserError
from bapo.methods.base import Method, MethodConfig, Sampler

if TYPE_CHECKING:
    from torch import Tensor

    from bapo.algorithm.losses import LossInputs


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

    def penalised(self, kl: Tensor, inputs: LossInputs) -> Tensor:
        """KL on fresh responses only."""
        return kl.masked_fill(inputs.replayed[:, None], 0.0)


class Expert:
    """The sampler's demonstrations, and whether there are any at all.

    asked: prompts so far, while none of them had a solution. seen: whether the expert has ever answered.
    """

    def __init__(self, patience: int) -> None:
        """patience: prompts without a solution after which the run ends."""
        self.patience, self.asked, self.seen = patience, 0, False

    def solutions(self, prompts: list[Prompt], sampler: Sampler) -> list[Group | None]:
        """A solution for each prompt, None where there is none. Raises UserError where no prompt ever had one."""
        found = sampler.demonstrate(prompts) if prompts else []
        self.seen = self.seen or any(d is not None for d in found)
        if not self.seen:
            self.asked += len(prompts)
            if self.asked >= self.patience:
                raise UserError(
                    f"none of {self.asked} prompts has an expert's solution: the task's Task.demonstration gives none "
                    "that its verifier accepts within sampling.max_response_tokens; choose another method, data or "
                    "limit"
                )
        return found

    def state(self) -> dict[str, Any]:
        return {"seen": self.seen, "asked": self.asked}

    def restore(self, state: dict[str, Any]) -> None:
        self.seen, self.asked = state["seen"], state.get("asked", 0)


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
