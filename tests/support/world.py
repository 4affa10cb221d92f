"""Worlds that many tests read: a tiny one, in which a run takes about a second, and the results of a whole workflow."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from filelock import FileLock

from bapo.experiments.compose import compose_config
from bapo.experiments.schema import Config
from support.workflow import SMALL, snakemake

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


def made_once(paths: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """Return a folder of this session's workers that the first one to ask has made; ``make`` is given it empty."""
    home = paths.getbasetemp()
    home = home.parent if "PYTEST_XDIST_WORKER" in os.environ else home
    with FileLock(home / f"{name}.lock"):
        if not (home / name).exists():
            part = home / f"{name}.part"
            part.mkdir()
            make(part)
            part.rename(home / name)
    return home / name


def start_of(overrides: Sequence[str]) -> Config:
    """Make data and base model of a configuration, which is returned."""
    from bapo.engines.torch.base_model import train_base
    from bapo.tasks.job import make_data

    config = compose_config(list(overrides))
    make_data(config)
    train_base(config)
    return config


# ------------------------------------------------------------------------------------------------ a whole workflow

#: Table 1 in a minute or two: three tasks, each with a base model, three methods and one seed
SMOKE_SET = f"set={[*SMALL, 'base.iterations=300', 'train.steps=4', 'evaluation.samples=4']}"
SMOKE = ("--config", "scale=smoke", "methods=[grpo,dapo,bapo]", "seeds=[1]", "tracking=none", SMOKE_SET)


def table1_of(folder: Path) -> None:
    """Make it through Snakemake, as an account without a home does in which no language is set."""
    bare = {"LC_ALL": "C", "HOME": "/proc/nowhere", "XDG_CACHE_HOME": str(folder / "cache")}
    done = snakemake(folder, "--cores", "2", "table1", *SMOKE, **bare)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
