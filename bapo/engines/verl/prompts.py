"""Training prompts for verl, drawn from the same seeded stream as in the torch engine."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tensordict import TensorDict
from verl.utils import tensordict_utils as tu
from verl.utils.dataset.rl_dataset import collate_fn

from bapo import seeds
from bapo.algorithm.rollouts import Prompt
from bapo.engines.shared.prompts import PromptStream
from bapo.tasks.base import Problem


@dataclass(frozen=True)
class Row:
    """A prompt's place in verl's training set."""

    index: int


@dataclass(frozen=True)
class Beginning:
    """The beginning of a response: its tokens so far, the log-probability of each, its number in the group."""

    tokens: list[int]
    logprobs: list[float]
    number: int


class PromptSource:
    """verl's training set as prompts with persistent ids, and as rows to submit."""

    def __init__(self, dataset: Any, problems: Sequence[Problem], seed: int) -> None:
        """problems: those of the file that the dataset was made from, in its order."""
        problems = problems[: len(dataset)]
        self.dataset, self.seed = dataset, seed
        self.ground_truths = [p.ground_truth for p in problems]
        prompts = [Prompt(p.id, Row(i)) for i, p in enumerate(problems)]
        self.by_id = {p.id: p for p in prompts}
        self.stream = PromptStream(prompts, seed)

    def batch(
        self,
        prompts: list[Prompt],
        group_size: int,
        step: int,
        purpose: tuple[object, ...],
        max_tokens: list[int | None] | None = None,
        beginnings: list[Beginning] | None = None,
    ) -> TensorDict:
        """Return rows for verl's agent loop, one a prompt, with the torch engine's keys of random numbers.

        max_tokens: new tokens that a response of each prompt may take; None: as many as sampling.max_response_tokens
        leaves. beginnings: for rows of one response that is under way.
        """
        columns = collate_fn([self.dataset[p.row.index] for p in prompts])
        count = len(prompts)
        # no "_" in it: verl makes row keys of it, {uid}_{session}_{index}
        columns["uid"] = np.array([uuid.uuid4().hex for _ in prompts], dtype=object)
        columns["draw_key"] = np.array([seeds.key64(self.seed, *purpose, step)] * count, dtype=object)
        columns["prompt_key"] = np.array(seeds.prompt_keys(p.id for p in prompts), dtype=object)
        columns["__rollout_n__"] = np.array([group_size] * count, dtype=object)
        parts = [
            {"max_tokens": max_tokens[i] if max_tokens else None, **({} if beginnings is None else vars(beginnings[i]))}
            for i in range(count)
        ]
        columns["part"] = np.array(parts, dtype=object)
        rows = tu.get_tensordict(columns)
        tu.assign_non_tensor_data(rows, "global_steps", step)
        return rows
