"""BAPO without one of its parts, and controls of its replayed and re-evaluated groups (Table 1, Figure 6, eq. 5)."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from bapo.algorithm.losses import LossInputs
from bapo.algorithm.rollouts import REPLAYED, Group, Prompt, above
from bapo.methods.bapo import BAPO, Groups
from bapo.methods.bapo_options import BAPOConfig
from bapo.methods.base import Batch, Sampler
from bapo.methods.dapo import DAPOConfig, dynamic_sampling
from bapo.methods.luffy import LUFFYConfig, MixedMethod, mixed, shaped_loss

if TYPE_CHECKING:
    from torch import Tensor


SHAPE = LUFFYConfig().shape  #: of an expert's ratio


class BAPOWithoutX2(BAPO):
    """The batch is X1 + X3, without regeneration."""

    summary = "BAPO with X1 and X3 only"
    source = "paper section 5.2, Table 1"
    cost = "1 x rollouts, fewer updates"

    def improved_hard(self, step: int, sampler: Sampler) -> tuple[Groups, Groups]:
        return [], []


class BAPOWithoutX3(BAPO):
    """The batch is X1 + X2; an underfilled batch stays underfilled."""

    summary = "BAPO with X1 and X2 only"
    source = "paper section 5.2, Table 1"

    def high_quality(self, step: int, c2: float, c3: float, room: int, x1: Groups) -> Groups:
        return []


class BAPOWithX1Only(BAPOWithoutX2, BAPOWithoutX3):
    """The batch is X1: what is left of BAPO is the delay, the filter, the clip interval at 1 and the KL to alpha."""

    summary = "BAPO with X1 only"
    source = "control of paper eq. 5"
    cost = "1 x rollouts, fewer updates"


class BAPODuplicates(BAPO):
    """X3 replaced by as many duplicates of X1: do the replayed groups matter, or only the size of the batch?

    The buffers work as in BAPO, which sets the size of X3; its groups are replaced by groups of X1 drawn at random,
    each at most once before any comes twice. Duplicates count as X3 in the log.
    """

    summary = "control: BAPO whose X3 are duplicates of X1"
    source = "control of paper eq. 5"

    def build_batch(self, step: int, fresh: Groups, sampler: Sampler) -> Batch:
        batch = super().build_batch(step, fresh, sampler)
        x3 = [g for g in batch.groups if g.origin == REPLAYED]
        others = [g for g in batch.groups if g.origin != REPLAYED]
        pool = self.filtered_fresh(step, fresh)
        rng = self.random("duplicates", step)
        order = [i for _ in range(-(-len(x3) // len(pool))) for i in rng.permutation(len(pool))] if pool else []
        batch.groups = others + self.replayed([pool[i] for i in order[: len(x3)]])
        return batch


class BAPOShuffled(BAPO):
    """Each replayed prompt gets the responses and rewards of another.

    This must hurt; otherwise X3 does not act through the content of its responses. A single replayed group has no
    partner and is dropped.
    """

    summary = "control: BAPO whose replayed responses are shuffled between prompts"
    source = "control of paper eq. 5"

    def high_quality(self, step: int, c2: float, c3: float, room: int, x1: Groups) -> Groups:
        chosen = super().high_quality(step, c2, c3, room, x1)
        if len(chosen) < 2:
            return []
        order = self.random("shuffled", step).permutation(len(chosen))
        # each takes the place of the next in a random circle, so that none keeps its responses
        other = dict(zip(order.tolist(), [*order[1:].tolist(), int(order[0])], strict=True))
        return [
            replace(g, rewards=chosen[other[i]].rewards, samples=chosen[other[i]].samples) for i, g in enumerate(chosen)
        ]


class BAPOFilled(BAPOWithX1Only):
    """X1 filled up by dynamic sampling, as DAPO's batch: the most that X2 and X3 could add by filling the batch.

    Loss, clip interval and KL are BAPO's, so that DAPO's batch stands apart from DAPO's loss. Further prompts are
    answered by the rollout policy.
    """

    summary = "control: BAPO whose batch is filled with fresh groups"
    source = "control of paper eq. 5; DAPO's dynamic sampling"
    cost = "1 to 4 x rollouts"

    def build_batch(self, step: int, fresh: Groups, sampler: Sampler) -> Batch:
        keep, most = partial(self.filtered_fresh, step), DAPOConfig().max_generation_batches
        groups, drawn, _ = dynamic_sampling(fresh, keep, sampler, self.batch_size, most, policy="rollout")
        return self.batch(drawn, groups[: self.batch_size], [], [], [])


class BAPOOracle(MixedMethod, BAPO):
    """An expert's solution takes a place in every re-evaluated group: the most that X2 could give.

    Such a group has a right response, so it is admitted whatever c1. The solution's ratio is shaped as LUFFY's, and
    neither clipped nor penalised; all other responses have BAPO's loss. A prompt without a solution keeps its group.
    """

    config: BAPOConfig  # type: ignore[assignment]  # BAPO's options, not those of LUFFY's scripts
    summary = "control: BAPO with an expert's solution in each group of X2"
    source = "control of paper eq. 6; LUFFY's mixed groups"
    cost = "1 + 1/(2m) x rollouts at most, and an expert"

    def regenerated(self, prompts: list[Prompt], sampler: Sampler) -> Groups:
        groups = super().regenerated(prompts, sampler)
        solutions = sampler.demonstrate(prompts)
        return [g if s is None else mixed(g, s) for g, s in zip(groups, solutions, strict=True)]

    def admits(self, group: Group) -> bool:
        return super().admits(group) or (group.off_policy is not None and above(1, group.mean))

    def historical(self, group: Group) -> np.ndarray:
        """Mark the expert's responses alone, bool [G]."""
        return np.zeros(group.size, dtype=bool) if group.off_policy is None else group.off_policy

    def clips(self, inputs: LossInputs) -> bool:
        return True

    def off_policy(self, ratio: Tensor, inputs: LossInputs) -> Tensor:
        return shaped_loss(ratio, inputs, SHAPE)
