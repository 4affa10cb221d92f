"""Imported by verl itself, in each of its processes (``VERL_USE_EXTERNAL_MODULES=bapo.engines.verl.plugin``).

This is the door to ``cpu.py`` and ``cpu_platform.py``: what verl 0.9.1 lacks to run on CPU cores. It runs inside
``import verl``, so only registries may be touched here, nothing that imports verl's trainer.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module

#: value of ``actor_rollout_ref.rollout.name``: Hugging Face models on CPU cores
CPU_ROLLOUT = "bapo_cpu"
_CPU = "bapo.engines.verl.cpu"


def _register_cpu() -> None:
    """Put platform and rollout into verl's registries; ``cpu.py`` is imported when verl asks for its classes."""
    from verl.workers.rollout import base
    from verl.workers.rollout.replica import RolloutReplicaRegistry

    from bapo.engines.shared.models import images
    from bapo.engines.verl import cpu_platform  # noqa: F401 (registers itself)

    base._ROLLOUT_REGISTRY[(CPU_ROLLOUT, "async")] = f"{_CPU}.Adapter"
    RolloutReplicaRegistry.register(CPU_ROLLOUT, lambda: import_module(_CPU).Replica)
    images.register_processor()  # Qwen2.5-VL's without torchvision


if os.environ.get("VERL_PLATFORM") == "cpu":
    _register_cpu()
    if "vllm._custom_ops" in sys.modules:  # a worker of vLLM, which imports verl for its extension
        # vLLM would pack linear layers for oneDNN and empty their weights: nothing could be loaded into them again
        vars(sys.modules["vllm._custom_ops"])["_supports_onednn"] = False
