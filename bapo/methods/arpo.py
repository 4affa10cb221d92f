"""ARPO: a stored correct response replaces one in groups that are all wrong."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from pydantic import Field, PositiveFloat, PositiveInt

from bapo.algorithm.replay import ResponseCache
from bapo.algorithm.rollouts import Group
from bapo.methods.base import Batch, Method, Sampler, WithoutKL


class ARPOConfig(WithoutKL):
    clip_high: PositiveFloat = 0.3
    capacity: PositiveInt = 8  # correct responses kept per prompt
    positive: float = Field(0.1, ge=0, lt=1)  # a response with a reward above this is kept
    max_std: PositiveFloat = 0.05  # a group is failed if its rewards' standard deviation is below this
    max_mean: float = Field(0.2, gt=0, le=1)  # and their mean below this


class ARPO(Method):
    """Agentic replay policy optimization (Lu et al. 2505.16282; dvlab-research/ARPO ``ray_trainer.apply_replay``).

    The first response of a failed group is replaced by one of the prompt's stored correct responses, drawn at random;
    this step's correct responses enter the store afterwards. The reference recomputes old log-probabilities under the
    current policy, even for stored responses; here the ratio of a stored response is to the policy that sampled it.
    Clip 0.2/0.3, no KL.
    """

    Config = ARPOConfig
    config: ARPOConfig
    kept: ResponseCache
    title = "+ARPO"
    kind = "off"
    summary = "a stored correct response takes a place in groups that are all wrong"
    source = "Lu et al. 2505.16282; dvlab-research/ARPO"

    def __init__(self, config: ARPOConfig, batch_size: int, seed: int) -> None:
        super().__init__(config, batch_size, seed)
        self.kept = ResponseCache(config.capacity)

    def build_batch(self, step: int, fresh: list[Group], sampler: Sampler) -> Batch:
        rng = self.random("arpo", step)
        groups = [self._with_stored(group, rng) for group in fresh]
        for group in fresh:
            correct = np.flatnonzero(group.rewards > self.config.positive)
            if len(correct):
                self.kept.extend([group.select(correct)])
        replayed = sum(g.off_policy is not None for g in groups)
        return Batch(groups, metrics={"replayed_responses": replayed})

    def _with_stored(self, group: Group, rng: np.random.Generator) -> Group:
        """Replace the first response of a failed group by a stored correct one, if there is one."""
        failed = group.rewards.std() < self.config.max_std and group.mean < self.config.max_mean
        responses = self.kept.of(group.prompt.id) if failed else []
        if not responses:
            return group
        response, rest = responses[rng.integers(len(responses))], group.select(range(1, group.size))
        return replace(group.with_responses_of([response, rest]), off_policy=np.arange(group.size) == 0)
