"""Partial rollouts of Kimi k1.5: a response that exceeds a step's token budget continues in the next step."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Literal, Self

import numpy as np
from pydantic import Field, model_validator

from bapo.algorithm.rollouts import Group, Prompt
from bapo.methods.base import Batch, Method, MethodConfig, Sampler


class PartialRolloutsConfig(MethodConfig):
    #: share of sampling.max_response_tokens that a response may take in one step
    share: float = Field(0.5, gt=0, le=1)
    #: segments of a response that have an advantage: "all", or only the "current" step's
    segments: Literal["all", "current"] = "all"

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if self.share == 1:
            self.require_default("share=1, where no response is cut,", "segments")
        return self


class PartialRollouts(Method):
    """Partial rollouts (Kimi Team 2501.12599, section 2.6.2), on GRPO's loss.

    In one step a response takes at most ``share`` * max_response_tokens tokens. An unfinished response is kept and
    continues in the next step with that step's weights, until it ends or has max_response_tokens: after at most
    1 / share steps, rounded up. Groups wait in order of arrival until all their responses have ended, and then enter
    the batch of that step; new prompts fill the places not taken by waiting groups. So the first batches are smaller
    than B by the groups that wait.

    Each token keeps the log-probability of the policy that sampled it, so the ratio pi_theta / alpha is right for every
    token. The paper says that earlier segments can be left out of the loss, but not when or how. Here
    ``segments`` = "current" gives them the advantage 0: they take no part in the policy gradient, while KL, entropy and
    the length that divides a loss are those of the whole response. The paper's detection of repetitions, which ends a
    response early, is left out.
    """

    Config = PartialRolloutsConfig
    config: PartialRolloutsConfig
    kept: list[Group]
    title = "+Partial rollouts"
    kind = "off"
    summary = "responses that outgrow a step's budget of tokens continue in the next step"
    source = "Kimi Team 2501.12599, section 2.6.2"
    cost = "<= 1 x rollouts, each computed again where it goes on"

    def rollout_budget(self, step: int, longest: int) -> int | None:
        budget = max(1, math.ceil(self.config.share * longest))
        return budget if budget < longest else None

    def draw_prompts(self, step: int, sampler: Sampler) -> list[Prompt]:
        return sampler.draw(max(1, self.batch_size - len(self.kept)))

    def build_batch(self, step: int, fresh: list[Group], sampler: Sampler) -> Batch:
        lengths = [g.samples.lengths.copy() for g in self.kept]
        resumed = sampler.resume(self.kept) if self.kept else []
        started = [replace(g, earlier=length) for g, length in zip(resumed, lengths, strict=True)] + fresh
        self.kept = [replace(g, earlier=None) for g in started if not g.finished]
        groups = [replace(g, unfinished=None) for g in started if g.finished]  # from now on like any other group
        tokens = sum(int(g.samples.lengths.sum()) for g in groups)
        earlier = sum(int(g.earlier.sum()) for g in groups if g.earlier is not None)
        return Batch(
            groups,
            metrics={
                "resumed_groups": len(resumed),
                "waiting_groups": len(self.kept),
                "earlier_tokens": earlier / tokens if tokens else math.nan,
            },
        )

    def advantages(self, group: Group) -> np.ndarray:
        """Return float32 [G], or [G, T] with ``segments`` = "current": 0 for the tokens of earlier steps."""
        values = super().advantages(group)
        if self.config.segments == "all":
            return values
        earlier = np.zeros(group.size) if group.earlier is None else group.earlier
        current = np.arange(group.samples.tokens.shape[1]) >= earlier[:, None]
        return (values[:, None] * current).astype(np.float32)
