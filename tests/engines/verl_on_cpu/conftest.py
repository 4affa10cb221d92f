"""The world of the real runs, made once for all workers, and the end of what a failed test leaves."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from filelock import FileLock
from support.verl_jobs import SETTINGS, end_all

from bapo.experiments.compose import compose_config


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A results folder with data and a base model that solves a few problems."""
    home = tmp_path_factory.getbasetemp()
    home = home.parent if "PYTEST_XDIST_WORKER" in os.environ else home
    with FileLock(home / "verl_world.lock"):
        if not (home / "verl_world").exists():
            from bapo.engines.torch.base import train_base
            from bapo.tasks.job import make_data

            config = compose_config([*SETTINGS, f"paths.results={home / 'verl_world.part'}"])
            make_data(config)
            train_base(config)
            (home / "verl_world.part").rename(home / "verl_world")
    return home / "verl_world"


@pytest.fixture
def results(base: Path, tmp_path: Path) -> Path:
    """The base's world for both engines, whose results lie in folders of their own."""
    shutil.copytree(base, tmp_path / "results")
    shutil.copytree(base / "smoke", tmp_path / "results" / "smoke-verl")
    return tmp_path / "results"


@pytest.fixture(autouse=True)
def no_stray_jobs() -> Iterator[None]:
    yield
    end_all()
