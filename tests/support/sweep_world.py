"""A small sweep over the tiny world's runs, for the tests of sweeps and of their report."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from bapo.experiments import compose as configuration
from bapo.experiments import places
from bapo.experiments.settings import Settings

FREE: dict[str, Any] = {
    "title": "Tiny",
    "tasks": ["countdown"],
    "space": {
        "method.v": {"type": "int", "low": 1, "high": 6, "title": "refresh period v"},
        "method.c1": {"type": "float", "low": 0.0, "high": 0.5, "step": 0.125},
    },
    "start": {"method.v": 5, "method.c1": 0.125},
    "scales": {"smoke": {"trials": 3, "seeds": [1, 2]}},
}


class SweepWorld:
    """Sweep files in a copy of ``experiments/`` and settings with which the product's own commands find them."""

    def __init__(self, folder: Path, overrides: Sequence[str], monkeypatch: pytest.MonkeyPatch) -> None:
        self.experiments = folder / "experiments"
        shutil.copytree(places.EXPERIMENTS, self.experiments)
        shutil.rmtree(self.experiments / "sweep")
        (self.experiments / "sweep").mkdir()
        monkeypatch.setattr(places, "EXPERIMENTS", self.experiments)
        configuration.forget()
        given = dict(word.partition("=")[::2] for word in overrides)
        self.results = Path(given.pop("paths.results"))
        scale, tracking = given.pop("scale"), given.pop("tracking")
        self.settings = Settings(
            scale=scale, tracking=tracking, results=str(self.results), set=tuple(f"{k}={v}" for k, v in given.items())
        )

    def write(self, content: dict[str, Any], **changes: Any) -> None:
        """Write the file of the sweep ``tiny_countdown``."""
        path = self.experiments / "sweep" / "tiny.yaml"
        path.write_text(yaml.safe_dump(content | changes, sort_keys=False), encoding="utf-8")

    def worker(self, name: str, slot: int) -> subprocess.Popen[str]:
        """A slot as a job of the workflow runs it."""
        command = [sys.executable, "-m", "bapo", "sweep", name, "--slot", str(slot)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "BAPO_EXPERIMENTS": str(self.experiments)}
        return subprocess.Popen(
            [*command, "--settings", self.settings.as_json()], stderr=subprocess.PIPE, text=True, env=environment
        )
