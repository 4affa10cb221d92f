"""Checkpoints of a training run: written whole, checked on reading, and enough to resume bit for bit.

``checkpoints/step_000050/`` is a Hugging Face folder; ``trainer/`` inside it holds the optimiser, the delayed rollout
policy, the critic, the replay buffers and the tables so far. Random states are not saved because there are none: every
draw is keyed by (seed, purpose, step).
"""

from __future__ import annotations

import os
import shutil
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors.torch import load_file, save_file, save_model
from torch import Tensor
from torch.nn import Parameter

from bapo.algorithm.rollouts import Group
from bapo.engines.shared import models
from bapo.engines.shared.packed_groups import pack_groups
from bapo.engines.shared.records import Recorder, model_folder, model_steps
from bapo.engines.shared.schedule import keeps_model, superseded
from bapo.experiments.schema import CheckpointConfig
from bapo.store import files
from bapo.store.files import CHECKSUMS, TABLES, fingerprints, read_json, sync, write_json

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase, ProcessorMixin

    from bapo.engines.torch.learner import TrainedModel
    from bapo.store.files import Json

OPTIMIZER, CRITIC_OPTIMIZER, STATE = "optimizer.safetensors", "critic_optimizer.safetensors", "state.json"
#: files of further weights, beside the policy's
ROLLOUT, REFERENCE, CRITIC = "rollout_policy.safetensors", "reference.safetensors", "critic.safetensors"
#: begins the names in OPTIMIZER of the parameters' float32 copies
MASTER = "master"


def steps_with_trainer(run: Path) -> list[int]:
    """Return the steps that can be resumed from, newest first."""
    return [step for step in model_steps(run) if (model_folder(run, step) / "trainer").is_dir()]


def save(
    run: Path,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase | ProcessorMixin,
    weights: dict[str, PreTrainedModel],
    trained: dict[str, TrainedModel],
    groups: list[Group],
    state: Json,
    recorder: Recorder,
    keep: CheckpointConfig,
) -> Path:
    """Write the checkpoint of ``state["step"]`` and thin out older ones. The final rename is the commit.

    Args:
        run: the run's folder
        model: the policy
        tokenizer: saved beside it, or the processor that has it
        weights: further models, by the names of their files
        trained: what has an optimiser, by the names of the optimisers' files
        groups: those that the method needs to resume
        state: everything else that the next step depends on
        recorder: holds all rows so far
        keep: the configuration's ``checkpoint``
    """
    step = state["step"]
    target = model_folder(run, step)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    for stale in target.parent.glob(".step_*.tmp"):
        shutil.rmtree(stale, ignore_errors=True)
    trainer = temporary / "trainer"
    trainer.mkdir(parents=True)
    try:
        models.save(model, tokenizer, temporary)
        for name, other in weights.items():
            save_model(other, str(trainer / name))
        for name, each in trained.items():
            save_file(optimizer_tensors(each), trainer / name)
        tensors, entries = pack_groups(groups)
        save_file(tensors, trainer / "groups.safetensors")
        write_json(trainer / STATE, {**state, "groups": entries}, durable=False)
        recorder.write(trainer, durable=False)
        files.write_checksums(temporary, durable=False)
        for path in (*temporary.rglob("*"), temporary):
            sync(path)
        if target.exists():
            shutil.rmtree(target)
        os.replace(temporary, target)
        sync(target.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    for old in superseded(steps_with_trainer(run), step):
        _retire(run, old, keep)
    return target


def _retire(run: Path, step: int, keep: CheckpointConfig) -> None:
    """Drop a step's state, and its model unless the configuration keeps it."""
    folder = model_folder(run, step)
    shutil.rmtree(folder / "trainer" if keeps_model(step, keep) else folder)


def finish(run: Path, last: int, keep: CheckpointConfig) -> None:
    """Drop from a finished run what only a further step needs. keep: as in :func:`save`.

    The last step's counters and tables stay, so that damaged tables of the run can be restored.
    """
    for step in steps_with_trainer(run):
        if step == last:
            _strip(model_folder(run, step))
        else:
            _retire(run, step, keep)


def _strip(folder: Path) -> None:
    """Drop the trainer's state from a checkpoint, which stays intact if this is interrupted.

    The counters in ``state.json`` stay; the description of the replay buffers goes, which may be megabytes.
    """
    checksums, state = read_json(folder / CHECKSUMS), f"trainer/{STATE}"
    surplus = [n for n in checksums if n.startswith("trainer/") and Path(n).name not in (STATE, *TABLES)]
    rest = {name: entry for name, entry in checksums.items() if name not in (*surplus, state)}
    write_json(folder / CHECKSUMS, rest)
    for name in sorted(surplus, key=lambda name: Path(name).name != OPTIMIZER):  # see can_go_on
        (folder / name).unlink(missing_ok=True)
    write_json(folder / state, {**read_json(folder / state), "method": {}, "groups": []})
    write_json(folder / CHECKSUMS, {**rest, **fingerprints(folder, [state])})


def can_go_on(trainer: Path) -> bool:
    """Return whether a step can follow; :func:`finish` takes that away from a finished run."""
    return (trainer / OPTIMIZER).is_file()


def newest_intact(run: Path) -> tuple[Path, Json] | None:
    """Return the newest checkpoint that can be resumed from, and its state; None where there is none."""
    folder = files.newest_intact(model_folder(run, step) for step in steps_with_trainer(run))
    return None if folder is None else (folder, read_json(folder / "trainer" / STATE))


# ------------------------------------------------------------------------------------------------ optimisers


def optimizer_tensors(trained: TrainedModel) -> dict[str, Tensor]:
    """Return the optimiser's state and, of a model in a narrower type, the float32 weights, as "KEY/PARAMETER"."""
    tensors = {}
    for name, master in trained.masters.items():
        copy = {} if isinstance(master, Parameter) else {MASTER: master}
        for key, value in {**trained.optimizer.state.get(master, {}), **copy}.items():
            tensors[f"{key}/{name}"] = value.detach().cpu().contiguous().clone()
    return tensors


def load_optimizer(trained: TrainedModel, path: Path) -> None:
    """Load what ``optimizer_tensors`` returned."""
    saved: dict[str, dict[str, Tensor]] = defaultdict(dict)
    for key, value in load_file(path).items():
        kind, name = key.split("/", 1)
        saved[name][kind] = value
    for name, master in trained.masters.items():
        if MASTER in saved[name]:
            with torch.no_grad():
                master.copy_(saved[name].pop(MASTER))
    state = {place: saved[name] for place, name in enumerate(trained.masters) if saved[name]}
    trained.optimizer.load_state_dict({**trained.optimizer.state_dict(), "state": state})
