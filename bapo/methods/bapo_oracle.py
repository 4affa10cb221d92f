"""A control: an expert's solution takes a place in each re-evaluated group."""

from __future__ import annotations

import numpy as np

from bapo.algorithm.losses import LossInputs
from bapo.algorithm.rollouts import Group, Prompt, above
from bapo.methods.bapo import BAPO, BAPOConfig, Groups
from bapo.methods.base import Sampler, Tensor
from bapo.methods.luffy import LUFFYConfig
from bapo.methods.parts.mixed import MixedMethod, mixed, shaped_loss

SHAPE = LUFFYConfig().shape  #: of an expert's ratio


class BAPOOracleConfig(BAPOConfig):
    unread = ("expectations",)  # the second part is the expert's


class BAPOOracle(MixedMethod, BAPO):
    """An expert's solution takes a place in every re-evaluated group: the most that X2 could give.

    Such a group has a right response, so it is admitted whatever c1. The solution's ratio is shaped as LUFFY's, and
    neither clipped nor penalised; all other responses have BAPO's loss. A prompt without a solution keeps its group.
    """

    Config = BAPOOracleConfig
    config: BAPOOracleConfig  # type: ignore[assignment]  # BAPO's options, not those of LUFFY's scripts
    title = "+BAPO, X2 by an oracle"
    summary = "control that should gain: BAPO with an expert's solution in each group of X2"
    source = "control of paper eq. 6; LUFFY's mixed groups"
    cost = "1 + 1/(2m) x rollouts at most, and an expert"

    def regenerated(self, prompts: list[Prompt], sampler: Sampler) -> Groups:
        groups = super().regenerated(prompts, sampler)
        solutions = sampler.demonstrate(prompts)
        return [g if s is None else mixed(g, s) for g, s in zip(groups, solutions, strict=True)]

    def admits(self, group: Group) -> bool:
        return super().admits(group) or (group.off_policy is not None and above(1, group.mean))

    def second_part(self, group: Group) -> np.ndarray:
        """Mark the expert's responses alone, bool [G]."""
        return np.zeros(group.size, dtype=bool) if group.off_policy is None else group.off_policy

    def clips(self, inputs: LossInputs) -> bool:
        return True

    def off_policy(self, ratio: Tensor, inputs: LossInputs) -> Tensor:
        return shaped_loss(ratio, inputs, SHAPE)
