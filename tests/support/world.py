"""A tiny world: the settings with which a run takes about a second."""

from __future__ import annotations

#: the smoke scale with shorter runs: about a second each. The base is smoke's own: one trained for less solves nothing,
#: and a run without a single reward would test nothing
TINY = (
    "scale=smoke",
    "tracking=none",
    "data.split_sizes={base: 12000, train: 48, probe: 8, cd34: 6, cd4: 6}",
    "train.steps=6",
    "train.batch_size=8",
    "train.mini_batch_size=4",
    "train.group_size=8",
    "checkpoint.every=2",
    "checkpoint.keep_state=true",  # tests go back to a finished run's checkpoints
    "probe.prompts=4",
    "probe.samples=4",
    "probe.points=3",
    "evaluation.samples=32",
)
