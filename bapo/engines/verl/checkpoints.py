"""Which of verl's checkpoints a run goes on from: every file has its checksum, and a damaged one is passed over.

Nothing here imports verl or torch: the launcher decides before it starts a job.
"""

from __future__ import annotations

import os
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from bapo.errors import UserError
from bapo.store.files import CHECKSUMS, damaged_files, fingerprints, read_json, write_json, write_text

#: verl's own file: the step that it resumes from
TRACKER = "latest_checkpointed_iteration.txt"
#: trainer states kept: the newest, and one to fall back on
KEPT = 2
#: files are read by so many threads (one rank's shard is a file of its own)
THREADS = 8
PREFIX = "global_step_"
#: the prompts of the probe and of the validation, beside the checkpoints
VALIDATION = "validation.parquet"
#: verl's copy of the weights in Hugging Face format, within its checkpoint
PUBLISHED = "actor/huggingface"


def root_of(run: Path) -> Path:
    """Return the folder of verl's checkpoints of a run."""
    return run.absolute() / "checkpoints" / "verl"


def folder_of(root: Path, step: int) -> Path:
    return root / f"{PREFIX}{step}"


def steps(root: Path) -> list[int]:
    """Return the steps with a folder, newest first."""
    names = [p.name.removeprefix(PREFIX) for p in root.glob(f"{PREFIX}*")]
    return sorted((int(name) for name in names if name.isdigit()), reverse=True)


def write_checksums(folder: Path) -> dict[str, Any]:
    """Write the fingerprints of every file below ``folder`` beside them: from here on the checkpoint is complete."""
    names = sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file() and p.name != CHECKSUMS)
    with ThreadPoolExecutor(THREADS) as pool:
        parts = list(pool.map(lambda name: fingerprints(folder, [name]), names))
    files = {name: entry for part in parts for name, entry in part.items()}
    write_json(folder / CHECKSUMS, files)
    return files


def damage(folder: Path) -> list[str]:
    """Say what is wrong with a checkpoint, a sentence each."""
    try:
        files = read_json(folder / CHECKSUMS)
    except UserError:
        return [f"{folder} was not written to its end"]
    with ThreadPoolExecutor(THREADS) as pool:
        parts = pool.map(lambda item: damaged_files(folder, dict([item])), files.items())
        return [problem for part in parts for problem in part]


def choose(root: Path) -> int | None:
    """Point verl to the newest intact checkpoint; damaged ones are named on stderr. None: begin at the start."""
    for step in steps(root):
        problems = damage(folder_of(root, step))
        if not problems:
            write_text(root / TRACKER, str(step))
            return step
        print(f"warning: {problems[0]}; this checkpoint is not used, going back to the one before", file=sys.stderr)
    (root / TRACKER).unlink(missing_ok=True)
    return None


def commit(source: Path, run: Path, step: int, keep: DictConfig) -> None:
    """Complete verl's checkpoint ``source`` with checksums, publish its model and thin out older checkpoints.

    keep: the configuration's ``checkpoint``.
    """
    write_checksums(source)
    publish(source, run, step, keep)
    for old in [s for s in steps(source.parent) if s <= step][KEPT:]:  # damaged later ones do not count
        shutil.rmtree(folder_of(source.parent, old))


def publish(source: Path, run: Path, step: int, keep: DictConfig) -> None:
    """Copy the Hugging Face model in verl's checkpoint ``source`` to ``checkpoints/step_000100`` of the run.

    Earlier ones stay as ``keep``, the configuration's ``checkpoint``, says; those written because of the time do not.
    """
    target = run / "checkpoints" / f"step_{step:06d}"
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    shutil.copytree(source / PUBLISHED, temporary)
    written = read_json(source / CHECKSUMS)
    published = {n.removeprefix(f"{PUBLISHED}/"): f for n, f in written.items() if n.startswith(f"{PUBLISHED}/")}
    write_json(temporary / CHECKSUMS, published)
    if target.exists():
        shutil.rmtree(target)
    os.replace(temporary, target)
    for old in (run / "checkpoints").glob("step_*"):
        kept = keep.keep_models and int(old.name.removeprefix("step_")) % keep.every == 0
        if old != target and not kept:
            shutil.rmtree(old)
