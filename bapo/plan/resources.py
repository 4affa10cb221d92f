"""What the workflow's jobs ask of a machine or a cluster, from their configurations. No torch, no Snakemake.

A second attempt (``retries`` in profiles/slurm) asks for more: the first may have lacked memory or time. Not so on
GPUs, for runs and for evaluations of pretrained models: they ask for most of a node's memory at once, more than which
no node may have, and one that is out of time goes on where it was, in as many jobs as it takes.
"""

from __future__ import annotations

from bapo import methods
from bapo.experiments.schema import Config, on_gpus

DAY = 24 * 60
#: megabytes of a job without a model, or with a laptop's
LITTLE = 1500
#: megabytes of a process that has imported torch and transformers
PROCESS = 1000
#: megabytes for each GPU of a job with pretrained models, eight of which fit into a node of 512 GB: each rank of a
#: model with tied weights begins with a float32 copy of all of it, and the pixels of a validation lie in memory at once
GPU_SHARE = 60_000
#: megabytes of that share which ``memory.host_bytes`` may count; a job asks for what exceeds them, too
HELD = 10_000

#: megabytes of a job with a laptop's model on a GPU, and of vLLM with one on CPU cores
SCRATCH_ON_GPU, VLLM_ON_CPU = 16_000, 5000

#: megabytes of verl on CPU cores, and of a million parameters of a pretrained model there: SmolLM2 in pocket_smoke took
#: 16.8 GB, of which the training worker had half
VERL_ON_CPU, VERL_PARAMETER = 5000, 90

Resources = dict[str, int | None]


def training(config: Config, attempt: int = 1) -> Resources:
    """Return megabytes, minutes, GPUs and the number of machines that the GPUs lie in, of a training run.

    nodes is None without GPUs, so that a cluster may run several such jobs as one.
    """
    gpus = (config.verl.gpus_per_node or 8) if on_gpus(config) else 0
    gpus = int(config.device == "cuda") if config.engine == "torch" else gpus
    return _resources(_memory(config, gpus), _minutes(config), gpus, 1 if gpus else attempt)


def base_model(config: Config, attempt: int = 1) -> Resources:
    """Return the same for the model that runs start from. A pretrained model is noted only."""
    scratch = config.model.kind == "scratch"
    gpus = int(config.device == "cuda" and scratch)
    megabytes = _memory(config, gpus) if scratch else 4000
    return _resources(megabytes, min(_minutes(config), DAY), gpus, attempt)


def evaluation(config: Config, attempt: int = 1) -> Resources:
    """Return the same for an evaluation, which takes one vLLM engine; none of the paper's takes over a day."""
    backend = config.evaluation.backend
    gpus = int(backend == "torch" and config.device == "cuda")
    if backend == "vllm" and config.device != "cpu":
        gpus = config.evaluation.vllm.tensor_parallel_size
    if gpus:
        pretrained = config.model.kind == "pretrained"
        megabytes, attempt = (GPU_SHARE * gpus, 1) if pretrained else (SCRATCH_ON_GPU, attempt)
    else:
        parameters = config.model.parameters if config.model.kind == "pretrained" else None
        # the process holds the weights, those that the fast forward joins, and keys and values of all rows
        sampling = int((8 * parameters + 2**30) / 1e6) if parameters else 0
        megabytes = max(VLLM_ON_CPU if backend == "vllm" else LITTLE, PROCESS + sampling)
    return _resources(megabytes, min(_minutes(config), DAY), gpus, attempt)


def problems(config: Config, attempt: int = 1) -> Resources:
    """Return the same for making or fetching problems."""
    return _resources(LITTLE, 240, 0, attempt)


def _resources(megabytes: int, minutes: int, gpus: int, attempt: int) -> Resources:
    nodes = 1 if gpus else None
    return {"mem_mb": attempt * megabytes, "runtime": attempt * minutes, "gpu": gpus, "nodes": nodes}


def _memory(config: Config, gpus: int) -> int:
    """Return megabytes of a job that trains: 1.5 GB holds the laptop's models; Ray, verl and vLLM around one take 5."""
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

    A parameter has 16 of float32 weight, gradient and Adam's moments (a critic's, too), one copy each of reference and
    delayed rollout policy, and 6 of matrices that the fast forward joins; in a narrower type it has no such matrices,
    but a copy of its weight.
    """
    parameters = config.model.parameters
    if config.model.kind != "pretrained" or not parameters:
        return 0
    method = methods.of_run(config)
    copies = method.needs_reference + method.delays_rollout_policy
    policy = 16 + (2 * (copies + 1) if "16" in config.model.dtype else 4 * copies + 6)
    return parameters * (policy + 16 * method.uses_critic) + 2e9  # of a mini-batch, for its backward pass


def _minutes(config: Config) -> int:
    """Return minutes. The paper's longest runs take weeks; one that is cut goes on where it stopped."""
    if config.model.kind == "pretrained":
        return 3 * DAY
    return DAY if config.device == "cuda" else 60
