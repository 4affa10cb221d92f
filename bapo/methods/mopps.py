"""MoPPS: training on the prompts whose predicted difficulty is medium."""

from __future__ import annotations

import numpy as np
from pydantic import PositiveFloat, PositiveInt

from bapo.algorithm.rollouts import Group, Prompt
from bapo.methods.base import Batch, Mean, Method, Sampler, Share, WithoutKL
from bapo.methods.parts.difficulty import distinct


class MoPPSConfig(WithoutKL):
    """The reference's values for Countdown and Geometry3K; for mathematics it has candidates 16 and memory 1."""

    clip_high: PositiveFloat = 0.28
    aggregation: Mean = "token-mean"  # as in the reference
    candidates: PositiveInt = 8  # rho: candidates per prompt of the batch
    #: lambda: share of a posterior that the next one keeps; 1 forgets nothing
    memory: Share = 0.5
    prior_successes: PositiveFloat = 1.0  # a0 of Beta(a0, b0)
    prior_failures: PositiveFloat = 1.0  # b0
    target: Share = 0.5  # gamma*: the desired success probability


class MoPPS(Method):
    """Model predictive prompt selection (Qu et al. 2507.04632; thu-rllab/MoPPS ``recipe/ours/mopps.py``).

    Each prompt x has a posterior Beta(a, b) of its success probability. From rho * B candidates of the stream,
    gamma ~ Beta(a, b) is sampled (Thompson), and the B prompts nearest to the target are trained on. After the rewards
    a <- lambda a + (1 - lambda) a0 + successes, and b likewise with failures. The loss is GRPO's with "clip higher" and
    no KL. Candidates not chosen cost nothing but count as drawn from the stream.
    """

    Config = MoPPSConfig
    config: MoPPSConfig
    title = "+MoPPS"
    summary = "prompts of medium difficulty by a Beta posterior and Thompson sampling"
    source = "Qu et al. 2507.04632; thu-rllab/MoPPS"
    saved = ("posteriors",)

    def __init__(self, config: MoPPSConfig, batch_size: int, seed: int) -> None:
        super().__init__(config, batch_size, seed)
        self.posteriors: dict[str, tuple[float, float]] = {}  # prompt id -> (a, b)

    def posterior(self, prompt_id: str) -> tuple[float, float]:
        """Return (a, b) of a prompt: the prior before it is first trained on."""
        return self.posteriors.get(prompt_id, (self.config.prior_successes, self.config.prior_failures))

    def draw_prompts(self, step: int, sampler: Sampler) -> list[Prompt]:
        candidates = distinct(sampler.draw(self.config.candidates * self.batch_size), self.batch_size)
        a, b = np.array([self.posterior(p.id) for p in candidates]).T
        predicted = self.random("mopps", step).beta(a, b)
        nearest = np.argsort((predicted - self.config.target) ** 2, kind="stable")[: self.batch_size]
        return [candidates[i] for i in nearest]

    def build_batch(self, step: int, fresh: list[Group], sampler: Sampler) -> Batch:
        c = self.config
        for group in fresh:
            successes = float(group.rewards.sum(dtype=np.float64))
            a, b = self.posterior(group.prompt.id)
            self.posteriors[group.prompt.id] = (
                c.memory * a + (1 - c.memory) * c.prior_successes + successes,
                c.memory * b + (1 - c.memory) * c.prior_failures + group.size - successes,
            )
        return Batch(list(fresh))
