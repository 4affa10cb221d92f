"""DAPO: draw prompts until the batch is full of groups with a signal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from pydantic import PositiveFloat, PositiveInt

from bapo.algorithm.rollouts import FRESH, Group
from bapo.errors import UserError
from bapo.methods.base import Batch, Mean, Method, Sampler, WithoutKL


class DAPOConfig(WithoutKL):
    clip_high: PositiveFloat = 0.28  # "clip higher"
    entropy_coef: float | None = 0.0
    aggregation: Mean = "token-mean"
    max_generation_batches: PositiveInt = 4  # the BAPO paper's limit (Figure 9); the recipe's is 10
    #: "train" on the groups found so far, or "raise" as the recipe does
    at_limit: Literal["train", "raise"] = "train"


class DAPO(Method):
    """Decoupled clip and dynamic sampling (Yu et al. 2503.14476; verl-recipe ``dapo_ray_trainer.py``).

    Groups with equal rewards are discarded and further prompts drawn until B groups remain, for at most
    ``max_generation_batches`` batches; the first B groups are used. Clip 0.2/0.28, token-mean, no KL. The recipe's
    overlong penalty is not part of the BAPO paper's comparison, whose only reward is 0 or 1 (A.7).
    """

    Config = DAPOConfig
    config: DAPOConfig
    title = "+DAPO"
    summary = "dynamic sampling until the batch is full, at most 4 batches; clip 0.2/0.28, token-mean, no KL"
    source = "Yu et al. 2503.14476; verl-recipe dapo"
    cost = "1 to 4 x rollouts"

    @property
    def draws_next_prompts(self) -> bool:
        """Return False: how many prompts a step draws further depends on its groups."""
        return False

    @property
    def most_generated(self) -> float:
        return self.config.max_generation_batches

    def build_batch(self, step: int, fresh: list[Group], sampler: Sampler) -> Batch:
        """Choose B groups with a signal. Raises UserError where too few have one and ``at_limit`` is "raise"."""
        most = self.config.max_generation_batches
        kept, drawn, generated = dynamic_sampling(fresh, with_signal, sampler, self.batch_size, most)
        if len(kept) < self.batch_size and self.config.at_limit == "raise":
            raise UserError(
                f"step {step}: only {len(kept)} of {self.batch_size} groups have a signal after {generated} generation "
                "batches; raise method.max_generation_batches or set method.at_limit=train"
            )
        rejected = [(g, "equal rewards") for g in drawn if not with_signal([g])]
        rejected += [(g, "batch full") for g in kept[self.batch_size :]]
        return Batch(kept[: self.batch_size], rejected, {"generation_batches": generated})


def with_signal(groups: list[Group]) -> list[Group]:
    """Return the groups whose rewards differ: std > 0, but safe from rounding."""
    return [g for g in groups if g.rewards.max() > g.rewards.min()]


def dynamic_sampling(
    fresh: list[Group],
    keep: Callable[[list[Group]], list[Group]],
    sampler: Sampler,
    size: int,
    most: int,
    policy: str = "current",
) -> tuple[list[Group], list[Group], int]:
    """Draw further batches of ``size`` prompts until ``keep`` keeps ``size`` groups, for at most ``most`` batches.

    The policy has not changed since the rollout, so further groups are as fresh. Returns the kept groups, all groups,
    and the number of batches, ``fresh`` included.

    Args:
        fresh: the groups of the step's rollout
        keep: selects groups of one batch
        sampler: draws prompts and answers them
        size: prompts of a further batch, and the groups that are wanted
        most: batches at most, ``fresh`` included
        policy: as for ``Sampler.regenerate``
    """
    kept, drawn, generated = keep(fresh), list(fresh), 1
    while len(kept) < size and generated < most:
        more = sampler.regenerate(sampler.draw(size), FRESH, policy)
        kept, drawn, generated = kept + keep(more), drawn + more, generated + 1
    return kept, drawn, generated
