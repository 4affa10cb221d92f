"""What a configuration runs on."""

from __future__ import annotations

from omegaconf import DictConfig


def on_gpus(config: DictConfig) -> bool:
    """Left to itself (device=auto), a pretrained model belongs on GPUs, a small one on CPU cores."""
    return config.device == "cuda" or (config.device == "auto" and config.model.kind == "pretrained")
