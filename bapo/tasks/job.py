"""The data job (a task's problems as parquet files with a summary), and what later jobs find before they begin."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from omegaconf import DictConfig
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException

from bapo import tasks
from bapo.errors import UserError, unknown
from bapo.experiments import places
from bapo.experiments.identity import base_identity, data_identity
from bapo.experiments.places import base_directory, data_directory
from bapo.store.files import SUMMARY, damaged_files, fingerprints, read_json, require_space, verify_files, write_json
from bapo.store.lock import remade
from bapo.tasks.base import Progress
from bapo.tasks.files import read_problems
from bapo.tasks.real import golds


def data_folder(config: DictConfig) -> Path:
    """Return the folder of the problems that ``config`` asks for.

    Raises UserError where they are missing, or were made under another configuration.
    """
    folder = data_directory(config)
    command = f"python -m bapo data scale={config.scale.name} task={config.task.name}"
    if not (folder / SUMMARY).exists():
        raise UserError(f"{folder}: the problems are missing; make them first with `{command}`")
    summary = read_json(folder / SUMMARY)
    problems = damaged_files(folder, summary.get("files", {}))
    if problems:
        raise UserError(f"{problems[0]}; make the problems again: `{command}`")
    if summary.get("identity") != data_identity(config):
        raise UserError(f"{folder}: the problems were made under another configuration; make them again: `{command}`")
    return folder


def base_folder(config: DictConfig) -> Path:
    """Return the folder of the base model of ``config``, whose model is trained from scratch.

    Raises UserError where it is missing, damaged, or was trained under another configuration.
    """
    folder = base_directory(config)
    if not (folder / SUMMARY).exists():
        names = f"scale={config.scale.name} task={config.task.name} model={config.model.name}"
        raise UserError(f"{folder}: the base model is missing; train it first with `python -m bapo base {names}`")
    if verify_files(folder)["identity"] != base_identity(config):
        raise UserError(f"{folder}: the base model was trained under another configuration; train it again")
    return folder


def make_data(config: DictConfig, progress: Progress | None = None) -> dict[str, Any]:
    """Write ``results/<scale>/<task>/data/``. Returns its summary: identity, problems a split, fingerprints.

    progress: called with a line of text for what was found and written. Raises UserError.
    """
    if config.data.cleaning and config.data.source != "hub":
        raise UserError("data.cleaning: decisions on the real sets; data.source=generated has none, remove them")
    folder = data_directory(config)
    identity = data_identity(config)
    require_space(folder, 200_000_000 if config.data.source == "hub" else 50_000_000)  # diagrams
    with remade(folder, identity):
        task = tasks.get(config.task.name)
        try:
            counts = task.write_data(config, folder, progress)
        except (ConfigKeyError, ConfigAttributeError) as error:
            raise lacking(config, error) from None
        files = sorted(f"{name}.parquet" for name in config.data.split_sizes if name != "base")
        for stale in {p.name for p in folder.glob("*.parquet")} - set(files):  # of an earlier configuration
            (folder / stale).unlink()
        benchmarks = {n: folder / f"{n}.parquet" for n in config.data.split_sizes if n in task.benchmarks}
        truths = {n: [(p.id, p.ground_truth) for p in read_problems(path)] for n, path in benchmarks.items()}
        summary = {
            "identity": identity,
            "problems": counts,
            "golds": {name: golds.check(task, truths[name], path) for name, path in benchmarks.items()},
            "files": fingerprints(folder, files),
        }
        write_json(folder / SUMMARY, summary)
    return summary


def lacking(config: DictConfig, error: OmegaConfBaseException) -> UserError:
    """Return the error of a key that a task reads and its setting does not have."""
    read = {f"data.{name}": getattr(config.data, name) for name in ("generator", "hub", "split_sizes")}
    whole = error.parent_node._get_root() if error.parent_node is not None else None
    root = next((name for name, node in read.items() if node is whole), "data")
    parent, _, name = f"{root}.{error.full_key}".rpartition(".")
    there = list(error.parent_node or ())
    setting = places.file_of("setting", f"{config.scale.name}_{config.task.name}")
    what = f"task {config.task.name} reads '{name}', which is not there"
    return UserError(unknown(f"{setting}: {parent}", what, name, there or ["no key"]))


def golds_checked(config: DictConfig) -> dict[str, int]:
    """Return the gold answers that the grader has accepted by benchmark, from the data job's summary."""
    return read_json(data_directory(config) / SUMMARY).get("golds", {})
