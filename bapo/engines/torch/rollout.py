"""Responses and rewards: the torch engine's side of the ``Sampler`` that methods see."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from bapo import seeds
from bapo.algorithm.rollouts import FRESH, REEVALUATED, Group, Prompt, Samples
from bapo.engines.shared import models
from bapo.engines.shared.data import PromptStream
from bapo.engines.shared.demonstrations import demonstrate
from bapo.engines.shared.embeddings import Embedder
from bapo.engines.shared.sampler import SamplingParameters, sample
from bapo.engines.torch.learner import collate, micro_batches
from bapo.store.records import Ledger
from bapo.tasks.base import Task


class Generator:
    """Samples from given weights and grades. Random numbers depend on (seed, purpose, step, prompt, sample)."""

    def __init__(self, tokenizer: Any, task: Task, parameters: SamplingParameters, seed: int) -> None:
        self.tokenizer, self.task, self.parameters, self.seed = tokenizer, task, parameters, seed

    def generate(
        self,
        model: Any,
        prompts: list[Prompt],
        group_size: int,
        purpose: tuple[object, ...],
        step: int,
        version: int,
        origin: str,
        ledger: Ledger,
        budget: int | None = None,
    ) -> list[Group]:
        """G graded responses for each prompt, in order. ``purpose`` names the draw within the step.

        budget: tokens after which a response is cut off, unfinished; the groups then say which are.
        """
        if not prompts:
            return []
        start = time.perf_counter()
        keys = np.array(seeds.prompt_keys(p.id for p in prompts), dtype=np.uint64)
        key = seeds.key64(self.seed, *purpose, step)
        images = [p.row.images for p in prompts] if any(p.row.images is not None for p in prompts) else None
        limited = self._limited(budget or self.parameters.max_tokens)
        samples = sample(model, [p.row.tokens for p in prompts], group_size, keys, key, limited, images=images)
        ledger.seconds["regenerate" if origin == REEVALUATED else "rollout"] += time.perf_counter() - start
        groups = [
            Group(p, np.zeros(group_size), step, version, s, origin, unfinished=self._unfinished(s) if budget else None)
            for p, s in zip(prompts, samples, strict=True)
        ]
        self._grade(groups, [np.ones(group_size, dtype=bool)] * len(groups), ledger)
        ledger.add(groups, origin, sum(len(p.row.tokens) for p in prompts))
        return groups

    def resume(
        self,
        model: Any,
        groups: list[Group],
        budget: int | None,
        purpose: tuple[object, ...],
        step: int,
        ledger: Ledger,
    ) -> list[Group]:
        """The groups with their unfinished responses continued by ``budget`` tokens at most, graded where they end.

        The continuation's random numbers are those of a response of this step with the same number in its group; a
        prompt that comes again has another key each time. What was sampled before is computed once more: its tokens
        are prompt tokens in the ledger.
        """
        start = time.perf_counter()
        open_rows = [np.zeros(g.size, dtype=bool) if g.unfinished is None else g.unfinished for g in groups]
        index = [(n, int(i)) for n, rows in enumerate(open_rows) for i in np.flatnonzero(rows)]
        keys = np.array(seeds.prompt_keys(groups[n].prompt.id for n, _ in index), dtype=np.uint64)
        lengths = np.array([groups[n].samples.lengths[i] for n, i in index], dtype=np.int64)
        limits = np.minimum(budget or self.parameters.max_tokens, self.parameters.max_tokens - lengths)
        grown: dict[tuple[int, int], Samples] = {}
        for limit in np.unique(limits):  # responses that began in the same step have the same
            rows = np.flatnonzero(limits == limit)
            chosen = [index[r] for r in rows]
            prompts = [groups[n].prompt.row for n, _ in chosen]
            parts = sample(
                model,
                [p.tokens for p in prompts],
                1,
                keys[rows],
                seeds.key64(self.seed, *purpose, step),
                self._limited(int(limit)),
                first_sample=[i for _, i in chosen],
                images=[p.images for p in prompts] if any(p.images is not None for p in prompts) else None,
                beginnings=[groups[n].samples.tokens[i, : groups[n].samples.lengths[i]].tolist() for n, i in chosen],
            )
            grown |= dict(zip(chosen, parts, strict=True))
        ledger.seconds["rollout"] += time.perf_counter() - start
        ledger.generated_tokens += int(sum(s.lengths.sum() for s in grown.values()))
        ledger.prompt_tokens += int(lengths.sum()) + sum(len(groups[n].prompt.row.tokens) for n, _ in index)
        found = []
        for n, group in enumerate(groups):
            samples = continued(group.samples, {i: s for (m, i), s in grown.items() if m == n})
            rewards = group.rewards.copy()  # the group that was given stays as it is
            found.append(replace(group, rewards=rewards, samples=samples, unfinished=self._unfinished(samples)))
        self._grade(found, open_rows, ledger)
        return found

    def _limited(self, tokens: int) -> SamplingParameters:
        return replace(self.parameters, max_tokens=min(tokens, self.parameters.max_tokens))

    def _unfinished(self, samples: Samples) -> np.ndarray:
        return unfinished(samples, self.parameters)

    def _grade(self, groups: list[Group], new: list[np.ndarray], ledger: Ledger) -> None:
        """Set the rewards of the responses that are new and finished."""
        start = time.perf_counter()
        index = [
            (g, i)
            for g, rows in zip(groups, new, strict=True)
            for i in np.flatnonzero(rows if g.unfinished is None else rows & ~g.unfinished)
        ]
        if not index:  # the library decodes no responses to one empty text
            return
        texts = self.tokenizer.batch_decode(
            [g.samples.tokens[i, : g.samples.lengths[i]] for g, i in index], skip_special_tokens=True
        )
        for (g, i), text in zip(index, texts, strict=True):
            g.rewards[i] = self.task.verify(text, g.prompt.row.ground_truth).correct
        ledger.seconds["reward"] += time.perf_counter() - start


def unfinished(samples: Samples, parameters: SamplingParameters) -> np.ndarray:
    """bool [G]: responses that neither ended nor have all the tokens they may take."""
    last = samples.tokens[np.arange(len(samples.lengths)), samples.lengths - 1]
    return (samples.lengths < parameters.max_tokens) & ~np.isin(last, parameters.eos_ids)


def continued(samples: Samples, more: dict[int, Samples]) -> Samples:
    """The samples with the one response of each of ``more`` put behind the response of that number."""
    lengths = samples.lengths.copy()
    for i, part in more.items():
        lengths[i] += part.lengths[0]
    width = max(int(lengths.max()), samples.tokens.shape[1])
    room = ((0, 0), (0, width - samples.tokens.shape[1]))
    tokens, logprobs = np.pad(samples.tokens, room), np.pad(samples.logprobs, room)
    for i, part in more.items():
        behind = slice(samples.lengths[i], lengths[i])
        tokens[i, behind], logprobs[i, behind] = part.tokens[0, : part.lengths[0]], part.logprobs[0, : part.lengths[0]]
    return Samples(tokens, lengths, logprobs)


class StepSampler:
    """``bapo.methods.Sampler`` for one training step: draws from the stream, samples from the current policy."""

    def __init__(
        self,
        model: Any,
        generator: Generator,
        stream: PromptStream,
        group_size: int,
        step: int,
        ledger: Ledger,
        micro_batch_size: int | None = None,
        budget: int | None = None,
        embedder: Embedder | None = None,
    ) -> None:
        """budget: of tokens, for a response that is resumed."""
        self.micro_batch_size = micro_batch_size or 256
        self.model, self.generator, self.stream = model, generator, stream
        self.group_size, self.step, self.ledger = group_size, step, ledger
        self.budget, self.embedder, self._embedded = budget, embedder, False
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

    def resume(self, groups: list[Group]) -> list[Group]:
        self._calls += 1
        purpose = ("resume", self._calls)
        return self.generator.resume(self.model, groups, self.budget, purpose, self.step, self.ledger)

    def embed(self, prompts: list[Prompt]) -> np.ndarray:
        """All training prompts are embedded at once; a method that embeds does so from step 1, which pays for them."""
        begun = time.perf_counter()
        vectors = self.embedder(prompts)
        if self.step == 1 and not self._embedded:
            self.ledger.forwards += self.embedder.tokens
            self._embedded = True
        self.ledger.seconds["regenerate"] += time.perf_counter() - begun
        return vectors

    def demonstrate(self, prompts: list[Prompt]) -> list[Group | None]:
        g, begun = self.generator, time.perf_counter()
        found = demonstrate(prompts, g.tokenizer, g.task, g.parameters, self.step)
        self.ledger.seconds["regenerate"] += time.perf_counter() - begun
        return found

    def score(self, groups: list[Group]) -> list[np.ndarray]:
        begun, g = time.perf_counter(), self.generator.parameters
        found = [np.zeros(group.samples.tokens.shape, dtype=np.float32) for group in groups]
        zeros = [np.zeros(group.size, dtype=np.float32) for group in groups]  # advantages, which nothing reads
        index = [(n, i) for n, group in enumerate(groups) for i in range(group.size)]
        for micro in micro_batches(groups, index, self.micro_batch_size) if index else []:
            rows = collate(groups, zeros, micro, g.pad_id, next(self.model.parameters()).device)
            with torch.no_grad():
                scored = models.score(
                    self.model, rows.ids, rows.starts, rows.width, g.temperature, False, rows.lengths, rows.images
                )
            logprobs = scored.logprobs.cpu().numpy()
            for row, (n, i) in enumerate(micro):
                length = groups[n].samples.lengths[i]
                found[n][i, :length] = logprobs[row, :length]
            self.ledger.forwards += int((rows.starts + rows.lengths).sum())
        self.ledger.seconds["regenerate"] += time.perf_counter() - begun
        return found
