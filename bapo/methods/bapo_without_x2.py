"""BAPO without re-evaluated hard prompts (Table 1, Figure 6)."""

from __future__ import annotations

from bapo.methods.bapo import BAPO, BAPOConfig, Groups
from bapo.methods.base import MethodConfig, Sampler


class WithoutX2Config(BAPOConfig):
    unread = (
        *("m", "c1", "bad_capacity", "max_reevaluated", "x2_policy", "x2_admission", "failed_prompt"),
        "store_promoted",
    )


class BAPOWithoutX2(BAPO):
    """The batch is X1 + X3, without regeneration."""

    Config: type[MethodConfig] = WithoutX2Config
    title = "+BAPO w/o X2"
    summary = "the paper's ablation: BAPO with X1 and X3 only"
    source = "paper section 5.2, Table 1"
    cost = "1 x rollouts, fewer updates"

    @property
    def most_generated(self) -> float:
        return 1.0

    def improved_hard(self, step: int, sampler: Sampler) -> tuple[Groups, Groups]:
        return [], []
