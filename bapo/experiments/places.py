"""Where configurations are read from and results are written to."""

from __future__ import annotations

import os
from pathlib import Path

from omegaconf import DictConfig

#: The Hydra tree. It lies beside the package in a checkout; BAPO_EXPERIMENTS names another one.
EXPERIMENTS = Path(os.environ.get("BAPO_EXPERIMENTS", Path(__file__).resolve().parents[2] / "experiments"))


def options(group: str) -> list[str]:
    """The names that ``group=...`` accepts."""
    return sorted(p.stem for p in (EXPERIMENTS / group).glob("*.yaml"))


def run_directory(config: DictConfig, method: str | None = None) -> Path:
    """results/<scale>/<task>/<model>/<method>/seed<k>; method: another one's run of the same base and seed."""
    return model_directory(config) / (method or config.method.name) / f"seed{config.seed}"


def model_directory(config: DictConfig) -> Path:
    return task_directory(config) / config.model.name


def task_directory(config: DictConfig) -> Path:
    return Path(config.paths.results) / scale_directory(config) / config.task.name


def scale_directory(config: DictConfig) -> str:
    """The scale's name; a run through another engine than the scale's own does not overwrite its results."""
    own = config.engine == config.scale.engine
    return config.scale.name if own else f"{config.scale.name}-{config.engine}"


def base_directory(config: DictConfig) -> Path:
    return model_directory(config) / "base"


def data_directory(config: DictConfig) -> Path:
    return task_directory(config) / "data"
