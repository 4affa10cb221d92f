"""Memory and time of a GPU run, from the number of parameters alone. An estimate made before any GPU was used.

Memory a GPU, with P parameters on R ranks (FSDP2 shards everything):

- training: 4 bytes of float32 weights, 4 of gradients and 8 of Adam's moments a parameter: 16 P / R;
- reference policy (GRPO only): 2 P / R in bfloat16;
- one micro-batch: activations of one layer a token (gradient checkpointing) are small beside the logits, which are
  2 bytes in bfloat16 and 4 in float32 a token and entry of the vocabulary;
- vLLM: the share ``gpu_memory_utilization`` of the card, weights (2 P / tensor parallel) and key-value cache.

Host memory: a delayed rollout policy is kept as float32 shards, 4 P on all ranks together, and twice that while it is
pushed. Time: 2 P operations a generated token at ``generation_utilisation`` of the peak (decoding is bound by memory),
and 8 P a trained token (forward, backward, and the forward that gradient checkpointing repeats) at
``training_utilisation``; log-probabilities of other policies cost 2 P more each.
"""

from __future__ import annotations

from dataclasses import dataclass

from omegaconf import DictConfig

from bapo import config as configuration

VOCABULARY = 152_000  # Qwen2.5 and Qwen3


@dataclass(frozen=True)
class Estimate:
    """Bytes a GPU outside vLLM, bytes of host memory of all ranks, seconds a step in generation and in training."""

    gpu_bytes: float
    host_bytes: float
    seconds_generation: float
    seconds_training: float

    @property
    def seconds(self) -> float:
        return self.seconds_generation + self.seconds_training


def estimate(
    config: DictConfig,
    gpus: int = 8,
    mean_response: float | None = None,
    peak: float = 312e12,
    generation_utilisation: float = 0.05,
    training_utilisation: float = 0.35,
) -> Estimate:
    """Of one step of ``config`` with a full batch.

    mean_response: tokens, by default half the longest response. peak: bfloat16 operations a second of one GPU, by
    default an A100's.
    """
    parameters = config.model.parameters
    if not parameters:
        raise ValueError(f"model.parameters of {config.model.name} is not set; an estimate needs it")
    s, t, method = config.sampling, config.train, configuration.to_method(config)
    response = mean_response or s.max_response_tokens / 2
    rows = t.batch_size * t.group_size
    tokens = rows * (s.max_prompt_tokens / 2 + response)
    micro = max(1, (t.micro_batch_size or t.mini_batch_size * t.group_size) // gpus)
    micro *= s.max_prompt_tokens + s.max_response_tokens
    weights = 16 * parameters / gpus + (2 * parameters / gpus if method.needs_reference else 0)
    forwards = 8 + 2 * (method.needs_reference + method.needs_step_policy)
    return Estimate(
        gpu_bytes=weights + 6 * VOCABULARY * micro,
        host_bytes=8 * parameters if method.delays_rollout_policy else 0,
        seconds_generation=2 * parameters * rows * response / (gpus * peak * generation_utilisation),
        seconds_training=forwards * parameters * tokens / (gpus * peak * training_utilisation),
    )
