"""Exports have the model's own type, whatever verl writes. No verl."""

from __future__ import annotations

import json
from pathlib import Path

from support.late import LATE

if LATE:
    import torch
    from safetensors.torch import load_file, save_file

    from bapo.engines.verl import export


def folder(tmp_path: Path) -> Path:
    """As transformers writes a model in two files."""
    parts = {"model-1.safetensors": {"a": torch.randn(3, 2)}, "model-2.safetensors": {"b": torch.arange(4)}}
    for name, tensors in parts.items():
        save_file(tensors, tmp_path / name)
    index = {"metadata": {"total_size": 56}, "weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    (tmp_path / export.INDEX).write_text(json.dumps(index))
    config = {"model_type": "qwen2_5_vl", "dtype": "float32", "text_config": {"dtype": "float32", "layers": 2}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    return tmp_path


def test_float32_weights_become_the_models_type_and_others_stay(tmp_path: Path) -> None:
    place = folder(tmp_path)
    wide = load_file(place / "model-1.safetensors")["a"]
    export.convert(place, "bfloat16")
    assert torch.equal(load_file(place / "model-1.safetensors")["a"], wide.bfloat16())
    assert load_file(place / "model-2.safetensors")["b"].dtype == torch.int64
    config = json.loads((place / "config.json").read_text())
    assert (config["dtype"], config["text_config"]) == ("bfloat16", {"dtype": "bfloat16", "layers": 2})
    assert json.loads((place / export.INDEX).read_text())["metadata"]["total_size"] == 3 * 2 * 2 + 4 * 8
    once = {p.name: p.read_bytes() for p in place.iterdir()}
    export.convert(place, "bfloat16")
    assert {p.name: p.read_bytes() for p in place.iterdir()} == once


def test_a_float32_model_stays_as_it_is(tmp_path: Path) -> None:
    before = {p.name: p.read_bytes() for p in folder(tmp_path).iterdir()}
    export.convert(tmp_path, "float32")
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before
