"""What only verl runs need to fill their run directory: verl's metrics and validation under our names."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any


def update_metrics(metrics: dict[str, Any]) -> dict[str, float]:
    """The update's metrics under the names of ``steps.parquet``, from verl's means over the mini-batches."""
    found = {"loss": metrics.get("actor/bapo/loss"), "gradient_norm": metrics.get("actor/grad_norm")}
    tokens = metrics.get("actor/bapo/tokens", 0)
    for name in ("clip_fraction", "kl", "entropy"):
        if tokens and f"actor/bapo/{name}_sum" in metrics:
            found[name] = metrics[f"actor/bapo/{name}_sum"] / tokens
    for name in (f"{kind}_x{number}" for kind in ("tv", "surrogate") for number in (1, 2, 3)):
        if metrics.get(f"actor/bapo/{name}_count"):
            found[name] = metrics[f"actor/bapo/{name}_sum"] / metrics[f"actor/bapo/{name}_count"]
    return {name: float(value) for name, value in found.items() if value is not None}


def probe_rows(step: int, entries: Iterable[tuple[str, str, float]]) -> list[dict[str, Any]]:
    """``probe.parquet`` from (set, problem, reward) of each response."""
    scores: dict[tuple[str, str], list[float]] = defaultdict(list)
    for name, problem, score in entries:
        scores[name, problem].append(score)
    return [
        {
            "step": step,
            "set": name,
            "prompt_id": problem,
            "correct": int(sum(s)),
            "samples": len(s),
            "mean": sum(s) / len(s),
        }
        for (name, problem), s in scores.items()
    ]
