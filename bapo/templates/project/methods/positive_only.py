"""An example of a method: GRPO on the groups that were solved at least once."""

from __future__ import annotations

from bapo.methods.base import Batch, Method


class PositiveOnly(Method):
    title = "Positive only"
    summary = "GRPO on groups that were solved at least once"
    source = "an example"

    def build_batch(self, step, fresh, sampler):
        solved = [group for group in fresh if group.mean > 0]
        return Batch(solved, [(group, "never solved") for group in fresh if group.mean == 0])
