"""The data job: a task's problems as parquet files with a summary."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from bapo import config as configuration
from bapo import runs, tasks
from bapo.errors import UserError


def data_folder(config: DictConfig) -> Path:
    """The folder of the problems that ``config`` asks for.

    Raises UserError where they are missing, or were made under another configuration.
    """
    folder = configuration.data_directory(config)
    command = f"python -m bapo data scale={config.scale.name} task={config.task.name}"
    if not (folder / runs.SUMMARY).exists():
        raise UserError(f"{folder}: the problems are missing; make them first with `{command}`")
    summary = runs.read_json(folder / runs.SUMMARY)
    problems = runs.damaged_files(folder, summary.get("files", {}))
    if problems:
        raise UserError(f"{problems[0]}; make the problems again: `{command}`")
    if summary.get("identity") != configuration.data_identity(config):
        raise UserError(f"{folder}: the problems were made under another configuration; make them again: `{command}`")
    return folder


def make_data(config: DictConfig) -> dict[str, Any]:
    """Write ``results/<scale>/<task>/data/``. Returns its summary: identity, problems a split, fingerprints."""
    folder = configuration.data_directory(config)
    with runs.locked(folder):
        runs.require_space(folder, 50_000_000)
        (folder / runs.SUMMARY).unlink(missing_ok=True)  # until the new one is written, nothing here is finished
        counts = tasks.get(config.task.name).write_data(config, folder)
        files = sorted(p.name for p in folder.glob("*.parquet"))
        summary = {
            "identity": configuration.data_identity(config),
            "problems": counts,
            "files": runs.fingerprints(folder, files),
        }
        runs.write_json(folder / runs.SUMMARY, summary)
    return summary
