"""Responses and rewards: the torch engine's side of the ``Sampler`` that methods see."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from bapo import seeds
from bapo.engines.torch.data import PromptStream
from bapo.engines.torch.sampler import SamplingParameters, sample
from bapo.records import Ledger
from bapo.rollouts import FRESH, REEVALUATED, Group, Prompt
from bapo.tasks.base import Task


class Generator:
    """Samples from given weights and grades. Random numbers depend on (seed, purpose, step, prompt, sample)."""

    def __init__(self, tokenizer: Any, task: Task, parameters: SamplingParameters, seed: int) -> None:
        self.tokenizer, self.task, self.parameters, self.seed = tokenizer, task, parameters, seed

    def generate(
        self, model: Any, prompts: list[Prompt], group_size: int, purpose: tuple[object, ...], step: int, version: int,
        origin: str, ledger: Ledger,
    ) -> list[Group]:  # fmt: skip
        """G graded responses for each prompt, in order. ``purpose`` names the draw within the step."""
        if not prompts:
            return []
        start = time.perf_counter()
        keys = np.array(seeds.prompt_keys(p.id for p in prompts), dtype=np.uint64)
        key = seeds.key64(self.seed, *purpose, step)
        images = [p.row.images for p in prompts] if any(p.row.images is not None for p in prompts) else None
        samples = sample(model, [p.row.tokens for p in prompts], group_size, keys, key, self.parameters, images=images)
        sampled = time.perf_counter()
        texts = self.tokenizer.batch_decode(
            [s.tokens[i, : s.lengths[i]] for s in samples for i in range(group_size)], skip_special_tokens=True
        )
        rewards = [
            float(self.task.verify(text, prompts[n // group_size].row.ground_truth).correct)
            for n, text in enumerate(texts)
        ]
        ledger.seconds["regenerate" if origin == REEVALUATED else "rollout"] += sampled - start
        ledger.seconds["reward"] += time.perf_counter() - sampled
        shaped = np.array(rewards, dtype=np.float32).reshape(len(prompts), group_size)
        groups = [Group(p, r, step, version, s, origin) for p, r, s in zip(prompts, shaped, samples, strict=True)]
        ledger.add(groups, origin, sum(len(p.row.tokens) for p in prompts))
        return groups


class StepSampler:
    """``bapo.methods.Sampler`` for one training step: draws from the stream, samples from the current policy."""

    def __init__(
        self, model: Any, generator: Generator, stream: PromptStream, group_size: int, step: int, ledger: Ledger
    ) -> None:
        self.model, self.generator, self.stream = model, generator, stream
        self.group_size, self.step, self.ledger = group_size, step, ledger
        self._drawn: set[str] = set()
        self._calls = 0

    def draw(self, count: int) -> list[Prompt]:
        prompts = self.stream.draw(count)
        self._drawn.update(p.id for p in prompts)
        return prompts

    def regenerate(self, prompts: list[Prompt], group_size: int | None = None) -> list[Group]:
        """Prompts drawn in this step count as fresh rollouts (DAPO's further batches), all others as regenerated."""
        self._calls += 1
        origin = FRESH if all(p.id in self._drawn for p in prompts) else REEVALUATED
        purpose = ("regenerate", self._calls)
        return self.generator.generate(
            self.model, prompts, group_size or self.group_size, purpose, self.step, self.step - 1, origin, self.ledger
        )
