"""Where real vLLM runs on CPU cores (containers/vllm_cpu), and the small world that its attention takes."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from bapo.experiments.compose import compose_config
from bapo.experiments.places import base_directory, data_directory
from bapo.gpu import environment
from bapo.gpucheck import command
from support.world import start_of

needs_vllm = pytest.mark.skipif(
    not environment.vllm_on_cpu(), reason="no vLLM for CPU cores; containers/vllm_cpu/install makes its environment"
)


def settings(folder: Path) -> list[str]:
    """The world of gpu-check, without its method."""
    return [word for word in command.overrides(command.Check(folder, "cpu")) if not word.startswith("method")]


def make_world(folder: Path) -> list[str]:
    """Make its data and base model, or copy those of a check whose folder BAPO_GPU_CHECK names; return the settings."""
    if kept := os.environ.get("BAPO_GPU_CHECK"):
        config = compose_config(settings(folder))
        for place in (data_directory, base_directory):
            shutil.copytree(place(command.config_of(command.Check(Path(kept), "cpu"))), place(config))
        return settings(folder)
    start_of(settings(folder))
    return settings(folder)
