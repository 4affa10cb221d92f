"""RePO: each prompt brings back some of its earlier responses."""

from __future__ import annotations

from typing import Literal, Self

import numpy as np
from pydantic import Field, NonNegativeFloat, model_validator

from bapo.algorithm import losses
from bapo.algorithm.losses import LossInputs
from bapo.algorithm.replay import ResponseCache, merge
from bapo.algorithm.rollouts import Group
from bapo.methods.base import Batch, Method, Sampler, Spread, Tensor, WithoutKL


class RePOConfig(WithoutKL):
    strategy: Literal["full-scope", "recency", "reward", "variance"] = "recency"  # which responses are brought back
    capacity: int = 16  # responses kept per prompt
    #: responses kept before a prompt is replayed; fewer than 2 have no advantage
    min_cached: int = Field(16, ge=2)
    #: responses brought back per prompt (full-scope: all)
    replays: int = Field(8, ge=2)
    off_policy_weight: NonNegativeFloat = 1.0  # of the loss on responses that are brought back
    advantage_std: Spread = "unbiased"
    advantage_eps: NonNegativeFloat = 1e-4
    advantage_eps_inside: bool = False
    # beta is 0 in the reference code; above 0, only fresh samples carry the KL

    @model_validator(mode="after")
    def _repo(self) -> Self:
        if self.strategy == "full-scope":
            self.require_default("strategy=full-scope", "replays")
        self.require(self.min_cached <= self.capacity, "min_cached", f"must be at most method.capacity={self.capacity}")
        return self


def choose(rewards: np.ndarray, k: int, strategy: str) -> list[int]:
    """Return the indices of the cached responses (oldest first) to bring back.

    rewards: [n], 0 or 1. Ties keep the cache's order, as in the reference code: "recency" the newest k, "reward" the
    highest k, "variance" the subset of k with the largest variance and among those the largest sum, "full-scope" all.
    """
    n = len(rewards)
    if strategy == "full-scope":
        return list(range(n))
    k = min(k, n)
    if strategy == "recency":
        return list(range(n - k, n))
    if strategy == "reward":
        return sorted(range(n), key=lambda i: -rewards[i])[:k]
    right, wrong = np.flatnonzero(rewards).tolist(), np.flatnonzero(rewards == 0).tolist()
    ones = max(range(max(0, k - len(wrong)), min(len(right), k) + 1), key=lambda c: (c * (k - c), c))
    # this is the first subset in the order of itertools.combinations with that many of each
    return sorted(right[:ones] + wrong[: k - ones])


class RePO(Method):
    """Replay-Enhanced Policy Optimization (Li et al. 2506.09340; ``SihengLi99/RePO src/replay_grpo_trainer.py``).

    A prompt with at least ``min_cached`` earlier responses brings back ``replays`` of them. Fresh and replayed ones
    have separate advantages; loss = on-policy + ``off_policy_weight`` * off-policy, both clipped on the stored
    log-probabilities. This step's responses enter the cache after the choice.

    The authors' script differs. It brings back the highest rewards (``strategy=reward``), and its loss divides both
    parts by the number of all responses, where ours divides each by its own. It has no entropy bonus and no dual clip,
    and samples with a top-k of 50; here these are the same for all methods (Table 3).
    """

    Config = RePOConfig
    config: RePOConfig
    kept: ResponseCache
    title = "+RePO"
    kind = "off"
    summary = "a cache of 16 responses per prompt; four strategies of retrieval (`method.strategy`: the newest)"
    source = "Li et al. 2506.09340; SihengLi99/RePO"
    cost = "1 x rollouts, up to 2 x trained responses"
    kl_of_second_part = False

    def __init__(self, config: RePOConfig, batch_size: int, seed: int) -> None:
        super().__init__(config, batch_size, seed)
        self.kept = ResponseCache(config.capacity)

    def build_batch(self, step: int, fresh: list[Group], sampler: Sampler) -> Batch:
        replayed = [g for g in (self._retrieve(group) for group in fresh) if g is not None]
        self.kept.extend(fresh)
        return Batch(fresh + replayed, metrics={"replayed_responses": sum(g.size for g in replayed)})

    def _retrieve(self, group: Group) -> Group | None:
        cached = self.kept.of(group.prompt.id)
        if len(cached) < self.config.min_cached:
            return None
        rewards = np.array([g.rewards[0] for g in cached])
        return merge([cached[i] for i in choose(rewards, self.config.replays, self.config.strategy)])

    def reduce(self, values: Tensor, inputs: LossInputs) -> Tensor:
        """Return on + weight * off, each averaged over its sequences."""
        return losses.sum_of_parts(values, inputs, self.config.aggregation, (1.0, self.config.off_policy_weight))

    def units(self, groups: list[Group]) -> list[list[Group]]:
        """Keep a prompt's fresh and replayed responses in one mini-batch, so the number of updates stays B / mini."""
        together: dict[str, list[Group]] = {}
        for group in groups:
            together.setdefault(group.prompt.id, []).append(group)
        return list(together.values())
