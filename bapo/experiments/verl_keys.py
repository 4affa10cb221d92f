"""Name the keys below ``verl``, how verl runs a job; bapo/engines/verl/settings.py reads them."""

from __future__ import annotations

from bapo.errors import UserError, unknown
from bapo.experiments.schema import Config

#: None of them changes the numbers of a run's training.
NAMES = {
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


def check(config: Config) -> None:
    """Raise UserError for a key below ``verl`` that nothing reads, and for more than one machine."""
    if config.verl.get("nodes", 1) != 1:
        raise UserError(
            f"verl.nodes={config.verl.nodes}: a run has the GPUs of one machine; leave verl.nodes out and set "
            "verl.gpus_per_node, or take a smaller model"
        )
    for key in config.verl:
        if key not in NAMES:
            raise UserError(unknown(f"verl.{key}", f"no such key '{key}'", str(key), list(NAMES)))
