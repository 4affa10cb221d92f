"""The torch engine's side of the ``Sampler`` that methods see: one process holds all policies."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from transformers import PreTrainedModel

from bapo.algorithm.rollouts import FRESH, Group, Prompt
from bapo.engines.shared.batch_tensors import ResponsePlace, by_group, micro_batches, score_rows
from bapo.engines.shared.step_sampler import Purpose, SamplingSetup, StepSampler
from bapo.engines.torch.rollout import ResponseGenerator

#: responses that are scored at once, unless the configuration says how many
SCORED_ROWS = 256


class TorchStepSampler(StepSampler):
    """Answers what a method asks for in one training step, with the models of this process."""

    def __init__(
        self,
        setup: SamplingSetup,
        step: int,
        budget: int | None,
        generator: ResponseGenerator,
        model: PreTrainedModel,
        rows: int | None = None,
    ) -> None:
        """Begin with the current policy as alpha, until :meth:`settle` says otherwise.

        Args:
            setup: what all steps share
            step: the training step
            budget: tokens that a response of this step's rollout, or a continued one, may grow by; None: no limit
            generator: samples and grades
            model: the current policy
            rows: responses that are scored at once; None: SCORED_ROWS
        """
        super().__init__(setup, step, budget)
        self.generator, self.model, self.rows = generator, model, rows or SCORED_ROWS
        self.rollout_model = model

    def settle(self, rollout_model: PreTrainedModel, version: int) -> None:
        """Say which weights alpha has in this step."""
        self.rollout_model, self.rollout_version = rollout_model, version

    def fresh(self, prompts: list[Prompt]) -> list[Group]:
        """Return the groups of the step's own rollout."""
        groups = self.generator.generate(
            self.rollout_model,
            prompts,
            self.setup.group_size,
            ("rollout",),
            self.step,
            self.rollout_version,
            FRESH,
            self.costs,
            self.budget,
        )
        return self.paid(groups, FRESH)

    def _generate(
        self, prompts: list[Prompt], group_size: int, purpose: Purpose, version: int, origin: str
    ) -> list[Group]:
        model = self.model if version == self.step - 1 else self.rollout_model
        return self.generator.generate(model, prompts, group_size, purpose, self.step, version, origin, self.costs)

    def _continue(self, groups: list[Group], index: Sequence[ResponsePlace], purpose: Purpose) -> list[Group]:
        return self.generator.resume(self.model, groups, index, self.budget, purpose, self.step, self.costs)

    def _score(self, groups: list[Group]) -> tuple[list[np.ndarray], int]:
        blocks, temperature = micro_batches(groups, self.rows, self.model.device), self.setup.parameters.temperature
        logprobs = by_group(groups, blocks, lambda rows: score_rows(self.model, rows, temperature).logprobs)
        tokens = sum(g.size * len(g.prompt.row.tokens) + int(g.samples.lengths.sum()) for g in groups)
        return logprobs, tokens

    def _prompt_tokens(self, prompt: Prompt) -> int:
        return len(prompt.row.tokens)

    def _with_tokens(self, prompt: Prompt) -> Prompt:
        return prompt
