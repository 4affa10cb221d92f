"""A control: GRPO on the queue of m2po, bapo_xi and areal, whose responses are four steps old."""

from __future__ import annotations

from pydantic import NonNegativeFloat, NonNegativeInt

from bapo.algorithm.rollouts import Group, Prompt
from bapo.methods.base import KL, Batch, Method, MethodConfig, Sampler, WithoutKL


class StaleConfig(WithoutKL):
    #: eta: steps between the policy that generates a group and the one that trains on it
    staleness: NonNegativeInt = 4


class GRPOStaleConfig(StaleConfig):
    kl_to: KL = "reference"
    kl_coef: NonNegativeFloat | None = None


class GRPOStale(Method):
    """GRPO on a queue of eta batches, filled with the base model's at first: step t trains on policy max(0, t-1-eta).

    The last eta batches are generated and count as rollouts, but are never trained on.
    """

    Config: type[MethodConfig] = GRPOStaleConfig
    config: StaleConfig
    kept: list[Group]
    title = "+GRPO (4 steps old)"
    kind = "off"
    summary = "control: GRPO on the responses of `m2po` and `bapo_xi`, of eta = 4 steps before"
    source = "control of methods for stale responses"

    def draw_prompts(self, step: int, sampler: Sampler) -> list[Prompt]:
        return sampler.draw(self.batch_size * (1 + self.config.staleness * (step == 1)))

    def build_batch(self, step: int, fresh: list[Group], sampler: Sampler) -> Batch:
        self.kept += fresh
        batch, self.kept = self.kept[: self.batch_size], self.kept[self.batch_size :]
        return Batch(self.replayed(batch, step), metrics={"queue": len(self.kept)})
