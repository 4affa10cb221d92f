"""The data job (a task's problems as parquet files with a summary), and what later jobs find before they begin."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bapo import tasks
from bapo.errors import UserError
from bapo.experiments.identity import base_identity, data_identity
from bapo.experiments.places import base_directory, data_directory
from bapo.store.files import SUMMARY, fingerprints, verify_files, write_json
from bapo.store.lock import made_aside
from bapo.tasks.base import Task
from bapo.tasks.checks import grade_golds
from bapo.tasks.files import read_problems

if TYPE_CHECKING:
    from bapo.experiments.schema import Config
    from bapo.store.files import Json


def data_folder(config: Config) -> Path:
    """Return the folder of the problems. Raises UserError where they are missing, damaged, or of other settings."""
    return _finished(data_directory(config), data_identity(config), "problems", "data")


def base_folder(config: Config) -> Path:
    """Return the folder of a base model trained from scratch. Raises UserError as :func:`data_folder` does."""
    return _finished(base_directory(config), base_identity(config), "base model", "base")


def _finished(folder: Path, identity: str, what: str, job: str) -> Path:
    if not (folder / SUMMARY).exists() or verify_files(folder).get("identity") != identity:
        raise UserError(f"{folder}: no {what} of this configuration; run `bapo {job}` with the same keys")
    return folder


def make_data(config: Config) -> Json:
    """Write the problems into ``places.data_directory``. Returns their summary: identity, counts, golds, fingerprints.

    Problems of another configuration are moved out of the way, as runs are, once the new ones are complete.

    Raises UserError where the problems cannot be had, or the task's verifier refuses a gold.
    """
    folder = data_directory(config)
    identity = data_identity(config)
    with made_aside(folder, identity) as new:
        task = tasks.get(config.task.name)
        counts = task.write_data(config, new)
        files = sorted(f"{name}.parquet" for name in config.data.split_sizes if name != "base")
        golds = {}
        for name in config.data.split_sizes:
            if name in task.benchmarks:
                problems = [(p.id, p.ground_truth) for p in read_problems(new / f"{name}.parquet")]
                golds[name] = check_golds(task, problems, f"split {name}")
        summary = {"identity": identity, "problems": counts, "golds": golds, "files": fingerprints(new, files)}
        write_json(new / SUMMARY, summary)
    for split, parts in counts.items():
        print(f"{split}: {', '.join(f'{count} {name}' for name, count in parts.items())}", file=sys.stderr)
    return summary


def check_golds(task: Task, problems: Sequence[tuple[str, str]], where: str) -> int:
    """Grade all gold responses: a verifier must accept what its own ground truths say, or no accuracy means anything.

    problems: (id, ground truth); where: the file or set, for the message. Returns the number of gold responses; zero
    where the task knows none. Raises UserError naming the first problem whose gold is not accepted.
    """
    graded = 0
    for row, (name, truth) in enumerate(problems):
        try:
            graded += grade_golds(task, truth)
        except UserError as error:
            raise UserError(f"{where}: row {row} ({name}): {error}") from error
    return graded
