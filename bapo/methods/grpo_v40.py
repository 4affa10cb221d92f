"""A control: GRPO in the stages of mu_grpo, in each of which one policy generates all responses."""

from __future__ import annotations

from pydantic import PositiveInt

from bapo.methods.base import Centre, Phase
from bapo.methods.parts.delayed import DelayedConfig, DelayedGRPO


class GRPOv40Config(DelayedConfig):
    v: PositiveInt = 40
    sync_phase: Phase = "first"
    clip_centre: Centre = "one"


class GRPOv40(DelayedGRPO):
    Config = GRPOv40Config
    title = "+GRPO (v = 40)"
    summary = "control: GRPO on the responses of `mu_grpo`, whose rollout policy serves v = 40 steps"
    source = "control of methods for stale responses"
