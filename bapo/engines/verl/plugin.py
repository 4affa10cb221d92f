"""verl imports this module in each of its processes (``VERL_USE_EXTERNAL_MODULES=bapo.engines.verl.plugin``).

It registers what verl 0.9.1 lacks on CPU cores: a platform without accelerator, and the rollout of ``cpu.py``. It runs
inside ``import verl``, so it may change registries, but import nothing that imports verl's trainer.
"""

from __future__ import annotations

import os
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import torch
from verl.plugin.platform.platform_base import PlatformBase
from verl.plugin.platform.platform_manager import PlatformRegistry

#: the value of ``actor_rollout_ref.rollout.name`` with which Hugging Face models sample on CPU cores
CPU_ROLLOUT = "bapo_cpu"
_CPU = "bapo.engines.verl.cpu"


def _always(value: Any) -> Callable[..., Any]:
    """Return a function that returns ``value`` whatever its arguments are."""
    return lambda *_, **__: value


def _device_module() -> types.ModuleType:
    """Return ``torch.cpu`` with functions without effect in place of those that verl calls on ``torch.cuda``."""
    module = types.ModuleType("bapo_torch_cpu")
    functions = {name: value for name, value in vars(torch.cpu).items() if not name.startswith("__")}
    for name in ("memory_allocated", "memory_reserved", "max_memory_allocated", "max_memory_reserved"):
        functions[name] = _always(0)
    for name in ("empty_cache", "reset_peak_memory_stats", "ipc_collect"):
        functions[name] = _always(None)
    functions |= {"mem_get_info": _always((1, 1)), "get_device_name": _always("CPU")}
    functions |= {name: getattr(torch, name) for name in ("manual_seed", "get_rng_state", "set_rng_state")}
    vars(module).update(functions, manual_seed_all=torch.manual_seed)
    return module


class CPUPlatform(PlatformBase):
    """Gives each process one logical device, and gloo as the backend between processes."""

    device_name = vendor_name = "cpu"
    device_module = _device_module()
    manual_seed = manual_seed_all = staticmethod(torch.manual_seed)

    set_device = synchronize = set_allocator_settings = empty_cache = _always(None)
    profiler_start = profiler_stop = cudart = _always(None)
    is_available, is_ipc_supported = _always(True), _always(False)
    current_device, device_count = _always(torch.device("cpu")), _always(1)
    get_device_capability = _always((None, None))
    communication_backend_name = _always("gloo")
    visible_devices_envvar = _always("CUDA_VISIBLE_DEVICES")
    ray_resource_name = _always("GPU")  # verl's pools only count GPU or NPU, so the job starts Ray with logical GPUs

    def ray_noset_envvars(self) -> list[str]:
        return ["RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"]

    @contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        yield


def _register_cpu() -> None:
    """Put the rollout into verl's registries, which import ``cpu.py`` when verl asks for its classes."""
    from verl.workers.rollout import base
    from verl.workers.rollout.replica import RolloutReplicaRegistry

    from bapo.engines.shared.models import images

    base._ROLLOUT_REGISTRY[(CPU_ROLLOUT, "async")] = f"{_CPU}.Adapter"
    RolloutReplicaRegistry.register(CPU_ROLLOUT, lambda: import_module(_CPU).Replica)
    images.register_processor()  # Qwen2.5-VL's without torchvision


if os.environ.get("VERL_PLATFORM") == "cpu":
    PlatformRegistry.register(platform="cpu")(CPUPlatform)
    _register_cpu()
    if "vllm._custom_ops" in sys.modules:  # in a worker of vLLM, which imports verl for its extension
        # vLLM would pack linear layers for oneDNN and empty their weights, which could then not be loaded again
        vars(sys.modules["vllm._custom_ops"])["_supports_onednn"] = False
