"""What the workflow's jobs ask of a machine or a cluster, from their configurations. No torch, no Snakemake.

A second attempt (``retries`` in profiles/slurm) asks for more: the first may have lacked memory or time.
"""

from __future__ import annotations

from omegaconf import DictConfig

from bapo.experiments.hardware import on_gpus

DAY = 24 * 60
#: megabytes of a job without a model
LITTLE = 1500

Resources = dict[str, int | None]


def training(config: DictConfig, attempt: int = 1) -> Resources:
    """Return megabytes, minutes, GPUs and the number of machines that the GPUs lie in, of a training run.

    nodes is None without GPUs, so that a cluster may run several such jobs as one.
    """
    return _resources(_memory(config), _minutes(config), _training_gpus(config), attempt)


def base_model(config: DictConfig, attempt: int = 1) -> Resources:
    """Return the same for the model that runs start from. A pretrained model is noted only."""
    scratch = config.model.kind == "scratch"
    gpus = int(config.device == "cuda" and scratch)
    return _resources(_memory(config) if scratch else 4000, min(_minutes(config), DAY), gpus, attempt)


def evaluation(config: DictConfig, attempt: int = 1) -> Resources:
    """Return the same for an evaluation. A server has its own GPUs; no evaluation of the paper's takes over a day."""
    backend = config.evaluation.backend
    gpus = int(backend == "torch" and config.device == "cuda")
    if backend == "vllm":
        gpus = config.evaluation.vllm.tensor_parallel_size
    return _resources(_memory(config), min(_minutes(config), DAY), gpus, attempt)


def problems(config: DictConfig, attempt: int = 1) -> Resources:
    """Return the same for making or fetching problems."""
    return _resources(LITTLE, 240, 0, attempt)


def priority(config: DictConfig) -> int:
    """Return a training run's priority: longest first, so that no core idles at the end (DAPO generates up to 4x)."""
    return 20 if config.method.algorithm == "dapo" else 10


def _resources(megabytes: int, minutes: int, gpus: int, attempt: int) -> Resources:
    nodes = 1 if gpus else None
    return {"mem_mb": attempt * megabytes, "runtime": attempt * minutes, "gpu": gpus, "nodes": nodes}


def _training_gpus(config: DictConfig) -> int:
    if config.engine == "torch":
        return int(config.device == "cuda")
    return config.verl.get("gpus_per_node", 8) if on_gpus(config) else 0


def _memory(config: DictConfig) -> int:
    """Return megabytes: 1.5 GB holds the laptop's models, Ray and verl around one take 5, the paper's need the node."""
    if config.engine == "torch":
        return 16_000 if config.device == "cuda" else 1500
    if not _training_gpus(config):
        return 5000
    return 64_000 if config.model.kind == "scratch" else 200_000


def _minutes(config: DictConfig) -> int:
    """Return minutes. The paper's longest runs take weeks; one that is cut goes on where it stopped."""
    if config.model.kind == "pretrained":
        return 3 * DAY
    return DAY if config.device == "cuda" else 60
