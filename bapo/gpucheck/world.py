"""The tiny world of ``gpu-check``: Countdown at smoke scale, a model that every attention kernel takes, real vLLM.

And the table of what is found in it.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bapo.experiments.compose import compose_config
from bapo.experiments.schema import Config

#: seconds that one job may take; a minute is usual on a GPU
LIMIT = 1800
#: most that both engines' log-probabilities may differ by on average: the same numbers in float32; rounding and kernels
#: in bfloat16
MISMATCH = {"cpu": 1e-3, "cuda": 2e-2}
#: GB that training the paper's smallest model on one GPU takes (docs/paper_scale.md)
SMALLEST = 24
SHARE = 0.3  # of the card, for vLLM
PROMPTS = 10  # evaluated
STEPS = 4
#: after this many steps the run is killed
KILLED_AFTER = 2
BENCHMARK = "cd34"


def overrides(folder: Path, device: str) -> list[str]:
    """Return the Hydra overrides of every job of the check.

    Heads of 64: vLLM's kernels on CPU cores begin at 32. bfloat16 on GPUs, so that the export has something to convert.
    """
    architecture = {"hidden_size": 128, "num_attention_heads": 2, "num_key_value_heads": 2, "intermediate_size": 256}
    return [
        "scale=smoke",
        "task=countdown",
        "method=bapo",
        "engine=verl",
        f"device={device}",
        "tracking=none",
        f"paths.results={folder / 'results'}",
        f"model.dtype={dtype(device)}",
        *(f"model.architecture.{key}={value}" for key, value in architecture.items()),
        # enough to solve a few problems: without a single reward nothing would be trained
        "base.iterations=350",
        "data.generator.number_max=8",
        "data.generator.three_number_share=0.8",
        "data.generator.noise=0.1",
        f"data.split_sizes={{base: 4000, train: 48, probe: 8, cd34: {PROMPTS}, cd4: 4}}",
        "method.v=2",
        f"train.steps={STEPS}",
        "train.batch_size=8",
        "train.mini_batch_size=4",
        "train.group_size=8",
        "probe.prompts=0",
        "checkpoint.every=1",
        "evaluation.backend=vllm",
        f"evaluation.benchmarks=[{BENCHMARK}]",
        "evaluation.samples=4",
        f"evaluation.vllm.dtype={dtype(device)}",
        f"evaluation.vllm.gpu_memory_utilization={SHARE}",
        "verl.rollout=vllm",
        "verl.gpus_per_node=1",
        f"verl.gpu_memory_utilization={SHARE}",
        f"verl.gpu_memory={SMALLEST}",  # so that a part of a card, whose size nvidia-smi does not say, can be checked
    ]


def dtype(device: str) -> str:
    """Return what the model is kept and sampled in: on CPU cores exact and fast, so that a difference is a fault."""
    return "float32" if device == "cpu" else "bfloat16"


def config_of(folder: Path, device: str) -> Config:
    return compose_config(overrides(folder, device))


# ------------------------------------------------------------------------------------------------ the table

FINE, WRONG, SKIPPED = "fine", "NOT", "-"


@dataclass(frozen=True)
class Row:
    """What was looked at, FINE, WRONG or SKIPPED, what was found, and the cure where it is wrong."""

    name: str
    state: str
    found: str
    cure: str = ""


def judged(name: str, ok: bool, found: str, cure: str) -> Row:
    return Row(name, FINE if ok else WRONG, found, "" if ok else cure)


def wrong(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if row.state == WRONG]


def table(rows: Sequence[Row]) -> str:
    """Write the rows for people, the cures behind them."""
    width = max(len(row.name) for row in rows)
    lines = [f"{row.state:<5}{row.name:<{width}}  {row.found}" for row in rows]
    for row in wrong(rows):
        lines += ["", *textwrap.wrap(f"{row.name}: {row.cure}", 110)]
    return "\n".join([*lines, "", f"gpu-check: {len(wrong(rows))} of {len(rows)} are not fine"]) + "\n"
