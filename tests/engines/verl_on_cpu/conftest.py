"""The world of the real runs, made once for all workers, and the end of what a failed test leaves."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.verl_jobs import SETTINGS, end_all
from support.world import made_once, start_of


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A results folder with data and a base model that solves a few problems."""
    return made_once(tmp_path_factory, "verl_world", lambda folder: start_of([*SETTINGS, f"paths.results={folder}"]))


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
