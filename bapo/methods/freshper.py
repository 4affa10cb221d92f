"""FreshPER: a second batch drawn by advantage and freshness."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Self

import numpy as np
from pydantic import Field, NonNegativeFloat, PositiveInt

from bapo.algorithm.rollouts import REPLAYED, Group
from bapo.methods.base import Batch, Method, MethodConfig, Sampler, Share
from bapo.validate import wrong

if TYPE_CHECKING:
    from bapo.experiments.schema import TrainConfig


class FreshPERConfig(MethodConfig):
    age_decay: float = Field(125.0, ge=0.01)  # tau in steps: 500 gradient steps at four updates a step
    exponent: NonNegativeFloat = 0.6  # alpha of prioritised replay
    correction: Share = 0.4  # beta, which rises to 1
    correction_steps: PositiveInt = 150  # until beta is 1
    replays: PositiveInt = 1  # K: replayed batches a step
    capacity: PositiveInt = 1600  # groups

    def of_setting(self, train: TrainConfig) -> Self:
        """Return the options of a run. Raises UserError for a buffer that would never hold the batch it waits for."""
        if self.capacity < train.batch_size:
            raise wrong(None, "method.capacity", self.capacity, f"must be at least train.batch_size={train.batch_size}")
        return super().of_setting(train)


class FreshPER(Method):
    """Freshness-aware prioritised replay (Ma et al. 2604.16918; Vision-CAIR/Freshness-Aware-PER).

    A step trains on its fresh batch, then on K batches from a buffer that holds at least one batch. They are drawn with
    P_i = p_i^alpha / sum_j p_j^alpha, p_i = p_i^base exp(-age_i / tau): a stratified draw, one group from each of equal
    shares of the mass. The loss of a drawn group is weighted by (n P_i)^-beta over the largest such weight of the draw,
    n groups being stored.

    The paper replays trajectories on REINFORCE++ with p^base = |reward| + epsilon. Here the unit is a group on GRPO's
    loss, so p^base is its mean |advantage| + 1e-6, the paper's choice where advantages are known: a group without an
    advantage teaches nothing. Groups enter after the draw, and the oldest leave a full buffer. beta rises linearly; how
    fast the paper's does could not be read.
    """

    Config = FreshPERConfig
    config: FreshPERConfig
    kept: list[Group]
    title = "+FreshPER"
    kind = "off"
    summary = "a second batch drawn by advantage and freshness from a buffer"
    source = "Ma et al. 2604.16918; Vision-CAIR/Freshness-Aware-PER"
    cost = "1 x rollouts, 2 x updates"

    def build_batch(self, step: int, fresh: list[Group], sampler: Sampler) -> Batch:
        replayed = self._draw(step) if len(self.kept) >= self.batch_size else []
        self.kept = [*self.kept, *fresh][-self.config.capacity :]
        age = float(np.mean([step - g.step for g in replayed])) if replayed else 0.0
        return Batch([*fresh, *replayed], metrics={"replay_buffer": len(self.kept), "replay_age": age})

    def _draw(self, step: int) -> list[Group]:
        """Draw groups, with the weights of their losses."""
        c, count = self.config, self.config.replays * self.batch_size
        chances = self.chances(step)
        shares = (np.arange(count) + self.random("freshper", step).random(count)) / count
        indices = np.searchsorted(np.cumsum(chances), shares).clip(max=len(chances) - 1)
        beta = c.correction + (1 - c.correction) * min(1.0, step / c.correction_steps)
        weights = (len(chances) * chances[indices]) ** -beta
        weights /= weights.max()
        return [replace(self.kept[i], origin=REPLAYED, weight=float(w)) for i, w in zip(indices, weights, strict=True)]

    def chances(self, step: int) -> np.ndarray:
        """Return P of each stored group, float64 [n]."""
        base = np.array([np.abs(self.advantages(g)).mean() for g in self.kept]) + 1e-6
        ages = np.array([step - g.step for g in self.kept])
        priorities = (base * np.exp(-ages / self.config.age_decay)) ** self.config.exponent
        return priorities / priorities.sum()

    def separate(self, group: Group) -> int:
        """Put replayed groups last, in separate mini-batches."""
        return int(group.origin == REPLAYED)
