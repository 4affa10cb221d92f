"""BAPO without replayed groups (Table 1, Figure 6)."""

from __future__ import annotations

from bapo.methods.bapo import BAPO, BAPOConfig, Groups
from bapo.methods.base import MethodConfig


class WithoutX3Config(BAPOConfig):
    unread = (
        *("c2_range", "c3_range", "threshold_direction", "average_reward", "average_decay", "high_steps"),
        *("high_capacity", "high_admission", "store_promoted", "x3_filter", "remove_replayed"),
    )


class BAPOWithoutX3(BAPO):
    """The batch is X1 + X2; an underfilled batch stays underfilled."""

    Config: type[MethodConfig] = WithoutX3Config
    title = "+BAPO w/o X3"
    summary = "the paper's ablation: BAPO with X1 and X2 only"
    source = "paper section 5.2, Table 1"

    def high_quality(self, step: int, c2: float, c3: float, room: int, x1: Groups) -> Groups:
        return []
