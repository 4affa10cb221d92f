"""RL-ZVP: groups whose answers are all right or all wrong teach by their tokens' entropy."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from pydantic import PositiveFloat

from bapo.algorithm.losses import LossInputs
from bapo.algorithm.rollouts import Group
from bapo.methods.base import Mean, Method, Tensor, WithoutKL


class RLZVPConfig(WithoutKL):
    clip_high: PositiveFloat = 0.28
    entropy_coef: float | None = 0.0
    aggregation: Mean = "token-mean"
    scale: PositiveFloat = 0.1  # alpha


class RLZVP(Method):
    """Reinforcement learning with zero-variance prompts (Le et al. 2509.21880, eq. 5).

    H_it is the policy's entropy at a token. Where all of a group are right, a response has the advantage A_it =
    alpha H_it; where all are wrong, -alpha (max_k H_ik - H_it). So the loss rewards most, and punishes least, where the
    policy was unsure. Other groups have GRPO's advantages.

    The paper's values could not be read; others who implement it have alpha = 0.1, clip 0.2/0.28, the token mean and no
    KL. H is the current policy's in each update, as a number. The maximum is over the response's tokens.
    """

    Config = RLZVPConfig
    config: RLZVPConfig
    title = "+RL-ZVP"
    summary = "entropy-guided advantages for groups that are all right or all wrong"
    source = "Le et al. 2509.21880"

    def second_part(self, group: Group) -> np.ndarray:
        """Mark the responses of groups with equal rewards, whose advantages the loss shapes, bool [G]."""
        return np.full(group.size, bool(group.rewards.max() == group.rewards.min()))

    def advantages(self, group: Group) -> np.ndarray:
        """Return float32 [G]: GRPO's, or for equal rewards alpha with the sign of the shaped advantage."""
        if not self.second_part(group).any():
            return super().advantages(group)
        return np.full(group.size, self.config.scale if group.mean > 0.5 else -self.config.scale, dtype=np.float32)

    def surrogate(self, ratio: Tensor, inputs: LossInputs) -> tuple[Tensor, Tensor]:
        assert inputs.entropy is not None
        signed, entropy = inputs.advantages[:, None], inputs.entropy.detach()
        highest = entropy.masked_fill(inputs.mask == 0, 0.0).amax(1, keepdim=True)
        shaped = signed * entropy.where(signed > 0, highest - entropy)
        return super().surrogate(ratio, replace(inputs, advantages=shaped.where(inputs.second_part[:, None], signed)))
