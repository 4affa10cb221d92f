"""Shared parts of the benchmarks: options, a trained base, timing in turns, ratios."""

from __future__ import annotations

import argparse
import os
import platform
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from bapo.algorithm.rollouts import Prompt
    from bapo.engines.shared.sampling import SamplingParameters


def arguments(description: str, rounds: int) -> argparse.ArgumentParser:
    """Return a parser with the options of every benchmark."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--results", type=Path, help="results folder that holds a trained laptop base (default: make one)"
    )
    parser.add_argument("--rounds", type=int, default=rounds, help=f"measurements of each side (default: {rounds})")
    parser.add_argument("--smallest", action="store_true", help="a few seconds, to see that it works: no figures")
    return parser


#: what makes a base model in 40 s whose responses end where trained ones do, and of which some are right
TRAINED_BASE = (
    "data.split_sizes={base: 8000, train: 400, probe: 8, cd34: 400, cd4: 8}",
    "data.generator.noise=0",
    "data.generator.three_number_share=1.0",
)
#: iterations of it; with ``--smallest`` just so many that some responses are right
ITERATIONS, SMALLEST = 800, 400


def trained_base(results: Path | None, *options: str, smallest: bool = False) -> DictConfig:
    """Return the configuration of a laptop's Countdown run; data and base model are those of ``results``, or made."""
    from bapo.engines.torch.base_model import train_base
    from bapo.experiments.compose import compose_config
    from bapo.tasks.job import make_data

    common = ["tracking=none", "task=countdown", "threads=1", *options]
    if results:
        return compose_config([*common, f"paths.results={results}"])
    folder = tempfile.mkdtemp(prefix="bapo-benchmark-")
    iterations = f"base.iterations={SMALLEST if smallest else ITERATIONS}"
    config = compose_config([*common, *TRAINED_BASE, iterations, f"paths.results={folder}"])
    print(f"training a small base model in {folder}", flush=True)
    make_data(config)
    train_base(config)
    return config


def interleave(sides: dict[str, Callable[[], object]], rounds: int) -> dict[str, np.ndarray]:
    """Measure each side's CPU seconds, float [rounds], in turns (A B A B) so that a busy machine slows all alike.

    An extra round before the first is not counted.
    """
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(rounds + 1):
        for name, run in sides.items():
            begun = time.process_time()
            run()
            if number:
                seconds[name].append(time.process_time() - begun)
    return {name: np.array(values) for name, values in seconds.items()}


def against_generate(
    label: str,
    model: Any,
    prompts: list[Prompt],
    group_size: int,
    parameters: SamplingParameters,
    inputs: dict[str, Any],
    rounds: int,
) -> None:
    """Print tokens per second of ``generate``, of our general sampler and of the fast forward, and ratios to the first.

    label: begins each line; group_size: samples of a prompt; inputs: what ``generate`` takes of the prompts, padded on
    the left; rounds: measurements of each. Useful tokens are counted: up to the end token.
    """
    import torch

    from bapo import seeds
    from bapo.engines.shared.responses import sample_responses

    calls: Counter[str] = Counter()
    tokens: dict[str, list[int]] = {"generate": [], "general": [], "fast": []}
    ends = torch.tensor(parameters.eos_ids)

    def ours(name: str) -> None:
        calls[name] += 1
        groups = sample_responses(
            model, prompts, group_size, seeds.key64("benchmark", calls[name]), parameters, fast=name == "fast"
        )
        tokens[name].append(int(sum(g.lengths.sum() for g in groups)))

    def theirs() -> None:
        calls["generate"] += 1
        torch.manual_seed(calls["generate"])
        with torch.inference_mode():
            whole = model.generate(
                **inputs,
                do_sample=True,
                temperature=1.0,
                top_k=0,
                top_p=1.0,
                num_return_sequences=group_size,
                max_new_tokens=parameters.max_tokens,
                eos_token_id=parameters.eos_ids[0] if parameters.eos_ids else None,
                pad_token_id=0,
            )[:, inputs["input_ids"].shape[1] :]
        ended = torch.isin(whole, ends)
        tokens["generate"].append(int((ended.cumsum(1) - ended.long() == 0).sum()))

    sides = {"generate": theirs, "general": lambda: ours("general"), "fast": lambda: ours("fast")}
    seconds = interleave(sides, rounds)
    rates = {name: np.array(tokens[name][1:]) / seconds[name] for name in sides}
    for name, rate in rates.items():
        ratio = spread(rate / rates["generate"])
        print(f"{label:<34}{name:<10}{spread(rate / 1000, '{:.1f}'):>18} k  {ratio:>18}")


def spread(values: np.ndarray, form: str = "{:.2f}") -> str:
    """Format median and quartiles, for example ``3.01 (2.95-3.10)``."""
    low, middle, high = np.quantile(values, [0.25, 0.5, 0.75])
    return f"{form.format(middle)} ({form.format(low)}-{form.format(high)})"


def machine() -> str:
    """Return the processor, cores, threads and torch in words."""
    import torch

    name = platform.processor() or platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []:
        if line.startswith("model name"):
            name = line.partition(":")[2].strip()
            break
    return f"{name}, {os.cpu_count()} cores, {torch.get_num_threads()} thread(s), torch {torch.__version__}"
