"""verl's view of a machine without accelerator."""

from __future__ import annotations

import types
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from verl.plugin.platform.platform_base import PlatformBase
from verl.plugin.platform.platform_manager import PlatformRegistry


def _device_module() -> types.ModuleType:
    """``torch.cpu`` and the functions that verl calls on ``torch.cuda``, without effect."""
    module = types.ModuleType("bapo_torch_cpu")
    own = {name: value for name, value in vars(torch.cpu).items() if not name.startswith("__")}
    for name in ("memory_allocated", "memory_reserved", "max_memory_allocated", "max_memory_reserved"):
        own[name] = lambda *_, **__: 0
    for name in ("empty_cache", "reset_peak_memory_stats", "ipc_collect"):
        own[name] = lambda *_, **__: None
    own |= {"mem_get_info": lambda *_, **__: (1, 1), "get_device_name": lambda *_, **__: "CPU"}
    own |= {name: getattr(torch, name) for name in ("manual_seed", "get_rng_state", "set_rng_state")}
    vars(module).update(own, manual_seed_all=torch.manual_seed)
    return module


@PlatformRegistry.register(platform="cpu")
class CPUPlatform(PlatformBase):
    """One logical device a process, gloo between them."""

    device_name = "cpu"
    vendor_name = "cpu"
    device_module = _device_module()

    def is_available(self) -> bool:
        return True

    def _nothing(self, *_: object, **__: object) -> None:
        """Part of verl's interface, without a use here."""

    set_device = synchronize = set_allocator_settings = empty_cache = profiler_start = profiler_stop = cudart = _nothing

    def current_device(self) -> torch.device:
        return torch.device("cpu")

    def device_count(self) -> int:
        return 1

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    manual_seed_all = manual_seed

    def get_device_capability(self, device_index: int = 0) -> tuple[None, None]:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "CUDA_VISIBLE_DEVICES"

    @contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        yield

    def ray_resource_name(self) -> str:
        # verl's resource pools count GPU or NPU only; the job starts Ray with a logical one
        return "GPU"

    def ray_noset_envvars(self) -> list[str]:
        return ["RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"]

    def is_ipc_supported(self) -> bool:
        return False
