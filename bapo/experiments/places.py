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


def run_folder(home: Path, task: str, model: str, method: str, seed: int | str) -> Path:
    """Name the folder of a run in ``home``, a scale's results. Snakemake's rules pass patterns such as "{task}"."""
    return home / task / model / method / f"seed{seed}"


def base_folder(home: Path, task: str, model: str) -> Path:
    return home / task / model / "base"


def data_folder(home: Path, task: str) -> Path:
    return home / task / "data"


def scale_folder(scale: str, usual: str, engine: str) -> str:
    """Name a scale's folder; an engine other than the scale's ``usual`` one does not overwrite its results."""
    return scale if engine == usual else f"{scale}-{engine}"


def home(config: DictConfig) -> Path:
    """Name results/<scale>, which holds everything at the configuration's scale."""
    return Path(config.paths.results, scale_folder(config.scale.name, config.scale.engine, config.engine))


def run_directory(config: DictConfig, method: str | None = None) -> Path:
    """Name results/<scale>/<task>/<model>/<method>/seed<k>. method: another method's run of the same base and seed."""
    return run_folder(home(config), config.task.name, config.model.name, method or config.method.name, config.seed)


def base_directory(config: DictConfig) -> Path:
    return base_folder(home(config), config.task.name, config.model.name)


def data_directory(config: DictConfig) -> Path:
    return data_folder(home(config), config.task.name)
