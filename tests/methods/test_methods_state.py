"""Every method in a scripted world: it does what is written down, also when it is restored on the way."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
import yaml
from support.late import LATE
from support.scripted import ExpertSampler, G, group

from bapo import methods
from bapo.algorithm.rollouts import Group, Prompt

if LATE:
    from bapo.engines.shared.hooks import checked

B, STEPS = 4, 14
#: so that in a few small steps each does what it is for
OPTIONS = yaml.safe_load(Path(__file__).with_name("scripted.yaml").read_text(encoding="utf-8"))
ALGORITHMS = methods.names()
#: by default and with OPTIONS, digests of what each does in each step, with numbers to four decimals, and of its state
WRITTEN = Path(__file__).with_name("scripted.json")


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

    def regenerate(self, prompts: list[Prompt], origin: str, policy: str = "current") -> list[Group]:
        return [group(p.id, correct(p.id, self.step), self.step, G).as_origin(origin) for p in prompts]

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
        rows = [(g.prompt.id, g.origin, g.step, plain(g.rewards), plain(g.samples.logprobs)) for g in batch.groups]
        rows += [plain(g.step_logprobs) for g in batch.groups if g.step_logprobs is not None]
        advantages = [plain(method.advantages(g)) for g in batch.groups if not method.uses_critic]
        weights = [(g.weight, method.separate(g), plain(method.second_part(g))) for g in batch.groups]
        rejected = [(g.prompt.id, reason) for g, reason in batch.rejected]
        numbers = {name: float(value) for name, value in batch.metrics.items()}
        found.append((rows, advantages, weights, rejected, numbers))
    return found


def plain(values: np.ndarray) -> tuple[str, list]:
    return str(values.dtype), values.tolist()


def rounded(found: object) -> object:
    """Round all numbers: the last bits are the processor's."""
    if isinstance(found, dict):
        return {name: rounded(value) for name, value in found.items()}
    if isinstance(found, list | tuple):
        return [rounded(value) for value in found]
    return round(found, 4) + 0.0 if isinstance(found, float) else found


def short(found: object) -> str:
    return hashlib.sha256(json.dumps(rounded(found), sort_keys=True).encode()).hexdigest()[:6]


@pytest.mark.parametrize("options", [{}, OPTIONS], ids=["default", "small"])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_method_does_what_is_written_down(algorithm: str, options: dict[str, dict]) -> None:
    """Which groups it trains on, in which part, with which weights and random numbers; by default, and as above."""
    method = checked(methods.build({"algorithm": algorithm, **options.get(algorithm, {})}, B, seed=3))
    done = steps(method, 1, STEPS, World())
    found = [short(step) for step in done] + [short(method.state()[0])]
    written = json.loads(WRITTEN.read_text(encoding="utf-8"))[algorithm][bool(options)].split()
    for place, (one, other) in enumerate(zip(found, written, strict=True)):
        what = f"step {place + 1}: {rounded(done[place])}" if place < STEPS else "the state after the last step"
        assert one == other, f"{what}\nall that it does: {' '.join(found)}"


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
    assert json.dumps(second.state()[0]) == json.dumps(state)
    assert str(steps(second, cut + 1, STEPS, world)) == str(whole[cut:])  # nan is nan
