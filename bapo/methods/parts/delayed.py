"""A rollout policy that is refreshed every v steps."""

from __future__ import annotations

from pydantic import PositiveInt

from bapo.methods.base import Centre, Method, MethodConfig, Phase, due


class DelayedConfig(MethodConfig):
    #: steps between two refreshes of the rollout policy
    v: PositiveInt = 5
    sync_phase: Phase = "literal"  # literal: t mod v = 0; first: (t - 1) mod v = 0
    clip_centre: Centre = "step-policy"


class DelayedGRPO(Method):
    """Off-policy GRPO (Mroueh et al. 2505.22257): alpha = pi_{k-v} generates and whitens the rewards.

    The clip interval is centred at pi_k / alpha: clip(rho, max(rho_k - eps, 0), rho_k + eps), rho = pi_theta / alpha.
    No public code exists; the formula is the paper's. ``clip_centre=one`` gives the plain PPO interval instead.
    """

    Config: type[MethodConfig] = DelayedConfig
    config: DelayedConfig
    kind = "off"

    @property
    def delays_rollout_policy(self) -> bool:
        return self.config.v > 1

    def syncs_rollout_policy(self, step: int) -> bool:
        return due(step, self.config.v, self.config.sync_phase)
