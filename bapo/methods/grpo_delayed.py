"""GRPO with a rollout policy that is refreshed only every v steps."""

from __future__ import annotations

from typing import Literal

from pydantic import PositiveInt

from bapo.methods.base import Method, MethodConfig, Type


class DelayedConfig(MethodConfig):
    kind: Type = "off"
    #: steps between two refreshes of the rollout policy
    v: PositiveInt = 5
    #: "literal": t mod v = 0; "first": (t - 1) mod v = 0
    sync_phase: Literal["literal", "first"] = "literal"
    clip_centre: str = "step-policy"


def due(step: int, every: int, phase: str) -> bool:
    """Return whether an event that recurs every v = ``every`` steps falls on ``step`` (1-based).

    "literal" is Algorithm 1's ``t mod v = 0``: the initial policy serves only steps 1 .. v-1. "first" is
    ``(t - 1) mod v = 0``: every policy, the initial one included, serves exactly v steps.
    """
    return (step if phase == "literal" else step - 1) % every == 0


class DelayedGRPO(Method):
    """Off-policy GRPO (Mroueh et al. 2505.22257): alpha = pi_{k-v} generates and whitens the rewards.

    The clip interval is centred at pi_k / alpha: clip(rho, max(rho_k - eps, 0), rho_k + eps), rho = pi_theta / alpha.
    No public code exists; the formula is the paper's. ``clip_centre=one`` gives the plain PPO interval instead.
    """

    Config = DelayedConfig
    config: DelayedConfig
    summary = "rollout policy refreshed every v steps, clip centred at pi_k / alpha"
    source = "Mroueh et al. 2505.22257"

    @property
    def delays_rollout_policy(self) -> bool:
        return self.config.v > 1

    def syncs_rollout_policy(self, step: int) -> bool:
        return due(step, self.config.v, self.config.sync_phase)
