"""A rollout of the torch engine: responses sampled from given weights, continued and graded."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from bapo import seeds
from bapo.algorithm.rollouts import REEVALUATED, Group, Prompt, Samples
from bapo.engines.shared.batch_tensors import ResponsePlace, index_of
from bapo.engines.shared.costs import StepCosts
from bapo.engines.shared.responses import decode, grade, sample_responses
from bapo.engines.shared.sampling import SamplingParameters, unfinished
from bapo.graders import pool
from bapo.graders.verdict import OVERLOADED
from bapo.tasks.base import Task


class ResponseGenerator:
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
        costs: StepCosts,
        budget: int | None = None,
    ) -> list[Group]:
        """Return G graded responses for each prompt, in order.

        Args:
            model: the policy that samples
            prompts: any number
            group_size: G
            purpose: names the draw within the step
            step, version, origin: of the groups
            costs: gets the seconds, and the responses that could not be graded
            budget: tokens after which a response is cut off and marked as unfinished. None: no limit
        """
        if not prompts:
            return []
        key, longest = seeds.key64(self.seed, *purpose, step), self.parameters.max_tokens
        parameters = replace(self.parameters, max_tokens=min(budget or longest, longest))
        with costs.timed("regenerate" if origin == REEVALUATED else "rollout"):
            samples = sample_responses(model, prompts, group_size, key, parameters)
        marks_of_groups = [unfinished(s, self.parameters) if budget else None for s in samples]
        groups = [
            Group(p, np.zeros(group_size), step, version, s, origin, unfinished=marks)
            for p, s, marks in zip(prompts, samples, marks_of_groups, strict=True)
        ]
        self._grade(groups, index_of(groups), costs)
        return groups

    def resume(
        self,
        model: PreTrainedModel,
        groups: list[Group],
        index: Sequence[ResponsePlace],
        budget: int | None,
        purpose: tuple[object, ...],
        step: int,
        costs: StepCosts,
    ) -> list[Group]:
        """Return copies of the groups with some responses continued, and graded where they end.

        The continuation's random numbers are those of a response of this step with the same number in its group; a
        prompt that comes again has another key each time. The earlier tokens go through the model once more.

        Args:
            model: the policy that continues
            groups: any number
            index: their unfinished responses
            budget: tokens that a response may grow by; None: up to its longest length
            purpose: names the draw within the step
            step: the running step
            costs: gets the seconds, and the responses that could not be graded
        """
        keys = seeds.prompt_keys(groups[n].prompt.id for n, _ in index)
        lengths = np.array([groups[n].samples.lengths[i] for n, i in index], dtype=np.int64)
        limits = np.minimum(budget or self.parameters.max_tokens, self.parameters.max_tokens - lengths)
        tails: dict[int, dict[int, Samples]] = defaultdict(dict)  # by group and response
        for limit in np.unique(limits):  # responses that began in the same step share a limit
            rows = np.flatnonzero(limits == limit)
            members = [index[int(r)] for r in rows]
            beginnings = [groups[n].samples.tokens[i, : groups[n].samples.lengths[i]].tolist() for n, i in members]
            with costs.timed("rollout"):
                parts = sample_responses(
                    model,
                    [groups[n].prompt for n, _ in members],
                    1,
                    seeds.key64(self.seed, *purpose, step),
                    replace(self.parameters, max_tokens=int(limit)),
                    keys=[keys[r] for r in rows],
                    first_sample=[i for _, i in members],
                    beginnings=beginnings,
                )
            for (n, i), tail in zip(members, parts, strict=True):
                tails[n][i] = tail
        resumed = []
        for n, group in enumerate(groups):
            samples = extend(group.samples, tails[n])
            marks = unfinished(samples, self.parameters)
            resumed.append(replace(group, samples=samples, unfinished=marks))
        self._grade(resumed, index, costs)
        return resumed

    def _grade(self, groups: list[Group], index: Sequence[ResponsePlace], costs: StepCosts) -> None:
        """Set the rewards of the responses ``index`` that are finished."""
        finished: dict[int, list[int]] = defaultdict(list)
        for n, i in index:
            marks = groups[n].unfinished
            if marks is None or not marks[i]:
                finished[n].append(i)
        with pool.shared().one_batch() as count:
            for n, responses in finished.items():
                with costs.timed("reward"):
                    texts = decode(self.tokenizer, groups[n].samples.select(responses))
                    verdicts = grade(self.task, texts, groups[n].prompt.row.ground_truth, count)
                rewards = groups[n].rewards.copy()
                rewards[responses] = [verdict.correct for verdict in verdicts]
                groups[n].grade(rewards)
                costs.overloaded += sum(verdict.reason == OVERLOADED for verdict in verdicts)


def extend(samples: Samples, tails: dict[int, Samples]) -> Samples:
    """Return the samples with tokens appended. tails: single responses, by the number of the response they extend."""
    lengths = samples.lengths.copy()
    for i, tail in tails.items():
        lengths[i] += tail.lengths[0]
    width = max(int(lengths.max()), samples.tokens.shape[1])
    room = ((0, 0), (0, width - samples.tokens.shape[1]))
    tokens, logprobs = np.pad(samples.tokens, room), np.pad(samples.logprobs, room)
    for i, tail in tails.items():
        behind = slice(samples.lengths[i], lengths[i])
        tokens[i, behind], logprobs[i, behind] = tail.tokens[0, : tail.lengths[0]], tail.logprobs[0, : tail.lengths[0]]
    return Samples(tokens, lengths, logprobs)
