"""A control: dynamic sampling fills the batch with fresh groups."""

from __future__ import annotations

from functools import partial

from bapo.methods.bapo import Groups
from bapo.methods.bapo_x1 import BAPOWithX1Only
from bapo.methods.base import Batch, Sampler
from bapo.methods.dapo import DAPOConfig, dynamic_sampling

MOST_BATCHES = DAPOConfig().max_generation_batches  #: that are generated in a step


class BAPOFilled(BAPOWithX1Only):
    """X1 filled up by dynamic sampling, as DAPO's batch: the most that X2 and X3 could add by filling the batch.

    Loss, clip interval and KL are BAPO's, so that DAPO's batch stands apart from DAPO's loss. Further prompts are
    answered by the rollout policy.
    """

    title = "+BAPO, X1 filled"
    summary = "control that should gain: BAPO whose batch is filled with new samples"
    source = "control of paper eq. 5; DAPO's dynamic sampling"
    cost = "1 to 4 x rollouts"

    @property
    def draws_next_prompts(self) -> bool:
        """Return False: how many prompts a step draws further depends on its groups."""
        return False

    @property
    def most_generated(self) -> float:
        return MOST_BATCHES

    def build_batch(self, step: int, fresh: Groups, sampler: Sampler) -> Batch:
        keep = partial(self.filtered_fresh, step)
        groups, all_groups, _ = dynamic_sampling(fresh, keep, sampler, self.batch_size, MOST_BATCHES, policy="rollout")
        batch = self.batch(all_groups, groups, [], [], [])
        batch.groups, surplus = groups[: self.batch_size], groups[self.batch_size :]
        batch.rejected += [(g, "batch full") for g in surplus]
        return batch
