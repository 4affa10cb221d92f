"""The kind of device that a configuration runs on."""

from __future__ import annotations

from omegaconf import DictConfig


def on_gpus(config: DictConfig) -> bool:
    """Return whether a run belongs on GPUs: with device=auto, a pretrained model does, a small one does not."""
    return config.device == "cuda" or (config.device == "auto" and config.model.kind == "pretrained")
