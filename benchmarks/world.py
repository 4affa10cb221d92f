"""Shared parts of the benchmarks: options, timing in turns, ratios."""

from __future__ import annotations

import argparse
import os
import platform
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

if TYPE_CHECKING:
    from bapo.algorithm.rollouts import Prompt
    from bapo.engines.shared.sampler import SamplingParameters


def arguments(description: str, rounds: int) -> argparse.ArgumentParser:
    """Return a parser with the options of every benchmark."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--results", type=Path, help="results folder that holds a trained laptop base (default: make one)"
    )
    parser.add_argument("--rounds", type=int, default=rounds, help=f"measurements of each side (default: {rounds})")
    parser.add_argument("--smallest", action="store_true", help="a few seconds, to see that it works: no figures")
    return parser


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

    inputs: what ``generate`` takes of the prompts, padded on the left. Useful tokens are counted: up to the end token.
    """
    import torch

    from bapo import seeds
    from bapo.engines.shared.answers import draw

    calls: Counter[str] = Counter()
    tokens: dict[str, list[int]] = {"generate": [], "general": [], "fast": []}
    ends = torch.tensor(parameters.eos_ids)

    def ours(name: str) -> None:
        calls[name] += 1
        groups = draw(
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
                pad_token_id=parameters.pad_id,
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
    import torch

    name = platform.processor() or platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []:
        if line.startswith("model name"):
            name = line.partition(":")[2].strip()
            break
    return f"{name}, {os.cpu_count()} cores, {torch.get_num_threads()} thread(s), torch {torch.__version__}"
