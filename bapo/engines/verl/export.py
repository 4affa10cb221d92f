"""The Hugging Face copy of the weights in verl's checkpoints, in the model's own type: verl writes its float32 ones."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from bapo.store.files import read_json, write_json

INDEX = "model.safetensors.index.json"


def convert(folder: Path, dtype: str) -> None:
    """Rewrite every float32 weight in ``folder`` as ``dtype``, one file at a time; a second call changes nothing."""
    target = getattr(torch, dtype)
    if target == torch.float32:
        return
    total = 0
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
        wide = [name for name, tensor in tensors.items() if tensor.dtype == torch.float32]
        for name in wide:
            tensors[name] = tensors[name].to(target)
        total += sum(t.numel() * t.element_size() for t in tensors.values())
        if wide:
            temporary = path.with_name(f".{path.name}.tmp")
            save_file(tensors, temporary, metadata={"format": "pt"})
            os.replace(temporary, path)
    if (folder / INDEX).exists():
        index = read_json(folder / INDEX)
        index["metadata"] = {**index.get("metadata", {}), "total_size": total}
        write_json(folder / INDEX, index)
    config = read_json(folder / "config.json")
    parts = [config, *(v for v in config.values() if isinstance(v, dict))]  # a model that reads images nests them
    for part in parts:
        for key in ("dtype", "torch_dtype"):
            if key in part:
                part[key] = dtype
    config.setdefault("dtype", dtype)
    write_json(folder / "config.json", config)
