"""Which of verl's checkpoints is resumed, and the models that leave them. No verl."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.late import LATE

from bapo.engines.verl import checkpoints

if LATE:
    import torch
    from safetensors.torch import load_file, save_file


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
