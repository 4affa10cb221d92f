"""vLLM's whole configuration on a GPU that is pretended: ``python support/vllm_on_gpus.py MAJOR MINOR FILE``.

In a process of its own, since vLLM asks once which platform it runs on. FILE: pickled arguments of engines, whose
models are folders with a ``config.json``; no weights, no hub. It prints one JSON line for each.
"""

from __future__ import annotations

import json
import pickle
import sys
import types
from importlib.machinery import ModuleSpec
from pathlib import Path


def pretend(capability: tuple[int, int]) -> None:
    """Make vLLM take this machine for one with GPUs of 80 GB. Its CPU build lacks the kernels, which nothing calls."""
    for name in ("vllm._C_stable_libtorch", "vllm._moe_C_stable_libtorch"):
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__spec__ = ModuleSpec(name, None)
    import vllm.platforms
    from vllm.platforms.cuda import NonNvmlCudaPlatform
    from vllm.platforms.interface import DeviceCapability

    class Pretended(NonNvmlCudaPlatform):
        @classmethod
        def get_device_capability(cls, device_id: int = 0) -> DeviceCapability:
            return DeviceCapability(*capability)

        @classmethod
        def get_device_name(cls, device_id: int = 0) -> str:
            return "pretended"

        @classmethod
        def get_device_total_memory(cls, device_id: int = 0) -> int:
            return 80 * 10**9

        @classmethod
        def device_count(cls) -> int:
            return 8

        def is_cumem_allocator_available(self) -> bool:
            return True  # the allocator that sleeps, another part of the GPU build

    vllm.platforms._current_platform = Pretended()


def main(major: str, minor: str, file: str) -> None:
    pretend((int(major), int(minor)))
    for engine in pickle.loads(Path(file).read_bytes()):
        made = engine.create_engine_config()
        found = {
            "device": made.device_config.device_type,
            "architecture": made.model_config.architecture,
            "dtype": str(made.model_config.dtype),
            "max_model_len": made.model_config.max_model_len,
            "sleep": made.model_config.enable_sleep_mode,
            "gpu_memory_utilization": made.cache_config.gpu_memory_utilization,
            "tensor_parallel_size": made.parallel_config.tensor_parallel_size,
            "max_num_batched_tokens": made.scheduler_config.max_num_batched_tokens,
            "max_num_seqs": made.scheduler_config.max_num_seqs,
            "second_runner": made.use_v2_model_runner,
            "graphs": made.compilation_config.cudagraph_mode.name,
        }
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
