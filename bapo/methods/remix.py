"""Remix-GRPO: batches mixed from the last policies, trained on twice, with a moving KL anchor; then on policy."""

from __future__ import annotations

import math
from typing import Literal, Self

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveInt, model_validator

from bapo.algorithm import losses
from bapo.algorithm.losses import LossInputs
from bapo.algorithm.rollouts import Group, Prompt
from bapo.methods.base import Batch, Centre, Method, MethodConfig, Sampler, Share, Tensor, draw_groups


class ReMixConfig(MethodConfig):
    clip_centre: Centre = "step-policy"  # pi_k / pi_{k-i}
    #: lambda KL(reference) + (1 - lambda) KL(pi_k)
    kl_to: Literal["mixture", "none"] = "mixture"  # type: ignore[assignment]
    replay_share: float = Field(0.4, ge=0, lt=1)  # p: share of a batch from earlier policies
    policies: PositiveInt = 2  # N: number of earlier policies
    update_to_data: PositiveInt = 2  # passes over a batch
    #: T: the last off-policy step; then the reference becomes pi_T
    switch_step: NonNegativeInt = 50
    kl_decay: NonNegativeFloat = 0.1  # decrease of lambda every ten steps after T
    kl_floor: Share = 0.5  # the smallest lambda
    unread = ("passes",)

    @model_validator(mode="after")
    def _anchor(self) -> Self:
        if self.kl_to == "none":
            self.require_default("kl_to=none", "kl_decay", "kl_floor")
        return self


class ReMix(Method):
    """ReMix on GRPO (Liang et al. 2507.06892; no public code).

    Until step T a share p of each batch is drawn from the groups of the last N policies, and only the rest is
    generated. Each batch is trained on ``update_to_data`` times, and the clip interval of a replayed response is
    centred at pi_k / pi_{k-i}. Then comes "policy reincarnation": the reference becomes pi_T and training continues
    with GRPO on fresh batches. The KL is lambda KL(reference) + (1 - lambda) KL(pi_k) with
    lambda = max(1 - 0.1 ceil(max(t - T, 0) / 10), 0.5).
    """

    Config = ReMixConfig
    config: ReMixConfig
    kept: list[Group]
    title = "+Remix-GRPO"
    kind = "off"
    summary = "40% of each batch from the last two policies, trained on twice; on policy after step T"
    source = "Liang et al. 2507.06892"
    cost = "0.6 x rollouts and 2 x updates until step T, then 1"

    def _mixes(self, step: int) -> bool:
        return step <= self.config.switch_step

    def _replays(self, step: int) -> int:
        """Return the number of groups that come from earlier policies."""
        most = min(round(self.config.replay_share * self.batch_size), self.batch_size - 1)
        return min(most, len(self.kept)) if self._mixes(step) else 0

    def draw_prompts(self, step: int, sampler: Sampler) -> list[Prompt]:
        # only the groups of the N policies before this step's stay, and none after T
        first = step - self.config.policies if self._mixes(step) else step
        self.kept = [g for g in self.kept if g.step >= first]
        return sampler.draw(self.batch_size - self._replays(step))

    def build_batch(self, step: int, fresh: list[Group], sampler: Sampler) -> Batch:
        replayed = self.replayed(draw_groups(self.kept, self._replays(step), self.random("remix", step)))
        if self._mixes(step):
            self.kept += fresh
        return Batch(fresh + replayed, metrics={"recent": len(self.kept)})

    def passes(self, step: int) -> int:
        return self.config.update_to_data if self._mixes(step) else 1

    def resets_reference(self, step: int) -> bool:
        return step == self.config.switch_step + 1 > 1

    # ------------------------------------------------------------------ the loss
    @property
    def needs_reference(self) -> bool:
        return self.config.kl_to == "mixture" and bool(self.config.kl_coef)

    @property
    def needs_step_policy(self) -> bool:
        return super().needs_step_policy or self.config.kl_to == "mixture"

    def anchor_weight(self, step: int) -> float:
        """Return lambda(t), the share of the KL that is to the reference."""
        late = math.ceil(max(step - self.config.switch_step, 0) / 10)
        return max(1 - self.config.kl_decay * late, self.config.kl_floor)

    def divergence(self, inputs: LossInputs) -> Tensor:
        reference, step, share = inputs.reference_logprobs, inputs.step_logprobs, self.anchor_weight(inputs.step)
        assert reference is not None and step is not None
        anchor = losses.low_variance_kl(inputs.logprobs, reference)
        return share * anchor + (1 - share) * losses.low_variance_kl(inputs.logprobs, step)
