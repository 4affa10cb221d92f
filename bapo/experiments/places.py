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


def run_folder(home: Path, task: str, model: str, method: str, seed: int | str) -> Path:
    """Return the folder of a run in ``home``, a scale's results. Snakemake's rules pass patterns such as "{task}"."""
    return home / task / model / method / f"seed{seed}"


def base_folder(home: Path, task: str, model: str) -> Path:
    return home / task / model / "base"


def data_folder(home: Path, task: str) -> Path:
    return home / task / "data"


def scale_directory(scale: str, engine: str, scale_engine: str) -> str:
    """Return the scale's name; runs through another engine than its own do not overwrite its results."""
    return scale if engine == scale_engine else f"{scale}-{engine}"


def home(config: DictConfig) -> Path:
    """Return results/<scale>, which holds everything at the configuration's scale."""
    return Path(config.paths.results, scale_directory(config.scale.name, config.engine, config.scale.engine))


def run_directory(config: DictConfig, method: str | None = None) -> Path:
    """Return results/<scale>/<task>/<model>/<method>/seed<k>; method: another one's of the same base and seed."""
    return run_folder(home(config), config.task.name, config.model.name, method or config.method.name, config.seed)


def base_directory(config: DictConfig) -> Path:
    return base_folder(home(config), config.task.name, config.model.name)


def data_directory(config: DictConfig) -> Path:
    return data_folder(home(config), config.task.name)
