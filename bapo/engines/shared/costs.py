"""What one training step costs, with both engines: rollouts, tokens, seconds."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from bapo.algorithm.rollouts import FRESH, Group
from bapo.methods import Method


@dataclass
class StepCosts:
    """Counts what one step costs.

    fresh_rollouts, regenerated_rollouts: responses to prompts of this step, and to earlier ones
    generated_tokens: tokens of these responses
    prompt_tokens: tokens that a model read before it wrote, once per prompt
    trained_tokens: tokens of the rows that the policy was trained on
    forward_tokens: tokens that went forward in the update, once for each policy, or were scored for the method
    critic_tokens: tokens of the rows that a critic of ``critic_parameters`` was trained on; they go forward twice, for
        the values and for the update
    overloaded: responses that the machine was too busy to grade, whose reward is 0
    seconds: by phase
    """

    fresh_rollouts: int = 0
    regenerated_rollouts: int = 0
    generated_tokens: int = 0
    prompt_tokens: int = 0
    trained_tokens: int = 0
    forward_tokens: int = 0
    critic_tokens: int = 0
    critic_parameters: int = 0
    overloaded: int = 0
    seconds: dict[str, float] = field(default_factory=lambda: {"rollout": 0.0, "regenerate": 0.0, "reward": 0.0})

    def add(self, groups: list[Group], origin: str, prompt_tokens: int) -> None:
        """Charge groups that were just generated, with one prefill per prompt."""
        rollouts = sum(g.size for g in groups)
        if origin == FRESH:
            self.fresh_rollouts += rollouts
        else:
            self.regenerated_rollouts += rollouts
        self.generated_tokens += int(sum(g.samples.lengths.sum() for g in groups))
        self.prompt_tokens += prompt_tokens

    def add_resumed(self, before: Sequence[Group], after: Sequence[Group], prompt_tokens: int) -> None:
        """Charge responses that were continued. Their earlier tokens are read again, as the ``prompt_tokens`` are."""
        lengths = [int(sum(g.samples.lengths.sum() for g in groups)) for groups in (before, after)]
        reread = sum(int(g.samples.lengths[g.unfinished].sum()) for g in before if g.unfinished is not None)
        self.generated_tokens += lengths[1] - lengths[0]
        self.prompt_tokens += prompt_tokens + reread

    def add_update(
        self, method: Method, tokens: int, scored_tokens: int, critic_tokens: int, critic_parameters: int
    ) -> None:
        """Charge an update. A reference policy reads the same rows as the trained policy.

        Args:
            method: says whether there is one
            tokens: of the rows that the policy was trained on
            scored_tokens: of the rows that were scored under pi_k, the policy before the update
            critic_tokens: of the rows that the critic was trained on; 0 without a critic
            critic_parameters: the number of the critic's parameters
        """
        self.trained_tokens = tokens
        self.forward_tokens += tokens * (1 + method.needs_reference) + scored_tokens
        self.critic_tokens, self.critic_parameters = critic_tokens, critic_parameters

    @contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """Add the time that the block takes to a phase."""
        start = time.perf_counter()
        yield
        self.seconds[phase] += time.perf_counter() - start
