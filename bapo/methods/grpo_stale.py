"""A control: GRPO on the queue of m2po and bapo_xi, whose responses are four steps old."""

from __future__ import annotations

from pydantic import NonNegativeFloat

from bapo.methods.base import KL
from bapo.methods.parts.stale import Stale, StaleConfig


class GRPOStaleConfig(StaleConfig):
    kl_to: KL = "reference"
    kl_coef: NonNegativeFloat | None = None


class GRPOStale(Stale):
    Config = GRPOStaleConfig
    config: GRPOStaleConfig
    title = "+GRPO (4 steps old)"
    summary = "control: GRPO on the responses of `m2po` and `bapo_xi`, of eta = 4 steps before"
    source = "control of methods for stale responses"
