"""BAPO as its authors have published it: waunx/BAPO_ICLR at 426b509, recipe/bapo."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt

from bapo.methods.bapo import BAPO, BAPOConfig, Groups
from bapo.methods.base import KL, Batch, Mean, Phase, Sampler
from bapo.methods.parts.decoupled import Decoupled, DecoupledConfig

if TYPE_CHECKING:
    from bapo.experiments.schema import TrainConfig


class BAPOReleasedConfig(BAPOConfig, DecoupledConfig):
    """The values of run_qwen3-8b_dapo_math_off.sh. The mini-batch and the group size are the setting's."""

    v: PositiveInt = 2
    m: PositiveInt = 2
    sync_phase: Phase = "first"
    clip_high: PositiveFloat = 0.28
    dual_clip: NonNegativeFloat = 10.0
    aggregation: Mean = "token-mean"
    kl_to: KL = "none"
    kl_coef: NonNegativeFloat | None = 0.0
    entropy_coef: float | None = 0.0
    ratio_cap: PositiveFloat = 3.0  # the largest weight pi_s / alpha_s

    def of_setting(self, train: TrainConfig) -> Self:
        """Fill in the capacity of B_bad too, 128 for B = 32, and how many of it are re-evaluated: B."""
        sizes = {"bad_capacity": 4 * train.batch_size, "max_reevaluated": train.batch_size}
        free = {key: size for key, size in sizes.items() if getattr(self, key) is None}
        return super().of_setting(train).model_copy(update=free)


class BAPOReleased(Decoupled, BAPO):
    """BAPO with the ratio of the authors' release: pi / pi_s, clipped around 1 and weighted by min(pi_s / alpha_s, 3).

    pi_s is the policy at the start of the step that generated the response, by alpha_s. As in bapo_ray_trainer.py, all
    fresh groups and the admitted ones of X2 are scored at once after their generation. They keep what they got: for X1
    and X2 pi_s is pi_k, for X3 it is an older policy. The release holds hard and high-quality prompts in one buffer;
    here they are two, and the thresholds are BAPO's.
    """

    Config = BAPOReleasedConfig
    config: BAPOReleasedConfig
    revision = 3  # X3's ratio was to pi_k
    title = "+BAPO (authors' release)"
    summary = "BAPO as its authors have released it (426b509)"
    source = "waunx/BAPO_ICLR at 426b509"
    cost = "1 + 1/(2m) x rollouts at most, fewer updates; rollouts scored"
    keeps_step_logprobs = True

    @property
    def needs_step_policy(self) -> bool:
        return False

    def build_batch(self, step: int, fresh: Groups, sampler: Sampler) -> Batch:
        self.score(fresh, sampler)
        return super().build_batch(step, fresh, sampler)

    def improved_hard(self, step: int, sampler: Sampler) -> tuple[Groups, Groups]:
        improved, failed = super().improved_hard(step, sampler)
        self.score(improved, sampler)
        return improved, failed

    @staticmethod
    def score(groups: Groups, sampler: Sampler) -> None:
        """Write into this step's groups the log-probabilities under the current policy, pi_s."""
        for group, logprobs in zip(groups, sampler.score(groups), strict=True):
            group.step_logprobs = logprobs
