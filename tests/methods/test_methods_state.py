"""What a method keeps goes through a checkpoint: from any step on, a restored method does as the one that went on."""

from __future__ import annotations

import json

import numpy as np
import pytest
from support.scripted import ExpertSampler, G, group

from bapo import methods
from bapo.algorithm.rollouts import Group, Prompt

B, STEPS = 4, 14
#: so that in a few small steps each does what it is for
OPTIONS = {
    "areal": {"staleness": 2},
    "ba_ppo": {"c2_range": [0.25, 0.25], "c3_range": [0.5, 0.5], "bad_capacity": 3, "m": 2},
    "bapo": {"average_reward": "moving-average", "m": 2},
    "bapo_code": {"bad_capacity": 6, "m": 2},
    "dots": {"reference_share": 1.0, "candidates": 3},
    "dots_rr": {"first_steps": 1},
    "bapo_xi": {"staleness": 2},
    "exgrpo": {"start_reward": 0.0, "experience_ratio": 0.5},
    "fifo_replay": {"horizon": 3},
    "freshper": {"capacity": 9},
    "m2po": {"staleness": 2},
    "prompt_replay": {"cooldown": 2, "uses": 2},
    "relift": {"buffer_share": 0.5},
    "remix": {"switch_step": 9},
    "repo": {"strategy": "variance", "min_cached": 8, "replays": 4},
}
ALGORITHMS = sorted(methods._BUILT_IN)


def correct(name: str, step: int) -> int:
    """How many of a prompt's responses are right: some none, some all, some learnt in time."""
    return max(0, (int(name[1:]) * 7 + step * (int(name[1:]) % 3)) % (G + 4) - 3)


class World(ExpertSampler):
    """Thirty prompts that come again and again, in an order that is a function of how many were drawn."""

    drawn = 0

    def draw(self, count: int) -> list[Prompt]:
        names = [f"p{(self.drawn + i) * 11 % 30}" for i in range(count)]
        self.drawn += count
        return [Prompt(name) for name in names]

    def regenerate(self, prompts: list[Prompt], group_size: int | None = None, policy: str = "current") -> list[Group]:
        return [group(p.id, correct(p.id, self.step), self.step, group_size or G) for p in prompts]

    def embed(self, prompts: list[Prompt]) -> np.ndarray:
        return np.array([[int(p.id[1:]) % 5, int(p.id[1:]) % 7, 1.0] for p in prompts])

    def score(self, groups: list[Group]) -> list[np.ndarray]:
        return [g.samples.logprobs * (1 + int(g.prompt.id[1:]) / 30) for g in groups]

    def resume(self, groups: list[Group]) -> list[Group]:
        raise AssertionError("no response here is unfinished")


def steps(method: methods.Method, first: int, last: int, world: World) -> list[tuple]:
    """What the batches of the steps first..last are made of."""
    found = []
    for world.step in range(first, last + 1):
        drawn = method.draw_prompts(world.step, world)
        fresh = [group(p.id, correct(p.id, world.step), world.step) for p in drawn]
        batch = method.build_batch(world.step, fresh, world)
        rows = [(g.prompt.id, g.origin, g.step, g.rewards.tolist(), g.samples.logprobs.tolist()) for g in batch.groups]
        advantages = [method.advantages(g).tolist() for g in batch.groups if not method.uses_critic]
        found.append((rows, advantages, {k: repr(v) for k, v in batch.metrics.items()}))
    return found


@pytest.mark.parametrize("cut", [1, 4, 5, 10])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_restored_method_does_as_the_one_that_went_on(algorithm: str, cut: int) -> None:
    def build() -> methods.Method:
        return methods.build({"algorithm": algorithm, **OPTIONS.get(algorithm, {})}, B, seed=3)

    whole = steps(build(), 1, STEPS, World())
    first, second, world = build(), build(), World()
    steps(first, 1, cut, world)
    state, groups = first.state()
    second.restore(json.loads(json.dumps(state)), list(groups), Prompt)  # plain data
    assert steps(second, cut + 1, STEPS, world) == whole[cut:]
