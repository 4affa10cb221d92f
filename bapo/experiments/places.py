"""Folders: where configurations are read from, and where results go."""

from __future__ import annotations

import os
from pathlib import Path

from omegaconf import DictConfig

#: The Hydra tree. It lies beside the package in a checkout; BAPO_EXPERIMENTS names another one.
EXPERIMENTS = Path(os.environ.get("BAPO_EXPERIMENTS", Path(__file__).resolve().parents[2] / "experiments"))


def options(group: str) -> list[str]:
    """List the names that ``group=...`` accepts."""
    return sorted(p.stem for p in (EXPERIMENTS / group).glob("*.yaml"))


def run_directory(config: DictConfig, method: str | None = None) -> Path:
    """Name results/<scale>/<task>/<model>/<method>/seed<k>. method: another method's run of the same base and seed."""
    return model_directory(config) / (method or config.method.name) / f"seed{config.seed}"


def model_directory(config: DictConfig) -> Path:
    return task_directory(config) / config.model.name


def task_directory(config: DictConfig) -> Path:
    return Path(config.paths.results) / scale_directory(config) / config.task.name


def scale_directory(config: DictConfig) -> str:
    """Name the folder of a configuration's scale and engine."""
    return scale_folder(config.scale.name, config.scale.engine, config.engine)


def scale_folder(scale: str, usual: str, engine: str) -> str:
    """Name a scale's folder; an engine other than the scale's ``usual`` one does not overwrite its results."""
    return scale if engine == usual else f"{scale}-{engine}"


def base_directory(config: DictConfig) -> Path:
    return model_directory(config) / "base"


def data_directory(config: DictConfig) -> Path:
    return task_directory(config) / "data"
