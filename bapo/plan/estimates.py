"""Estimate memory and time of a GPU run from the number of parameters alone, before any GPU is used.

``python -m bapo.plan.estimates`` prints it for every run of the studies at paper scale (docs/paper_scale.md).

Memory a GPU, with P parameters on R ranks (FSDP2 shards everything):

- training: 4 bytes of float32 weights, 4 of gradients and 8 of Adam's moments a parameter: 16 P / R;
- reference policy (GRPO only): 2 P / R in bfloat16;
- a critic (PPO, BA-PPO): as much as training the policy once more, 16 P / R;
- one micro-batch: activations of one layer a token (gradient checkpointing) are small beside the logits, which are
  2 bytes in bfloat16 and 4 in float32 a token and entry of the vocabulary;
- vLLM, while it generates: the share ``gpu_memory_utilization`` of the card, for its weights (2 P / tensor parallel)
  and key-value cache, beside the training's weights and optimiser; it gives them back while the policy is trained.

Host memory: a delayed rollout policy is kept as float32 shards, 4 P on all ranks together, and twice that while it is
pushed. Time: 2 P operations a generated token at ``generation_utilisation`` of the peak (decoding is bound by memory),
and 8 P a trained token (forward, backward, and the forward that gradient checkpointing repeats) at
``training_utilisation``; log-probabilities of other policies cost 2 P more each, a critic 8 P for its update and 2 P
for its values. DAPO is charged for all the generation batches that it may draw, BAPO for as many re-evaluations as it
may make, RePO for all its replays, and every method for a full training batch: upper bounds. Probe, validation and
checkpoints are not counted.
"""

from __future__ import annotations

from dataclasses import dataclass

from omegaconf import DictConfig

from bapo import methods
from bapo.experiments import budgets, studies
from bapo.experiments import compose as configuration
from bapo.experiments.cells import Cell

VOCABULARY = 152_000  # Qwen2.5 and Qwen3


@dataclass(frozen=True)
class Estimate:
    """Bytes a GPU while training and while generating, bytes of host memory of all ranks, seconds a step of both."""

    gpu_bytes: float
    gpu_bytes_generating: float
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
    card: float = 80e9,
) -> Estimate:
    """Estimate one step of ``config`` with a full batch.

    mean_response: tokens, by default half the longest response. peak: bfloat16 operations a second of one GPU, card:
    its bytes, by default an A100's.
    """
    parameters = config.model.parameters
    if not parameters:
        raise ValueError(f"model.parameters of {config.model.name} is not set; an estimate needs it")
    s, t, method = config.sampling, config.train, methods.of_run(config)
    response = mean_response or s.max_response_tokens / 2
    rows = t.batch_size * t.group_size
    generated = rows * generation_batches(config)
    replayed = config.method.get("replays", 0) / t.group_size  # RePO's share of a batch, on top of it
    tokens = rows * (1 + replayed) * (s.max_prompt_tokens / 2 + response)
    micro = max(1, (t.micro_batch_size or t.mini_batch_size * t.group_size) // gpus)
    micro *= s.max_prompt_tokens + s.max_response_tokens
    weights = 16 * parameters / gpus * (1 + method.uses_critic)
    weights += 2 * parameters / gpus if method.needs_reference else 0
    share = config.verl.get("gpu_memory_utilization", 0.5)
    forwards = 8 + 2 * (method.needs_reference + method.needs_step_policy) + 10 * method.uses_critic
    return Estimate(
        gpu_bytes=weights + 6 * VOCABULARY * micro,
        gpu_bytes_generating=weights + share * card,
        host_bytes=8 * parameters if method.delays_rollout_policy else 0,
        seconds_generation=2 * parameters * generated * response / (gpus * peak * generation_utilisation),
        seconds_training=forwards * parameters * tokens / (gpus * peak * training_utilisation),
    )


def generation_batches(config: DictConfig) -> float:
    """Return how many batches of ``train.batch_size`` groups are generated a step at most."""
    m = config.method
    if "max_generation_batches" in m:
        return float(m.max_generation_batches)
    if "m" not in m or m.algorithm == "bapo_without_x2":
        return 1.0
    half = max(1, config.train.batch_size // 2)
    return 1.0 + (m.max_reevaluated or half) / config.train.batch_size / m.m


#: hours on 8 A100, Table 2 of the paper, which names no model: the small one of each task
PAPER_HOURS = {
    "deepseek-r1-distill-qwen-1.5b": {"grpo": 40 + 58 / 60, "dapo": 63.5, "bapo": 46 + 37 / 60},
    "qwen2.5-math-1.5b": {
        "grpo": 3 + 47 / 60,
        "dapo": 6 + 35 / 60,
        "bapo": 3 + 23 / 60,
        "bapo_without_x2": 2 + 38 / 60,
        "bapo_without_x3": 3 + 4 / 60,
        "bapo_fixed_0_2": 3.9,
        "bapo_fixed_3_4": 3 + 4 / 60,
    },
    "qwen2.5-vl-3b": {
        "grpo": 7 + 55 / 60,
        "dapo": 12 + 19 / 60,
        "bapo": 5 + 50 / 60,
        "bapo_without_x2": 3.7,
        "bapo_without_x3": 4 + 31 / 60,
    },
}


#: the experiments that the paper reports; the other studies are ours
PAPERS_STUDIES = ("table1", "figure5", "figure6", "figure10", "figure16")


def table() -> str:
    """Write Markdown: a row for every run of the paper's own studies at paper scale, shared runs once."""
    titles: dict[Cell, list[str]] = {}
    for name in PAPERS_STUDIES:
        study = studies.load_study(name, "paper")
        for cell in study.cells:
            titles.setdefault(cell, []).append(study.title)
    head = [
        "model",
        "method",
        "for",
        "GB, training",
        "GB, generating",
        "GB, host",
        "s a step",
        "steps",
        "hours",
        "paper",
    ]
    lines = [f"| {' | '.join(head)} |", "| :-- | :-- | :-- |" + " --: |" * (len(head) - 3)]
    for cell, users in titles.items():
        config = configuration.run_config("paper", cell.task, cell.model, cell.method, cell.seed)
        e, count = estimate(config), budgets.steps(config)
        sizes = [f"{x / 1e9:.0f}" for x in (e.gpu_bytes, e.gpu_bytes_generating, e.host_bytes)]
        hours = PAPER_HOURS.get(cell.model, {}).get(cell.method)
        cells = [config.model.title, cell.method, ", ".join(users), *sizes, f"{e.seconds:.0f}", str(count)]
        cells += [f"{e.seconds * count / 3600:.1f}", "" if hours is None else f"{hours:.1f}"]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(table(), end="")
