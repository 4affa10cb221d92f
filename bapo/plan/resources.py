"""The resources that the workflow's jobs request, from their configurations. It imports no torch and no Snakemake.

A second attempt (``retries`` in profiles/slurm) requests more, as the first may have lacked memory or time. Runs on
GPUs and evaluations of pretrained models on GPUs do not: their first attempt requests most of a node's memory, and the
next job continues a run or an evaluation whose time was up. No job without a GPU requests more than a day, the usual
limit of a partition of CPUs.
"""

from __future__ import annotations

from bapo import methods
from bapo.experiments.schema import Config, on_gpus

DAY = 24 * 60
#: megabytes of a job without a model, or with a model of laptop scale
LITTLE = 1500
#: megabytes of a process that has imported torch and transformers
PROCESS = 1000
#: megabytes for each GPU of a job with pretrained models, so that eight fit into a node of 512 GB. Each rank of a model
#: with tied weights begins with a float32 copy of it, and all pixels of a validation lie in memory at a time
GPU_SHARE = 60_000
#: megabytes of that share for the bytes that ``memory.host_bytes`` counts; a job also requests what exceeds them
HELD = 10_000

#: megabytes of a job with a laptop's model on a GPU, and of vLLM with one on CPU cores
SCRATCH_ON_GPU, VLLM_ON_CPU = 16_000, 5000

#: megabytes of verl on CPU cores, and of a million parameters of a pretrained model there. SmolLM2 in pocket_smoke took
#: 16.8 GB, half of it in the training worker
VERL_ON_CPU, VERL_PARAMETER = 5000, 90

Resources = dict[str, int | None]


def training(config: Config, attempt: int = 1) -> Resources:
    """Return the megabytes, minutes, GPUs and machines that a training run needs.

    ``nodes`` is None without GPUs, so that a cluster may run several such jobs as one.
    """
    gpus = (config.verl.gpus_per_node or 8) if on_gpus(config) else 0
    gpus = int(config.device == "cuda") if config.engine == "torch" else gpus
    return _resources(_memory(config, gpus), _minutes(config), gpus, 1 if gpus else attempt)


def base_model(config: Config, attempt: int = 1) -> Resources:
    """Return the same for the base job. A pretrained model is only described."""
    scratch = config.model.kind == "scratch"
    gpus = int(config.device == "cuda" and scratch)
    megabytes, minutes = (_memory(config, gpus), _minutes(config)) if scratch else (4000, 30)
    return _resources(megabytes, minutes, gpus, attempt)


def evaluation(config: Config, attempt: int = 1) -> Resources:
    """Return the same for an evaluation, which uses one vLLM engine, or for that of a run's kept checkpoints."""
    backend = config.evaluation.backend
    gpus = int(backend == "torch" and config.device == "cuda")
    if backend == "vllm" and config.device != "cpu":
        gpus = config.evaluation.vllm.tensor_parallel_size
    if gpus:
        pretrained = config.model.kind == "pretrained"
        megabytes, attempt = (GPU_SHARE * gpus, 1) if pretrained else (SCRATCH_ON_GPU, attempt)
    else:
        parameters = config.model.parameters if config.model.kind == "pretrained" else None
        # weights, the matrices that the fast forward joins, and keys and values of all rows
        sampling = int((8 * parameters + 2**30) / 1e6) if parameters else 0
        megabytes = max(VLLM_ON_CPU if backend == "vllm" else LITTLE, PROCESS + sampling)
    return _resources(megabytes, _minutes(config), gpus, attempt)


def problems(config: Config, attempt: int = 1) -> Resources:
    """Return the same for making or fetching problems."""
    return _resources(LITTLE, 240, 0, attempt)


def _resources(megabytes: int, minutes: int, gpus: int, attempt: int) -> Resources:
    minutes, nodes = (attempt * minutes, 1) if gpus else (min(attempt * minutes, DAY), None)
    return {"mem_mb": attempt * megabytes, "runtime": minutes, "gpu": gpus, "nodes": nodes}


def _memory(config: Config, gpus: int) -> int:
    """Return the megabytes of a job that trains."""
    if config.engine != "torch":
        if gpus:
            from bapo.engines.verl import memory

            return GPU_SHARE * gpus + max(0, int(memory.host_bytes(config, gpus) / 1e6) - HELD * gpus)
        millions = int((config.model.parameters or 0) / 1e6)
        return VERL_ON_CPU + (VERL_PARAMETER * millions if config.model.kind == "pretrained" else 0)
    if config.device == "cuda":
        return SCRATCH_ON_GPU
    states = _training_bytes(config)
    return PROCESS + int(states / 1e6) if states else LITTLE


def _training_bytes(config: Config) -> float:
    """Count the bytes of a run of a pretrained model; 0 for a model from scratch.

    A parameter takes 16 for float32 weight, gradient and Adam's moments (again for a critic), and a copy each for
    reference and delayed rollout policy. In float32 it takes 6 for matrices that the fast forward joins, and in a
    narrower type a copy of its weight instead.
    """
    parameters = config.model.parameters
    if config.model.kind != "pretrained" or not parameters:
        return 0
    method = methods.of_run(config)
    copies = method.needs_reference + method.delays_rollout_policy
    policy = 16 + (2 * (copies + 1) if "16" in config.model.dtype else 4 * copies + 6)
    return parameters * (policy + 16 * method.uses_critic) + 2e9  # of a mini-batch, for its backward pass


def _minutes(config: Config) -> int:
    """Return the minutes of a job. The paper's longest runs take weeks, and are continued by the next job."""
    if config.model.kind == "pretrained":
        return 3 * DAY
    return DAY if config.device == "cuda" else 60
