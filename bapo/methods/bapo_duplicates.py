"""A control: copies of fresh groups in place of BAPO's replayed ones."""

from __future__ import annotations

from bapo.algorithm.rollouts import REPLAYED
from bapo.methods.bapo import BAPO, Groups
from bapo.methods.base import Batch, Sampler


class BAPODuplicates(BAPO):
    """X3 replaced by as many duplicates of X1: do the replayed groups matter, or only the size of the batch?

    The buffers work as in BAPO, which sets the size of X3; its groups are replaced by groups of X1 drawn at random,
    each at most once before any comes twice. Duplicates count as X3 in the log.
    """

    title = "+BAPO, X3 duplicated from X1"
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
