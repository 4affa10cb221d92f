"""Change a composed configuration, and the files that it is composed from."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from omegaconf import DictConfig

from bapo.experiments import compose, places


def put(config: Any, key: str, value: Any) -> None:
    """Set ``a__b`` or ``a.b``, in a mapping also where it is new."""
    *parents, name = key.replace("__", ".").split(".")
    for parent in parents:
        config = getattr(config, parent)
    if isinstance(value, dict) and isinstance(getattr(config, name), DictConfig):
        value = DictConfig(value)
    setattr(config, name, value)


def changed(config: Any, **values: Any) -> Any:
    """Return a copy with some keys set; ``a__b`` stands for a.b."""
    config = config.copy()
    for key, value in values.items():
        put(config, key, value)
    return config


@pytest.fixture
def experiments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of experiments/ that a test may change."""
    copy = Path(shutil.copytree(places.EXPERIMENTS, tmp_path / "experiments"))
    monkeypatch.setattr(places, "EXPERIMENTS", copy)
    forget()
    yield copy
    forget()


def edit(path: Path, old: str, new: str) -> None:
    """Replace what must stand in the file once."""
    text = path.read_text(encoding="utf-8")
    assert text.count(old) == 1, f"{path} must contain {old!r} once"
    path.write_text(text.replace(old, new), encoding="utf-8")


def forget() -> None:
    """Have ``experiments/`` read anew: what was composed before is kept for the life of the process."""
    compose._config_of.cache_clear()
    compose._start.cache_clear()
