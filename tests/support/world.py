"""A tiny world: the settings with which a run takes about a second."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from filelock import FileLock

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


def made_once(paths: pytest.TempPathFactory, name: str, overrides: Sequence[str]) -> Path:
    """Return a results folder with data and base model of a configuration, which one worker makes for all."""
    from bapo.engines.torch.base import train_base
    from bapo.experiments.compose import compose_config
    from bapo.tasks.job import make_data

    home = paths.getbasetemp()
    home = home.parent if "PYTEST_XDIST_WORKER" in os.environ else home
    with FileLock(home / f"{name}.lock"):
        if not (home / name).exists():
            config = compose_config([*overrides, f"paths.results={home / name}.part"])
            make_data(config)
            train_base(config)
            (home / f"{name}.part").rename(home / name)
    return home / name
