"""A project in the current folder: an empty one, and what ``bapo init`` writes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
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
def example_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Path]]:
    """Write the example of a kind of ``bapo init``, and work in its folder."""

    def write(kind: str) -> Path:
        monkeypatch.delenv("BAPO_EXPERIMENTS", raising=False)
        init.write(tmp_path / "mine", kind)
        monkeypatch.chdir(tmp_path / "mine")
        forget()
        return tmp_path / "mine"

    yield write
    forget()


@pytest.fixture
def example_project(example_of: Callable[[str], Path]) -> Path:
    return example_of("generator")
