"""AReaL: rollouts run a bounded number of steps ahead of the updates."""

from __future__ import annotations

from bapo.methods.grpo_stale import GRPOStale, StaleConfig
from bapo.methods.parts.decoupled import Decoupled, DecoupledConfig


class AReaLConfig(StaleConfig, DecoupledConfig): ...


class AReaL(GRPOStale, Decoupled):
    """Asynchronous rollouts (Fu et al. 2505.24298) as a schedule: their effect on the data, not on the clock.

    The generator fills the queue up to eta batches ahead, then makes one batch per step with the newest weights, so
    every group is the oldest that eta allows. Interrupted generation, which mixes the tokens of several policies in one
    response, is not simulated.
    """

    Config = AReaLConfig
    config: AReaLConfig
    title = "+AReaL"
    summary = "rollouts eta steps ahead of the updates, decoupled PPO loss"
    source = "Fu et al. 2505.24298"
