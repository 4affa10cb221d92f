"""Chooses the verl checkpoint that a run resumes from, and publishes models. It imports neither verl nor Ray.

A checkpoint is complete once the checksums of its files are written, and a damaged one is passed over.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

from bapo.engines.shared.records import model_folder, model_steps
from bapo.engines.shared.schedule import keeps_model, superseded
from bapo.experiments.schema import CheckpointConfig
from bapo.store.files import CHECKSUMS, newest_intact, read_json, sync, write_checksums, write_json, write_text

#: verl's file with the step that it resumes from
TRACKER = "latest_checkpointed_iteration.txt"
PREFIX = "global_step_"
#: the file beside the checkpoints with the prompts that verl validates on
PROBED = "probe.parquet"
#: verl's copy of the weights in Hugging Face format, within its checkpoint
PUBLISHED = "actor/huggingface"


def root_of(run: Path) -> Path:
    """Return the folder of verl's checkpoints of a run."""
    return run.absolute() / "checkpoints" / "verl"


def folder_of(root: Path, step: int) -> Path:
    return root / f"{PREFIX}{step}"


def steps(root: Path) -> list[int]:
    """Return the steps that have a folder, newest first."""
    names = [p.name.removeprefix(PREFIX) for p in root.glob(f"{PREFIX}*")]
    return sorted((int(name) for name in names if re.fullmatch("[0-9]+", name)), reverse=True)


def choose(root: Path) -> int | None:
    """Make verl resume from the newest intact checkpoint. Returns its step, or None where verl begins at the start."""
    folder = newest_intact(folder_of(root, step) for step in steps(root))
    if folder is None:
        (root / TRACKER).unlink(missing_ok=True)
        return None
    step = folder.name.removeprefix(PREFIX)
    write_text(root / TRACKER, step)
    return int(step)


def ranks(folder: Path) -> int | None:
    """Return how many processes a checkpoint is of, by the names of its shards; None where it has none."""
    names = (re.fullmatch(r"model_world_size_(\d+)_rank_0\.pt", path.name) for path in (folder / "actor").glob("*.pt"))
    return next((int(name[1]) for name in names if name), None)


def commit(source: Path, run: Path, step: int, keep: CheckpointConfig) -> None:
    """Complete verl's checkpoint ``source`` with checksums, publish its model and thin out older checkpoints.

    Args:
        source: the folder of the step in ``root_of(run)``
        run: the run's folder
        step: of the checkpoint
        keep: the configuration's ``checkpoint``
    """
    for path in source.rglob("*"):
        sync(path)  # or checksums might be on the disk before what they are of
    write_checksums(source)
    publish(source, run, step, keep)
    root = source.parent
    complete = [old for old in steps(root) if (folder_of(root, old) / CHECKSUMS).exists()]
    killed = [old for old in steps(root) if old < step and old not in complete]
    for old in (*killed, *superseded(complete, step)):
        shutil.rmtree(folder_of(root, old))


def publish(source: Path, run: Path, step: int, keep: CheckpointConfig) -> None:
    """Copy the Hugging Face model in verl's checkpoint ``source`` to ``checkpoints/step_000100`` of the run.

    Earlier models stay as ``keep`` says, except those of checkpoints that were only written because of the time.
    """
    target = model_folder(run, step)
    temporary = target.with_name(f".{target.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    shutil.copytree(source / PUBLISHED, temporary)
    checksums, prefix = read_json(source / CHECKSUMS), f"{PUBLISHED}/"
    of_model = {name.removeprefix(prefix): entry for name, entry in checksums.items() if name.startswith(prefix)}
    write_json(temporary / CHECKSUMS, of_model)
    shutil.rmtree(target, ignore_errors=True)
    os.replace(temporary, target)
    for old in model_steps(run):
        if old != step and not keeps_model(old, keep):
            shutil.rmtree(model_folder(run, old))


def convert(folder: Path, dtype: str) -> None:
    """Rewrite the float32 weights of a Hugging Face model in ``dtype``, one file at a time."""
    import torch
    from safetensors.torch import load_file, save_file

    target = getattr(torch, dtype)
    if target == torch.float32:
        return
    for path in sorted(folder.glob("*.safetensors")):
        tensors = {n: t.to(target) if t.dtype == torch.float32 else t for n, t in load_file(path).items()}
        save_file(tensors, path.with_suffix(".tmp"), metadata={"format": "pt"})
        os.replace(path.with_suffix(".tmp"), path)
    config = read_json(folder / "config.json")
    # the configuration of a model that reads images holds others
    for section in (config, *(v for v in config.values() if isinstance(v, dict))):
        section.update({key: dtype for key in ("dtype", "torch_dtype") if key in section})
    write_json(folder / "config.json", {"dtype": dtype, **config})
