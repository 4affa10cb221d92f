"""Responses and rewards: the torch engine's side of the ``Sampler`` that methods see."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from bapo import seeds
from bapo.algorithm.rollouts import FRESH, REEVALUATED, Group, Prompt, Samples
from bapo.engines.shared import models
from bapo.engines.shared.batch_tensors import Pair, Rows, by_group, index_of, index_of_unfinished, micro_batches
from bapo.engines.shared.costs import StepCosts
from bapo.engines.shared.embeddings import Embedder
from bapo.engines.shared.prompts import PromptStream
from bapo.engines.shared.responses import decode, demonstrate, grade, sample_responses
from bapo.engines.shared.sampling import SamplingParameters, unfinished
from bapo.graders import pool
from bapo.graders.verdict import OVERLOADED
from bapo.tasks.base import Task


class Generator:
    """Samples from given weights and grades. Random numbers depend on (seed, purpose, step, prompt, sample)."""

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, task: Task, parameters: SamplingParameters, seed: int
    ) -> None:
        self.tokenizer, self.task, self.parameters, self.seed = tokenizer, task, parameters, seed

    def generate(
        self,
        model: PreTrainedModel,
        prompts: list[Prompt],
        group_size: int,
        purpose: tuple[object, ...],
        step: int,
        version: int,
        origin: str,
        ledger: StepCosts,
        budget: int | None = None,
    ) -> list[Group]:
        """Return G graded responses for each prompt, in order. ``purpose`` names the draw within the step.

        budget: tokens after which a response is cut off, unfinished; the groups then say which are.
        """
        if not prompts:
            return []
        key, limited = seeds.key64(self.seed, *purpose, step), self._limited(budget or self.parameters.max_tokens)
        with ledger.timed("regenerate" if origin == REEVALUATED else "rollout"):
            samples = sample_responses(model, prompts, group_size, key, limited)
        cut_off = [unfinished(s, self.parameters) if budget else None for s in samples]
        groups = [
            Group(p, np.zeros(group_size), step, version, s, origin, unfinished=marks)
            for p, s, marks in zip(prompts, samples, cut_off, strict=True)
        ]
        self._grade(groups, index_of(groups), ledger)
        ledger.add(groups, origin, sum(len(p.row.tokens) for p in prompts))
        return groups

    def resume(
        self,
        model: PreTrainedModel,
        groups: list[Group],
        budget: int | None,
        purpose: tuple[object, ...],
        step: int,
        ledger: StepCosts,
    ) -> list[Group]:
        """Return groups with their unfinished responses continued by ``budget`` tokens at most, graded where they end.

        The continuation's random numbers are those of a response of this step with the same number in its group; a
        prompt that comes again has another key each time. What was sampled before is computed once more: its tokens
        are prompt tokens in the ledger.
        """
        index = index_of_unfinished(groups)
        keys = seeds.prompt_keys(groups[n].prompt.id for n, _ in index)
        lengths = np.array([groups[n].samples.lengths[i] for n, i in index], dtype=np.int64)
        limits = np.minimum(budget or self.parameters.max_tokens, self.parameters.max_tokens - lengths)
        grown: dict[int, dict[int, Samples]] = defaultdict(dict)
        for limit in np.unique(limits):  # responses that began in the same step have the same
            rows = np.flatnonzero(limits == limit)
            chosen = [index[r] for r in rows]
            begun = [groups[n].samples.tokens[i, : groups[n].samples.lengths[i]].tolist() for n, i in chosen]
            with ledger.timed("rollout"):
                parts = sample_responses(
                    model,
                    [groups[n].prompt for n, _ in chosen],
                    1,
                    seeds.key64(self.seed, *purpose, step),
                    self._limited(int(limit)),
                    keys=[keys[r] for r in rows],
                    first_sample=[i for _, i in chosen],
                    beginnings=begun,
                )
            for (n, i), part in zip(chosen, parts, strict=True):
                grown[n][i] = part
        ledger.generated_tokens += int(sum(s.lengths.sum() for parts in grown.values() for s in parts.values()))
        ledger.prompt_tokens += int(lengths.sum()) + sum(len(groups[n].prompt.row.tokens) for n, _ in index)
        resumed = []
        for n, group in enumerate(groups):
            samples = continued(group.samples, grown[n])
            marks = unfinished(samples, self.parameters)  # rewards are copied: the caller's group stays as it is
            resumed.append(replace(group, rewards=group.rewards.copy(), samples=samples, unfinished=marks))
        self._grade(resumed, index, ledger)
        return resumed

    def _limited(self, tokens: int) -> SamplingParameters:
        return replace(self.parameters, max_tokens=min(tokens, self.parameters.max_tokens))

    def _grade(self, groups: list[Group], index: Sequence[Pair], ledger: StepCosts) -> None:
        """Set the rewards of the named responses, as far as they are finished."""
        finished: dict[int, list[int]] = defaultdict(list)
        for n, i in index:
            marks = groups[n].unfinished
            if marks is None or not marks[i]:
                finished[n].append(i)
        with pool.shared().one_batch() as counted:
            for n, responses in finished.items():
                with ledger.timed("reward"):
                    texts = decode(self.tokenizer, groups[n].samples.select(responses))
                    verdicts = grade(self.task, texts, groups[n].prompt.row.ground_truth, counted)
                groups[n].rewards[responses] = [verdict.correct for verdict in verdicts]
                ledger.overloaded += sum(verdict.reason == OVERLOADED for verdict in verdicts)


def continued(samples: Samples, more: dict[int, Samples]) -> Samples:
    """Return the samples with the one response of each of ``more`` put behind the response of that number."""
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
        model: PreTrainedModel,
        generator: Generator,
        stream: PromptStream,
        group_size: int,
        step: int,
        ledger: StepCosts,
        rows: int | None = None,
        budget: int | None = None,
        embedder: Embedder | None = None,
    ) -> None:
        """rows: responses that are scored at once (None: 256); budget: of tokens, for a response that is resumed."""
        self.model, self.generator, self.stream = model, generator, stream
        self.group_size, self.step, self.ledger = group_size, step, ledger
        self.rows, self.budget, self.embedder, self._embedded = rows or 256, budget, embedder, False
        self.rollout = (model, step - 1)  # alpha and its version, once the step has settled it
        self._drawn: set[str] = set()
        self._calls = 0

    def draw(self, count: int) -> list[Prompt]:
        prompts = self.stream.next_prompts(count)
        self._drawn.update(p.id for p in prompts)
        return prompts

    def regenerate(self, prompts: list[Prompt], group_size: int | None = None, policy: str = "current") -> list[Group]:
        """Prompts drawn in this step count as fresh rollouts (DAPO's further batches), all others as regenerated."""
        self._calls += 1
        model, version = self.rollout if policy == "rollout" else (self.model, self.step - 1)
        origin = FRESH if all(p.id in self._drawn for p in prompts) else REEVALUATED
        purpose = ("regenerate", self._calls)
        return self.generator.generate(
            model, prompts, group_size or self.group_size, purpose, self.step, version, origin, self.ledger
        )

    def resume(self, groups: list[Group]) -> list[Group]:
        self._calls += 1
        purpose = ("resume", self._calls)
        return self.generator.resume(self.model, groups, self.budget, purpose, self.step, self.ledger)

    def embed(self, prompts: list[Prompt]) -> np.ndarray:
        """All training prompts are embedded at once; a method that embeds does so from step 1, which pays for them."""
        assert self.embedder is not None
        if self.step == 1 and not self._embedded:
            self.ledger.forwards += self.embedder.tokens
            self._embedded = True
        with self.ledger.timed("regenerate"):
            return self.embedder(prompts)

    def demonstrate(self, prompts: list[Prompt]) -> list[Group | None]:
        g = self.generator
        with self.ledger.timed("regenerate"):
            return demonstrate(prompts, g.tokenizer, g.task, g.parameters, self.step)

    def score(self, groups: list[Group]) -> list[np.ndarray]:
        temperature = self.generator.parameters.temperature

        def logprobs(rows: Rows) -> Tensor:
            self.ledger.forwards += rows.tokens
            return models.score(
                self.model, rows.ids, rows.starts, rows.width, temperature, False, rows.lengths, rows.images
            ).logprobs

        with self.ledger.timed("regenerate"):
            return by_group(groups, micro_batches(groups, self.rows, self.model.device), logprobs)
