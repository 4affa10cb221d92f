"""Off-policy GRPO (Mroueh et al. 2505.22257): the rollout policy is refreshed every v = 5 steps."""

from __future__ import annotations

from bapo.methods.parts.delayed import DelayedGRPO


class GRPOv5(DelayedGRPO):
    title = "+GRPO (v = 5)"
    summary = "rollout policy refreshed every v = 5 steps, clip centred at pi_k / alpha"
    source = "Mroueh et al. 2505.22257"
