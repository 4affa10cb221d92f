"""BAPO with X1 alone."""

from __future__ import annotations

from bapo.methods.bapo import BAPOConfig
from bapo.methods.bapo_without_x2 import BAPOWithoutX2, WithoutX2Config
from bapo.methods.bapo_without_x3 import BAPOWithoutX3, WithoutX3Config


class X1OnlyConfig(BAPOConfig):
    unread = (*WithoutX2Config.unread, *WithoutX3Config.unread, "stored_first", "expectations")


class BAPOWithX1Only(BAPOWithoutX2, BAPOWithoutX3):
    """The batch is X1: what is left of BAPO is the delay, the filter, the clip interval at 1 and the KL to alpha."""

    Config = X1OnlyConfig
    title = "+BAPO, X1 only"
    summary = "control: BAPO's stale sampling, filter, clip interval and KL, without its buffers"
    source = "control of paper eq. 5"
