"""BAPO without one of its parts, and two controls of its replayed groups (Table 1, Figure 6, eq. 5)."""

from __future__ import annotations

from dataclasses import replace

from bapo.algorithm.rollouts import REPLAYED
from bapo.methods.bapo import BAPO, Groups
from bapo.methods.base import Batch, Sampler


class BAPOWithoutX2(BAPO):
    """The batch is X1 + X3, without regeneration."""

    summary = "BAPO with X1 and X3 only"
    source = "paper section 5.2, Table 1"
    cost = "1 x rollouts, fewer updates"

    def improved_hard(self, step: int, sampler: Sampler) -> tuple[Groups, Groups]:
        return [], []


class BAPOWithoutX3(BAPO):
    """The batch is X1 + X2; an underfilled batch stays underfilled."""

    summary = "BAPO with X1 and X2 only"
    source = "paper section 5.2, Table 1"

    def high_quality(self, step: int, c2: float, c3: float, room: int, x1: Groups) -> Groups:
        return []


class BAPOWithX1Only(BAPOWithoutX2, BAPOWithoutX3):
    """The batch is X1: what is left of BAPO is the delay, the filter, the clip interval at 1 and the KL to alpha."""

    summary = "BAPO with X1 only"
    source = "control of paper eq. 5"
    cost = "1 x rollouts, fewer updates"


class BAPODuplicates(BAPO):
    """X3 replaced by as many duplicates of X1: do the replayed groups matter, or only the size of the batch?

    The buffers work as in BAPO, which sets the size of X3; its groups are replaced by groups of X1 drawn at random,
    each at most once before any comes twice. Duplicates count as X3 in the log.
    """

    summary = "control: BAPO whose X3 are duplicates of X1"
    source = "control of paper eq. 5"

    def build_batch(self, step: int, fresh: Groups, sampler: Sampler) -> Batch:
        batch = super().build_batch(step, fresh, sampler)
        x3 = [g for g in batch.groups if g.origin == REPLAYED]
        others = [g for g in batch.groups if g.origin != REPLAYED]
        pool = self.filtered_fresh(step, fresh)
        rng = self.random("duplicates", step)
        order = [i for _ in range(-(-len(x3) // len(pool))) for i in rng.permutation(len(pool))] if pool else []
        batch.groups = others + self.replayed([pool[i] for i in order[: len(x3)]])
        return batch


class BAPOShuffled(BAPO):
    """Each replayed prompt gets the responses and rewards of another.

    This must hurt; otherwise X3 does not act through the content of its responses. A single replayed group has no
    partner and is dropped.
    """

    summary = "control: BAPO whose replayed responses are shuffled between prompts"
    source = "control of paper eq. 5"

    def high_quality(self, step: int, c2: float, c3: float, room: int, x1: Groups) -> Groups:
        chosen = super().high_quality(step, c2, c3, room, x1)
        if len(chosen) < 2:
            return []
        order = self.random("shuffled", step).permutation(len(chosen))
        # each takes the place of the next in a random circle, so that none keeps its responses
        other = dict(zip(order.tolist(), [*order[1:].tolist(), int(order[0])], strict=True))
        return [
            replace(g, rewards=chosen[other[i]].rewards, samples=chosen[other[i]].samples) for i, g in enumerate(chosen)
        ]
