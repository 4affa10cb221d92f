"""``verl.<key>``: how verl runs a job. Nothing here imports verl."""

from __future__ import annotations

from typing import Any

from omegaconf import DictConfig, OmegaConf

from bapo.errors import UserError, unknown

#: None of them changes the numbers of a run's training.
SETTINGS = {
    "gpus_per_node": "GPUs of a machine (8); on a CPU the processes that share the model by FSDP2 (1)",
    "tensor_parallel": "GPUs that one replica of the rollout engine is spread over",
    "gpu_memory_utilization": "share of each GPU's memory for vLLM (0.5)",
    "gpu_memory": "GB of a GPU, by which micro-batches are cut (the visible card's; 80 where there is none)",
    "rollout": "what samples: vllm (on GPUs), or transformers (on CPU cores, where vllm works too)",
    "seed_requests": "a seed of its own for each of vLLM's requests: repeatable on a CPU, and slow (false)",
    "validation": "benchmarks that are sampled at the steps of the probe (none)",
    "validation_samples": "of each of their problems (32)",
    "console": "verl's own metrics as lines of verl.log (false)",
    "stalled_after": "seconds without a finished prompt after which a rollout is given up (1800)",
    "time_limit": "seconds after which a job is ended (none)",
    "overrides": "keys of verl's own configuration, set last",
}


def check(config: DictConfig) -> None:
    """Raise UserError for a key below ``verl`` that nothing reads, and for more than one machine."""
    if config.verl.get("nodes", 1) != 1:
        raise UserError(
            f"verl.nodes={config.verl.nodes}: a run has the GPUs of one machine; leave verl.nodes out and set "
            "verl.gpus_per_node, or take a smaller model"
        )
    for key in config.verl:
        if key not in SETTINGS:
            raise UserError(unknown(f"verl.{key}", f"no such key '{key}'", str(key), list(SETTINGS)))


def get(config: DictConfig, key: str, default: Any) -> Any:
    """Return ``verl.<key>``, or ``default`` if it is not set."""
    value = OmegaConf.select(config, f"verl.{key}", default=None)
    return default if value is None else value


def overridden(config: DictConfig, key: str, default: Any) -> Any:
    """Return what ``verl.overrides`` says of a key of verl's, or ``default`` if nothing."""
    value = OmegaConf.select(OmegaConf.create(get(config, "overrides", {})), key, default=None)
    return default if value is None else value


def validation_sets(config: DictConfig) -> dict[str, tuple[int | None, int]]:
    """Return {set: (problems or None for all, samples a problem)} that verl validates on, at the steps of the probe.

    The probe's two sets with ``probe.samples``, and the benchmarks named by ``verl.validation`` with
    ``verl.validation_samples`` (32).
    """
    probe = config.probe
    sets: dict[str, tuple[int | None, int]] = {}
    if probe.prompts:
        sets |= {name: (probe.prompts, probe.samples) for name in ("train", "probe")}
    return sets | {str(name): (None, validation_samples(config)) for name in get(config, "validation", [])}


def validation_samples(config: DictConfig) -> int:
    samples = get(config, "validation_samples", 32)
    if not isinstance(samples, int) or samples < 1:
        raise UserError(f"verl.validation_samples={samples}: must be a number of at least 1")
    return samples
