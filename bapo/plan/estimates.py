"""Estimate memory and time of a GPU run from the number of parameters alone, before any GPU is used.

``python -m bapo.plan.estimates`` prints it for every run of the studies at paper scale (docs/paper_scale.md), with
``single_gpu`` behind it for those of that scale (docs/single_gpu.md).

Memory a GPU is that by which verl's micro-batches are cut (``bapo.engines.verl.memory``).

Host memory: a delayed rollout policy is kept as float32 shards, 4 P on all ranks together, and twice that while it is
pushed; a policy that is kept there itself takes 16 P, the reference policy 2 P. Time: 2 P operations a generated token
at ``generation_utilisation`` of the peak (decoding is bound by memory), and 8 P a trained token (forward, backward, and
the forward that gradient checkpointing repeats) at ``training_utilisation``; log-probabilities of other policies cost
2 P more each, a critic 8 P for its update and 2 P for its values. DAPO is charged for all the generation batches that
it may draw, BAPO for as many re-evaluations as it may make, RePO for all its replays, and every method for a full
training batch: upper bounds. Probe, validation, checkpoints, and the processor's updates of a policy in host memory,
are not counted.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace

from omegaconf import DictConfig

from bapo import methods
from bapo.engines.verl import memory
from bapo.errors import UserError
from bapo.experiments import budgets, studies
from bapo.experiments import compose as configuration
from bapo.experiments.cells import Cell


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
    row = s.max_prompt_tokens + s.max_response_tokens
    size = memory.memory_of(config, gpus, card / memory.GIGABYTE)
    asked = row * max(1, (t.micro_batch_size or t.mini_batch_size * t.group_size) // gpus)
    micro = min(asked, max(row, size.tokens(row)))
    rows = t.batch_size * t.group_size
    generated = rows * generation_batches(config)
    replayed = getattr(config.method, "replays", 0) / t.group_size  # RePO's share of a batch, on top of it
    tokens = rows * (1 + replayed) * (s.max_prompt_tokens / 2 + response)
    share = config.verl.get("gpu_memory_utilization", 0.5)
    forwards = 8 + 2 * (method.needs_reference + method.needs_step_policy) + 10 * method.uses_critic
    return Estimate(
        gpu_bytes=size.states + memory.LOGITS * memory.VOCABULARY * micro,
        gpu_bytes_generating=size.generating + share * card,
        host_bytes=parameters
        * (8 * method.delays_rollout_policy + 16 * memory.in_host_memory(config) + 2 * method.needs_reference),
        seconds_generation=2 * parameters * generated * response / (gpus * peak * generation_utilisation),
        seconds_training=forwards * parameters * tokens / (gpus * peak * training_utilisation),
    )


def generation_batches(config: DictConfig) -> float:
    """Return how many batches of ``train.batch_size`` groups are generated a step at most."""
    m = config.method
    if hasattr(m, "max_generation_batches"):
        return float(m.max_generation_batches)
    if not hasattr(m, "m") or m.algorithm == "bapo_without_x2":
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
        "bapo+fixed_0_2": 3.9,
        "bapo+fixed_3_4": 3 + 4 / 60,
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
#: scale -> the studies whose runs are listed
LISTED = {"paper": PAPERS_STUDIES, "single_gpu": ("table1", "single_gpu")}
#: GB of the cards that there are
CARDS = (16, 24, 40, 48, 80)


def smallest_card(config: DictConfig) -> int:
    """Return the GB of the smallest of CARDS that a run fits. Raises UserError where it fits none."""
    row = config.sampling.max_prompt_tokens + config.sampling.max_response_tokens
    for card in CARDS:
        try:
            memory.micro_batch_tokens(config, config.verl.gpus_per_node, row, card)
        except UserError:
            if card == CARDS[-1]:
                raise
        else:
            break
    return card


def table(scale: str = "paper") -> str:
    """Write Markdown: a row for every run of the scale's listed studies, whatever its seed, shared runs once.

    The paper's runs stand with 80 GB and the paper's hours, others with the smallest card that they fit.
    """
    papers = scale == "paper"
    titles: dict[Cell, dict[str, None]] = {}
    for name in LISTED[scale]:
        study = studies.load_study(name, scale)
        for cell in study.cells:
            titles.setdefault(replace(cell, seed=0), {})[study.title] = None
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
        "paper" if papers else "GB, card",
    ]
    lines = [f"| {' | '.join(head)} |", "| :-- | :-- | :-- |" + " --: |" * (len(head) - 3)]
    for cell, users in titles.items():
        config = configuration.run_config(scale, cell.task, cell.model, cell.method, cell.seed)
        card = 80 if papers else smallest_card(config)
        e, count = estimate(config, config.verl.gpus_per_node, card=card * memory.GIGABYTE), budgets.steps(config)
        sizes = [f"{x / 1e9:.0f}" for x in (e.gpu_bytes, e.gpu_bytes_generating, e.host_bytes)]
        hours = PAPER_HOURS.get(cell.model, {}).get(cell.method)
        last = str(card) if not papers else "" if hours is None else f"{hours:.1f}"
        cells = [config.model.title, cell.method, ", ".join(users), *sizes, f"{e.seconds:.0f}", str(count)]
        cells += [f"{e.seconds * count / 3600:.1f}", last]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(table(*sys.argv[1:]), end="")
