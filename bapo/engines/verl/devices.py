"""CPU cores or GPUs: which a run uses, its environment, and the keys of verl's configuration that differ."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

import bapo
from bapo.engines.verl import cpu, settings
from bapo.experiments.hardware import on_gpus

FLASH = "flash_attention_2"


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
    key = "actor_rollout_ref.model.override_config.attn_implementation"
    return OmegaConf.select(OmegaConf.create(settings.get(config, "overrides", {})), key) or FLASH


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
        }
    return variables


def cpu_values(processes: int) -> dict[str, Any]:
    """Return verl's keys for tiny models. One process is enough; more (``verl.gpus_per_node``) shard with FSDP2."""
    fsdp = {"use_torch_compile": False, "model_dtype": "fp32", "mixed_precision": {"param_dtype": "fp32"}}
    ray = {
        "num_cpus": 16,
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
                "free_cache_engine": False,
                "agent": {"num_workers": 1},
            },
        },
        "critic": {"fsdp": fsdp, "model": {"use_remove_padding": False, "enable_gradient_checkpointing": False}},
        "reward": {"num_workers": 1},
        "transfer_queue": {"backend": {"SimpleStorage": {"num_data_storage_units": 1}}},
        "ray_kwargs": {"ray_init": ray},
    }


def gpu_values(config: DictConfig) -> dict[str, Any]:
    """Return verl's keys for vLLM and FSDP2 on every GPU, colocated."""
    # from 7B on, one replica of the rollout engine is spread over two GPUs
    tensor_parallel = settings.get(config, "tensor_parallel", 2 if (config.model.parameters or 0) >= 6e9 else 1)
    rows = config.sampling.max_prompt_tokens + config.sampling.max_response_tokens
    # several machines share a cluster that somebody has started; on one, never somebody else's
    ray = {"include_dashboard": False} | ({"address": "local"} if settings.get(config, "nodes", 1) == 1 else {})
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
                "name": "vllm",
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
        "transfer_queue": {
            "backend": {
                # G responses a prompt, up to 4 generation batches (DAPO), and as many replayed
                "SimpleStorage": {"total_storage_size": 8 * config.train.batch_size * config.train.group_size * 2}
            }
        },
        "ray_kwargs": {"ray_init": ray},
    }
