"""FIFO replay: batches drawn uniformly from the last groups."""

from __future__ import annotations

import numpy as np
from pydantic import Field, PositiveInt

from bapo.algorithm.rollouts import Group, Prompt
from bapo.methods.base import Batch, Method, MethodConfig, Sampler, draw_groups


class FIFOReplayConfig(MethodConfig):
    fresh_share: float = Field(0.5, gt=0, le=1)  # R / B; each group is trained on B / R times on average
    horizon: PositiveInt = 8  # N / R: steps that a group stays in the buffer


class FIFOReplay(Method):
    """Uniform replay from a FIFO buffer (Arnal et al. 2604.08706, section 4).

    Each step generates R groups, puts them into a buffer of the last N, and trains on B drawn uniformly from it:
    g = 1/B sum_j G(theta, z_ij). While the buffer holds fewer than B, all of them are drawn. They stay in the buffer.

    A step costs B + mu R, mu being the price of a rollout in trained responses. So fewer rollouts are cheaper:
    gamma = (1 + mu R/B) / (1 + mu) of a step without replay. The price is staleness, up to the horizon N/R, and reuse,
    the replay ratio B/R: both add to the gradient's variance, sigma^2(N/R) (1/B + 1/N + rho/R). The best N/R minimises
    sigma^2(x) (sqrt(1/mu) + sqrt(rho + 1/x))^2, and B/R = sqrt(mu / (rho + 1/x)): the dearer a rollout, the more
    replay.

    A step draws no group twice, as in the paper's Listing 5; its analysis draws with replacement. The paper's buffer
    holds single responses with the advantages of their groups; here a group stays together. Its asynchronous workers,
    its buffer that keeps right responses for longer, and AsymRE are left out.
    """

    Config = FIFOReplayConfig
    config: FIFOReplayConfig
    kept: list[Group]
    title = "+FIFO replay"
    kind = "off"
    summary = "batches drawn uniformly from the last 8 steps' groups; half as many rollouts"
    source = "Arnal et al. 2604.08706"
    cost = "R/B x rollouts"

    def __init__(self, config: FIFOReplayConfig, batch_size: int, seed: int) -> None:
        super().__init__(config, batch_size, seed)
        self.generated = max(1, round(config.fresh_share * batch_size))

    def draw_prompts(self, step: int, sampler: Sampler) -> list[Prompt]:
        return sampler.draw(self.generated)

    def build_batch(self, step: int, fresh: list[Group], sampler: Sampler) -> Batch:
        self.kept = [*self.kept, *fresh][-self.config.horizon * self.generated :]
        count = min(self.batch_size, len(self.kept))
        groups = draw_groups(self.kept, count, self.random("fifo replay", step))
        age = float(np.mean([step - g.step for g in groups]))
        return Batch(self.replayed(groups, step), metrics={"replay_buffer": len(self.kept), "replay_age": age})
