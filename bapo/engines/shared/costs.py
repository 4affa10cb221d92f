"""What one training step costs, with both engines: rollouts, tokens, seconds."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from bapo.algorithm.rollouts import FRESH, Group


@dataclass
class StepCosts:
    """What one step cost.

    forwards: tokens that went forward during the update, once for each policy, or to be scored for the method.
    critic_tokens: tokens of the rows that a critic of ``critic_parameters`` was trained on; they go forward twice, for
    the values and for the update. overloaded: responses that the machine was too busy to grade, whose reward is 0.
    """

    fresh_rollouts: int = 0
    regenerated_rollouts: int = 0
    generated_tokens: int = 0
    prompt_tokens: int = 0
    trained_tokens: int = 0
    forwards: int = 0
    critic_tokens: int = 0
    critic_parameters: int = 0
    overloaded: int = 0
    seconds: dict[str, float] = field(default_factory=lambda: {"rollout": 0.0, "regenerate": 0.0, "reward": 0.0})

    def add(self, groups: list[Group], origin: str, prompt_tokens: int) -> None:
        """Groups that were just generated; one prefill a prompt."""
        rollouts = sum(g.size for g in groups)
        if origin == FRESH:
            self.fresh_rollouts += rollouts
        else:
            self.regenerated_rollouts += rollouts
        self.generated_tokens += int(sum(g.samples.lengths.sum() for g in groups))
        self.prompt_tokens += prompt_tokens

    @contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """Add the time that the block takes to a phase."""
        begun = time.perf_counter()
        yield
        self.seconds[phase] += time.perf_counter() - begun
