"""BAPO without replayed groups (Table 1, Figure 6)."""

from __future__ import annotations

from bapo.algorithm.rollouts import Group
from bapo.methods.bapo import BAPO, Keys
from bapo.methods.base import Sampler


class BAPOWithoutX3(BAPO):
    """The batch is X1 + X2; an underfilled batch stays underfilled."""

    summary = "BAPO with X1 and X2 only"
    source = "paper section 5.2, Table 1"

    def high_quality(
        self, step: int, c2: float, c3: float, room: int, sampler: Sampler, taken: Keys = ()
    ) -> list[Group]:
        return []
