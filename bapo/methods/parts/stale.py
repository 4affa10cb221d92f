"""A queue of batches: a group is trained on a fixed number of steps after it was generated."""

from __future__ import annotations

from pydantic import NonNegativeInt

from bapo.algorithm.rollouts import FRESH, REPLAYED, Group, Prompt
from bapo.methods.base import Batch, Method, MethodConfig, Sampler, WithoutKL


class StaleConfig(WithoutKL):
    #: eta: steps between the policy that generates a group and the one that trains on it
    staleness: NonNegativeInt = 4


class Stale(Method):
    """GRPO on a queue of eta batches, filled with the base model's at first: step t trains on policy max(0, t-1-eta).

    The last eta batches are generated and count as rollouts, but are never trained on.
    """

    Config: type[MethodConfig] = StaleConfig
    config: StaleConfig
    kept: list[Group]
    kind = "off"

    def draw_prompts(self, step: int, sampler: Sampler) -> list[Prompt]:
        return sampler.draw(self.batch_size * (1 + self.config.staleness * (step == 1)))

    def build_batch(self, step: int, fresh: list[Group], sampler: Sampler) -> Batch:
        self.kept += fresh
        batch, self.kept = self.kept[: self.batch_size], self.kept[self.batch_size :]
        return Batch(
            [g.as_origin(FRESH if g.step == step else REPLAYED) for g in batch], metrics={"queue": len(self.kept)}
        )
