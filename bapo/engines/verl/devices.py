"""CPU cores or GPUs: which a run uses, its environment, and the keys of verl's configuration that differ."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

import bapo
from bapo.engines.verl import cpu, memory, settings
from bapo.errors import UserError
from bapo.experiments.schema import on_gpus
from bapo.gpu import allocation
from bapo.gpu import devices as gpu_devices

FLASH = "flash_attention_2"
#: values of ``verl.rollout``
VLLM, TRANSFORMERS = "vllm", "transformers"


def device_of(config: DictConfig) -> str:
    """Return "cpu" or "cuda". ``auto``: a pretrained model belongs on GPUs; a scratch model goes where there is one."""
    if on_gpus(config):
        return "cuda"
    if config.device != "auto":
        return config.device
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def attention(config: DictConfig) -> str:
    """Return the policy's attention on GPUs: packed batches need flash attention; ``verl.overrides`` changes both."""
    return settings.overridden(config, "actor_rollout_ref.model.override_config.attn_implementation", FLASH)


def environment(device: str) -> dict[str, str]:
    """Return the variables that must be set before ``import verl``, in the job and in all of Ray's processes."""
    package = str(Path(bapo.__file__).resolve().parents[1])
    variables = {
        "VERL_USE_EXTERNAL_MODULES": "bapo.engines.verl.plugin",
        "PYTHONPATH": os.pathsep.join(p for p in (package, os.environ.get("PYTHONPATH", "")) if p),
        "TOKENIZERS_PARALLELISM": "false",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_DEDUP_LOGS": "0",
        "HYDRA_FULL_ERROR": "1",
    }
    if device == "cpu":
        variables |= {
            "VERL_PLATFORM": "cpu",
            "OMP_NUM_THREADS": "1",
            # a logical GPU only: workers must not be given CUDA_VISIBLE_DEVICES, nor be killed for memory
            "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
            "RAY_memory_monitor_refresh_ms": "0",
            # of vLLM, where it samples on CPU cores: GB of its key-value cache; bfloat16 kernels pack the weights, and
            # could not be given others
            "VLLM_CPU_KVCACHE_SPACE": os.environ.get("VLLM_CPU_KVCACHE_SPACE", "1"),
            "VLLM_CPU_SGL_KERNEL": "0",
        }
    return variables


def values(config: DictConfig, device: str, processes: int) -> dict[str, Any]:
    """Return verl's keys that depend on the device; processes: of this machine, one a GPU."""
    found = cpu_values(config, processes) if device == "cpu" else gpu_values(config, processes)
    # verl's default is room for 100,000 rows: no limit, as the rows of a validation are bounded by its own batches
    found["transfer_queue"]["backend"]["SimpleStorage"]["total_storage_size"] = None
    return found


def card(config: DictConfig) -> float:
    """Return the GB of a GPU: ``verl.gpu_memory``, or those of the smallest visible one.

    Raises UserError where nvidia-smi does not know a visible one.
    """
    asked = settings.get(config, "gpu_memory", None)
    if asked is not None and (isinstance(asked, bool) or not isinstance(asked, int | float) or asked <= 0):
        raise UserError(f"verl.gpu_memory={asked}: must be a number of GB above 0")
    if asked:
        return float(asked)
    known = gpu_devices.known()
    unknown = [name for name in gpu_devices.visible() if name not in known or not known[name].memory]
    if unknown and gpu_devices.installed():  # without nvidia-smi the configuration is for another machine
        raise UserError(f"verl.gpu_memory: nvidia-smi does not say how much GPU {unknown[0]} has; set its GB")
    return min((gpu.gigabytes for gpu in known.values()), default=memory.CARD)


def ray_cpus(gpus: int, storage_units: int) -> int:
    """Count the CPUs without which Ray waits for ever, with a line in its log.

    TransferQueue reserves one for each storage unit and one for its controller, verl three a GPU and one for the
    trainer; actors without a reservation need a free one to be placed.
    """
    return storage_units + 1 + 3 * gpus + 1 + 2


def cpu_values(config: DictConfig, processes: int) -> dict[str, Any]:
    """Return verl's keys for tiny models. One process is enough; more (``verl.gpus_per_node``) shard with FSDP2."""
    fsdp = {"use_torch_compile": False, "model_dtype": "fp32", "mixed_precision": {"param_dtype": "fp32"}}
    ray = {
        "num_cpus": max(16, ray_cpus(processes, 1)),
        "num_gpus": processes,
        "include_dashboard": False,
        "address": "local",
        "object_store_memory": 300_000_000,
        "log_to_driver": True,
    }
    return {
        "actor_rollout_ref": {
            "model": {"use_remove_padding": False, "enable_gradient_checkpointing": False},
            "actor": {"use_torch_compile": False, "fsdp_config": fsdp},
            "ref": {"use_torch_compile": False, "fsdp_config": fsdp},
            "rollout": {
                "name": cpu.ROLLOUT,
                "tensor_model_parallel_size": 1,
                "dtype": "float32",
                "free_cache_engine": True,  # our server sleeps as vLLM does on a GPU
                "agent": {"num_workers": 1},
                **(_vllm_on_cpu(config) if rollout_of(config, "cpu") == VLLM else {}),
            },
        },
        "critic": {"fsdp": fsdp, "model": {"use_remove_padding": False, "enable_gradient_checkpointing": False}},
        "reward": {"num_workers": 1},
        "transfer_queue": {"backend": {"SimpleStorage": {"num_data_storage_units": 1}}},
        "ray_kwargs": {"ray_init": ray},
    }


def _vllm_on_cpu(config: DictConfig) -> dict[str, Any]:
    """Return the rollout's keys for vLLM on CPU cores: it cannot sleep there, and nothing is worth compiling."""
    rows = config.sampling.max_prompt_tokens + config.sampling.max_response_tokens
    return {
        "name": VLLM,
        "free_cache_engine": False,
        "enable_sleep_mode": False,
        "enforce_eager": True,
        "max_model_len": rows,
        "max_num_batched_tokens": max(512, rows),
        "max_num_seqs": 32,
        "gpu_memory_utilization": 0.3,
        "checkpoint_engine": {"update_weights_bucket_megabytes": 256},
    }


def rollout_of(config: DictConfig, device: str) -> str:
    """Return what samples: VLLM or TRANSFORMERS. Raises UserError for another."""
    asked = settings.get(config, "rollout", VLLM if device == "cuda" else TRANSFORMERS)
    allowed = (VLLM, TRANSFORMERS) if device == "cpu" else (VLLM,)
    if asked not in allowed:
        raise UserError(f"verl.rollout={asked}: on device={device} it must be {' or '.join(allowed)}")
    return asked


def gpu_values(config: DictConfig, gpus: int) -> dict[str, Any]:
    """Return verl's keys for vLLM and FSDP2 on every GPU, colocated."""
    # from 7B on, one replica of the rollout engine is spread over two GPUs where they come in pairs
    pairs = (config.model.parameters or 0) >= 6e9 and gpus % 2 == 0
    tensor_parallel = settings.get(config, "tensor_parallel", 2 if pairs else 1)
    rows = config.sampling.max_prompt_tokens + config.sampling.max_response_tokens
    units = 2 if gpus == 1 else 8
    # never a cluster that somebody has started
    ray = {"include_dashboard": False, "address": "local", "num_cpus": max(allocation.cpus(), ray_cpus(gpus, units))}
    model = {
        "use_remove_padding": True,
        "enable_gradient_checkpointing": True,
        "override_config": {"attn_implementation": FLASH},
    }
    return {
        "actor_rollout_ref": {
            "model": model,
            "actor": {
                "fsdp_config": {"model_dtype": "fp32"},  # master weights; the forward pass runs in bfloat16
                # the entropy of 152k tokens' logits is what fills the memory otherwise
                "entropy_from_logits_with_chunking": True,
                "entropy_checkpointing": True,
            },
            "ref": {"fsdp_config": {"model_dtype": "bf16"}},
            "rollout": {
                "name": rollout_of(config, "cuda"),
                "dtype": config.model.dtype,
                "tensor_model_parallel_size": tensor_parallel,
                "gpu_memory_utilization": settings.get(config, "gpu_memory_utilization", 0.5),
                "free_cache_engine": True,
                "max_model_len": rows,
                "max_num_batched_tokens": max(8192, rows),
                "enable_chunked_prefill": True,
            },
        },
        "critic": {"fsdp": {"model_dtype": "fp32"}, "model": model},
        "transfer_queue": {"backend": {"SimpleStorage": {"num_data_storage_units": units}}},
        "ray_kwargs": {"ray_init": ray},
    }
