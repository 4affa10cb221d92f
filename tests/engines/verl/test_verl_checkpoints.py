"""Which of verl's checkpoints is resumed, and the models that leave them. No verl."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from omegaconf import OmegaConf
from support.late import LATE

from bapo.engines.verl import checkpoints, launch
from bapo.errors import UserError
from bapo.experiments.compose import run_config
from bapo.experiments.schema import CheckpointConfig
from bapo.store.lock import locked

if LATE:
    import torch
    from safetensors.torch import load_file, save_file

    from bapo.engines.torch import checkpoints as torch_checkpoints

#: parameters of Qwen2.5-0.5B
P = 0.494e9


def checkpoint(root: Path, step: int) -> Path:
    folder = checkpoints.folder_of(root, step)
    for name in ("actor/model.pt", "bapo/state.json", "data.pt"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"{name} of step {step}")
    checkpoints.write_checksums(folder)
    return folder


def test_the_newest_intact_checkpoint_is_resumed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert checkpoints.choose(tmp_path) is None
    for step in (2, 10, 4):
        checkpoint(tmp_path, step)
    tracker = tmp_path / checkpoints.TRACKER
    assert checkpoints.choose(tmp_path) == 10 and tracker.read_text() == "10"
    assert capsys.readouterr().err == ""
    weights = tmp_path / "global_step_10" / "actor" / "model.pt"
    weights.write_bytes(b"X" * weights.stat().st_size)  # of the same size
    assert checkpoints.choose(tmp_path) == 4 and tracker.read_text() == "4"
    assert str(weights) in capsys.readouterr().err
    (tmp_path / "global_step_4" / checkpoints.CHECKSUMS).unlink()  # killed before the end
    assert checkpoints.choose(tmp_path) == 2
    (tmp_path / "global_step_2" / "data.pt").unlink()
    assert checkpoints.choose(tmp_path) is None and not tracker.exists()


def test_what_a_kill_left_of_a_checkpoint_replaces_no_older_one(tmp_path: Path) -> None:
    """Steps 1, 2 and 4 are whole, 3 has no checksums: 2 and 4 stay, so that a damaged 4 does not end the run."""
    root, keep = checkpoints.root_of(tmp_path), CheckpointConfig(every=1)
    for step in (1, 2, 3, 4):
        folder = checkpoint(root, step)
        (folder / checkpoints.PUBLISHED).mkdir(parents=True)
        if step == 3:
            (folder / checkpoints.CHECKSUMS).unlink()
        else:
            checkpoints.commit(folder, tmp_path, step, keep)
    assert checkpoints.steps(root) == [4, 2]


def test_a_checkpoint_is_of_as_many_processes_as_its_shards_say(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path, 2)
    assert checkpoints.ranks(folder) is None
    (folder / "actor" / "model_world_size_8_rank_0.pt").touch()
    assert checkpoints.ranks(folder) == 8
    four, eight = (OmegaConf.create({"trainer": {"n_gpus_per_node": n, "nnodes": 1}}) for n in (4, 8))
    launch._require_ranks(four, tmp_path)
    (tmp_path / checkpoints.TRACKER).write_text("2")
    launch._require_ranks(eight, tmp_path)
    with pytest.raises(UserError, match=r"verl\.gpus_per_node=4: .* are of 8; set verl\.gpus_per_node=8"):
        launch._require_ranks(four, tmp_path)


@pytest.mark.parametrize("copy", ["step_000002 copy", "step_000002_1", "step_2", "step_0000002", "step_x"])
def test_folders_of_other_names_beside_the_models_stay(tmp_path: Path, copy: str) -> None:
    """A user's copy of a checkpoint is neither resumed from nor deleted."""
    run, root = tmp_path, checkpoints.root_of(tmp_path)
    (run / "checkpoints" / copy / "trainer").mkdir(parents=True)
    assert torch_checkpoints.steps_with_trainer(run) == []
    keep = CheckpointConfig(every=2)
    for step in (1, 2):
        folder = checkpoint(root, step)
        (folder / checkpoints.PUBLISHED).mkdir(parents=True)
        checkpoints.commit(folder, run, step, keep)
    assert {p.name for p in (run / "checkpoints").iterdir()} == {copy, "step_000002", "verl"}


def model(folder: Path) -> Path:
    """As transformers writes a model in two files."""
    parts = {"model-1.safetensors": {"a": torch.randn(3, 2)}, "model-2.safetensors": {"b": torch.arange(4)}}
    for name, tensors in parts.items():
        save_file(tensors, folder / name, metadata={"format": "pt"})
    config = {"model_type": "qwen2_5_vl", "dtype": "float32", "text_config": {"dtype": "float32", "layers": 2}}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in folder.iterdir()}


def test_float32_weights_become_the_models_type_and_others_stay(tmp_path: Path) -> None:
    place = model(tmp_path)
    before, wide = contents(place), load_file(place / "model-1.safetensors")["a"]
    checkpoints.convert(place, "float32")
    assert contents(place) == before
    checkpoints.convert(place, "bfloat16")
    assert torch.equal(load_file(place / "model-1.safetensors")["a"], wide.bfloat16())
    assert load_file(place / "model-2.safetensors")["b"].dtype == torch.int64
    config = json.loads((place / "config.json").read_text())
    assert (config["dtype"], config["text_config"]) == ("bfloat16", {"dtype": "bfloat16", "layers": 2})
    once = contents(place)
    checkpoints.convert(place, "bfloat16")
    assert contents(place) == once


def test_what_killed_jobs_left_goes_and_a_living_jobs_folder_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The living job's process may have another number here: it is in another container."""
    monkeypatch.setattr(launch, "TEMPORARY", tmp_path)
    dead, living, other = (tmp_path / name for name in ("bv-4194304-dead", "bv-4194304-living", "bv"))
    for folder in (dead, living, other):
        (folder / "ray").mkdir(parents=True)
    with locked(living):
        launch._remove_stale_work()
    assert {p.name for p in tmp_path.iterdir()} == {living.name, other.name} and (living / "ray").is_dir()


@pytest.mark.parametrize(
    ("kept", "words", "needed"),
    [
        (0, (), 54 * P * 1e-9 + 12 * P * 2e-9),
        (2, (), 18 * P * 1e-9 + 10 * P * 2e-9),
        (3, (), 18 * P * 1e-9 + 9 * P * 2e-9),
        (13, (), 18 * P * 1e-9 + P * 2e-9),
        (3, ("checkpoint.keep_models=false",), 18 * P * 1e-9 + P * 2e-9),
        (0, ("verl.rollout_window=true",), 54 * P * 1e-9 + 12 * P * 2e-9 + 3 * 48e-9 * 4 * 512 * 1536),
    ],
)
def test_there_must_be_room_for_three_states_and_the_models(
    kept: int, words: tuple[str, ...], needed: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of BAPO in bfloat16: 12 bytes a parameter of weights and moments, 4 of alpha, 2 of the model; 12 models of 2.

    A window has the rows of four more steps of 512 responses.
    """
    config = run_config("single_gpu", "mathematics", "qwen2.5-0.5b-instruct", "bapo", 1, words)
    assert config.model.parameters == P
    for step in range(kept):
        checkpoints.folder_of(checkpoints.root_of(tmp_path), step + 1).mkdir(parents=True)
        (tmp_path / "checkpoints" / f"step_{step + 1:06d}").mkdir()
    for free, fits in ((needed + 0.001, True), (needed - 0.001, False)):
        usage = SimpleNamespace(free=free * 1e9)
        monkeypatch.setattr(launch.shutil, "disk_usage", lambda folder, usage=usage: usage)
        with contextlib.nullcontext() if fits else pytest.raises(UserError, match=r"more checkpoint.* GB left"):
            launch._require_disk(config, tmp_path, 12 * config.checkpoint.every)


@pytest.mark.parametrize(
    ("groups", "files", "left"),
    [
        ("0::/", {}, 50e9),
        ("0::/job/step", {"job/memory.max": "30000000000", "job/step/memory.max": "max"}, 30e9),
        ("0::/job", {"job/memory.max": "70000000000"}, 50e9),
        ("0::/job", {"job/memory.max": "60000000000", "job/memory.current": "25000000000"}, 35e9),
        (
            "7:memory:/job",
            {
                "memory/job/memory.limit_in_bytes": "60000000000",
                "memory/job/memory.usage_in_bytes": "25000000000",
                "memory/job/memory.stat": "active_file 7\ntotal_active_file 1000\ntotal_inactive_file 5000000000\n",
            },
            40e9 + 1000,
        ),
        ("7:memory:/job", {"memory/job/memory.limit_in_bytes": "20000000000"}, 20e9),
        ("5:cpu,cpuacct:/job\n0::/", {"job/memory.max": "1"}, 50e9),
    ],
)
def test_host_memory_is_the_machines_within_the_limits_of_its_groups(
    groups: str, files: dict[str, str], left: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slurm limits a job and its steps; version 1 of control groups has a folder for memory. Files give way."""
    monkeypatch.setattr(launch, "PROC", tmp_path / "proc")
    monkeypatch.setattr(launch, "CGROUPS", tmp_path / "groups")
    told = {"proc/meminfo": "MemTotal: 97656250 kB\nMemAvailable: 48828125 kB\n", "proc/self/cgroup": f"{groups}\n"}
    for name, text in (told | {f"groups/{name}": text for name, text in files.items()}).items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert launch.host_memory() == left


@pytest.mark.parametrize(("model", "method", "gb"), [("qwen2.5-math-7b", "bapo", 60.96), ("qwen3-8b", "grpo", 25.167)])
def test_host_memory_and_shared_memory_must_have_room(
    model: str, method: str, gb: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """alpha takes 8 bytes a parameter of 7.62e9, the reference 2 of 8.19e9 before it is pinned; Ray's objects 4 GB."""
    config = run_config("paper", "mathematics" if "8b" in model else "countdown", model, method, 1)
    for memory, shared, found in ((-0.01, 5, "in host memory"), (0.01, 3.9, "/dev/shm: .*--shm-size"), (0.01, 4, "")):
        monkeypatch.setattr(launch, "host_memory", lambda memory=memory: (gb + memory) * 1e9)
        monkeypatch.setattr(launch.shutil, "disk_usage", lambda folder, free=shared: SimpleNamespace(free=free * 1e9))
        with pytest.raises(UserError, match=found) if found else contextlib.nullcontext():
            launch._require_host_memory(config, 4_000_000_000)
