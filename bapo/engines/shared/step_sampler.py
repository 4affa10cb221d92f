"""The part of ``bapo.methods.Sampler``, which methods call while they build a batch, that both engines share.

An engine adds how it generates, continues and scores responses.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from bapo.algorithm.rollouts import Group, Prompt
from bapo.engines.shared.batch_tensors import ResponsePlace, index_of_unfinished
from bapo.engines.shared.costs import StepCosts
from bapo.engines.shared.prompts import Embedder, PromptStream
from bapo.engines.shared.responses import demonstrate
from bapo.engines.shared.sampling import SamplingParameters
from bapo.tasks.base import Task

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

#: the name of a draw within a step; its random numbers depend on it
Purpose = tuple[object, ...]


@dataclass(frozen=True)
class SamplingSetup:
    """Holds what the samplers of all steps of a run share.

    stream: the training prompts in their seeded order
    tokenizer, task: they write and grade an expert's solutions
    parameters: how the policy samples
    group_size: responses to a prompt, unless the method says how many
    embedder: gives the prompts' embedder, which is made when a method first asks for it
    """

    stream: PromptStream
    tokenizer: PreTrainedTokenizerBase
    task: Task
    parameters: SamplingParameters
    group_size: int
    embedder: Callable[[], Embedder]


class StepSampler(ABC):
    """Answers what a method asks for in one training step, and counts what it costs.

    rollout_version: the version of alpha, once the step has settled it.
    """

    def __init__(self, setup: SamplingSetup, step: int, budget: int | None) -> None:
        """budget: tokens that a response of this step's rollout, or a continued one, may grow by; None: no limit."""
        self.setup, self.step, self.budget = setup, step, budget
        self.costs = StepCosts()
        self.rollout_version = step - 1
        self._calls, self._embeddings_paid = 0, False

    # ------------------------------------------------------------------ what a method asks for
    def draw(self, count: int) -> list[Prompt]:
        return self.setup.stream.next_prompts(count)

    def regenerate(self, prompts: list[Prompt], origin: str, policy: str = "current") -> list[Group]:
        self._calls += 1
        if not prompts:
            return []
        version = self.rollout_version if policy == "rollout" else self.step - 1
        size = self.setup.group_size
        return self.paid(self._generate(prompts, size, ("regenerate", self._calls), version, origin), origin)

    def resume(self, groups: list[Group]) -> list[Group]:
        self._calls += 1
        index = index_of_unfinished(groups)
        resumed = self._continue(groups, index, ("resume", self._calls))
        self.costs.add_resumed(groups, resumed, sum(self._prompt_tokens(groups[n].prompt) for n, _ in index))
        return resumed

    def embed(self, prompts: list[Prompt]) -> np.ndarray:
        """Embed as ``Sampler`` says. The first call embeds all training prompts; a call in step 1 pays for it."""
        with self.costs.timed("regenerate"):
            embedder = self.setup.embedder()
            if self.step == 1 and not self._embeddings_paid:
                self.costs.forward_tokens += embedder.tokens
                self._embeddings_paid = True
            return embedder(prompts)

    def demonstrate(self, prompts: list[Prompt]) -> list[Group | None]:
        s = self.setup
        with self.costs.timed("regenerate"):
            with_tokens = [self._with_tokens(p) for p in prompts]
            groups = demonstrate(with_tokens, s.tokenizer, s.task, s.parameters, self.step)
        return [None if g is None else replace(g, prompt=p) for p, g in zip(prompts, groups, strict=True)]

    def score(self, groups: list[Group]) -> list[np.ndarray]:
        if not groups:
            return []
        with self.costs.timed("regenerate"):
            logprobs, tokens = self._score(groups)
        self.costs.forward_tokens += tokens
        return logprobs

    def paid(self, groups: list[Group], origin: str) -> list[Group]:
        """Charge groups that were just generated, and return them."""
        self.costs.add(groups, origin, sum(self._prompt_tokens(g.prompt) for g in groups))
        return groups

    # ------------------------------------------------------------------ what an engine adds
    @abstractmethod
    def _generate(
        self, prompts: list[Prompt], group_size: int, purpose: Purpose, version: int, origin: str
    ) -> list[Group]:
        """Sample and grade responses; the time goes to ``costs``.

        Args:
            prompts: at least one
            group_size: responses to each
            purpose: names the draw within the step
            version: of the policy that samples: the current one's, or alpha's
            origin: of the groups
        """

    @abstractmethod
    def _continue(self, groups: list[Group], index: Sequence[ResponsePlace], purpose: Purpose) -> list[Group]:
        """Return copies of the groups whose responses ``index`` the current policy has continued, graded at their end.

        All of them say which of their responses are unfinished. The time goes to ``costs``.
        """

    @abstractmethod
    def _score(self, groups: list[Group]) -> tuple[list[np.ndarray], int]:
        """Return the log-probabilities of all tokens under the current policy, and how many tokens went forward."""

    @abstractmethod
    def _prompt_tokens(self, prompt: Prompt) -> int:
        """Count the tokens of a prompt that this sampler has had responses to."""

    @abstractmethod
    def _with_tokens(self, prompt: Prompt) -> Prompt:
        """Return the prompt with its ``PromptTokens``."""
