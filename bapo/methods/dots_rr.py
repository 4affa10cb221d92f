"""The rollout replay of DOTS: half of each batch is generated, half replayed."""

from __future__ import annotations

from pydantic import Field, PositiveInt

from bapo.algorithm.batch import informative
from bapo.algorithm.rollouts import Group, Prompt
from bapo.methods.base import Batch, Method, Sampler, WithoutKL, draw_groups


class RolloutReplayConfig(WithoutKL):
    fresh_share: float = Field(0.5, gt=0, le=1)  # sigma: generated share of the batch
    entropy_coef: float | None = 0.0
    #: groups in the buffer; None: the batch size (512 of 512 in the reference)
    capacity: PositiveInt | None = None
    #: mu: steps before the first replay
    first_steps: PositiveInt = 2


class RolloutReplay(Method):
    """Rollout replay (Sun et al. 2506.05316, section 3.3; ASTRAL-Group/data-efficient-llm-rl, ``select_buffer``).

    After the first steps, a step generates from sigma * B prompts and replays up to (1 - sigma) * B groups. They are
    drawn at random from a FIFO buffer of the last groups. It holds the newest group of each prompt, unless that is all
    right or all wrong. A replayed group stays in it until it is pushed out. The ratio is pi_theta / alpha_B.
    """

    Config = RolloutReplayConfig
    config: RolloutReplayConfig
    kept: list[Group]
    title = "+DOTS-RR"
    kind = "off"
    summary = "half of each batch replayed from a FIFO buffer of mixed groups"
    source = "Sun et al. 2506.05316; ASTRAL-Group/data-efficient-llm-rl"
    cost = "0.5 x rollouts"

    def __init__(self, config: RolloutReplayConfig, batch_size: int, seed: int) -> None:
        super().__init__(config, batch_size, seed)
        self.capacity = batch_size if config.capacity is None else config.capacity
        self.generated = max(1, int(config.fresh_share * batch_size))

    def count(self, step: int) -> int:
        """Return the number of prompts that a step generates from."""
        return self.batch_size if step <= self.config.first_steps else self.generated

    def draw_prompts(self, step: int, sampler: Sampler) -> list[Prompt]:
        return sampler.draw(self.count(step))

    def build_batch(self, step: int, fresh: list[Group], sampler: Sampler) -> Batch:
        replayed: list[Group] = []
        if step > self.config.first_steps:
            count = min(self.batch_size - self.generated, len(self.kept))
            replayed = self.replayed(draw_groups(self.kept, count, self.random("rollout replay", step)))
        newest = {g.prompt.id: g for g in fresh}
        others = [g for g in self.kept if g.prompt.id not in newest]
        self.kept = (others + [g for g in newest.values() if informative(g)])[-self.capacity :]
        return Batch(fresh + replayed, metrics={"replay_buffer": len(self.kept)})
