"""A control: BAPO that fills its batch with copies of fresh groups instead of replayed ones."""

from __future__ import annotations

from bapo.algorithm.rollouts import REPLAYED, Group
from bapo.methods.bapo import BAPO
from bapo.methods.base import Batch, Sampler


class BAPODuplicates(BAPO):
    """X3 replaced by as many duplicates of X1: is it the replayed groups, or only the size of the batch?

    The buffers work as ever, so that X3's number is BAPO's own; its groups give way to groups of X1 drawn at random,
    each at most once before any comes twice. Duplicates count as X3 in the log.
    """

    summary = "control: BAPO whose X3 are duplicates of X1"
    source = "control of paper eq. 5"

    def build_batch(self, step: int, fresh: list[Group], sampler: Sampler) -> Batch:
        batch = super().build_batch(step, fresh, sampler)
        x3 = [g for g in batch.groups if g.origin == REPLAYED]
        others = [g for g in batch.groups if g.origin != REPLAYED]
        pool = self.filtered_fresh(step, fresh)
        rng = self.random("duplicates", step)
        order = [i for _ in range(-(-len(x3) // len(pool))) for i in rng.permutation(len(pool))] if pool else []
        batch.groups = others + self.replayed([pool[i] for i in order[: len(x3)]])
        return batch
