"""BAPO without re-evaluated hard prompts (Table 1, Figure 6)."""

from __future__ import annotations

from bapo.algorithm.rollouts import Group
from bapo.methods.bapo import BAPO
from bapo.methods.base import Sampler


class BAPOWithoutX2(BAPO):
    """The batch is X1 + X3, without regeneration."""

    summary = "BAPO with X1 and X3 only"
    source = "paper section 5.2, Table 1"
    cost = "1 x rollouts, fewer updates"

    def improved_hard(self, step: int, sampler: Sampler, room: int) -> tuple[list[Group], list[Group]]:
        return [], []
