"""A project in the current folder: an empty one, and what ``bapo init`` writes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.configs import forget

from bapo import init


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with ``bapo.yaml`` and nothing else."""
    (tmp_path / "bapo.yaml").write_text("scale: laptop\n")
    monkeypatch.chdir(tmp_path)
    forget()
    yield tmp_path
    forget()


@pytest.fixture
def example_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The example of ``bapo init``."""
    monkeypatch.delenv("BAPO_EXPERIMENTS", raising=False)
    init.write(tmp_path / "mine")
    monkeypatch.chdir(tmp_path / "mine")
    forget()
    yield tmp_path / "mine"
    forget()
