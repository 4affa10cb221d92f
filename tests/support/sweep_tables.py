"""``trials.json`` of a sweep whose runs have accuracies that are written down in the test."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from bapo.store.files import write_json
from support.runs import write_run

PROBLEMS = 8


def run(folder: Path, means: list[float]) -> str:
    """A finished run whose held-out problems end at ``means``; before and beside them stands what must not be read."""
    rows = [(0, "probe", f"p{i}", 0.0) for i in range(len(means))] + [(6, "train", f"p{i}", 1.0) for i in range(3)]
    rows += [(6, "probe", f"p{i}", mean) for i, mean in enumerate(means)]
    return str(write_run(folder, probe=pd.DataFrame(rows, columns=["step", "set", "prompt_id", "mean"])))


def distribution(choices: list[Any] | None, low: float = 1, high: float = 30) -> str:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, distribution_to_json

    return distribution_to_json(CategoricalDistribution(choices) if choices else FloatDistribution(low, high))


def sweep(folder: Path, parameters: dict[str, list[Any] | None], trials: list[dict[str, Any]], **changes: Any) -> Path:
    """``trials.json`` of trials given by their values and the accuracy of every problem of each seed."""
    rows = []
    for number, t in enumerate(trials):
        places = {
            str(s): {"run": run(folder / f"t{number}" / f"seed{s}", table), "accuracy": float(np.mean(table))}
            for s, table in enumerate(t["seeds"], 1)
        }
        value = float(np.mean([p["accuracy"] for p in places.values()])) if places else None
        row = {"slot": number, "number": number, "state": "complete", "reason": "", "value": value}
        rows.append(row | t | {"seeds": places})
    seeds = [1, 2]
    grpo = {
        str(s): run(folder / "grpo" / f"seed{s}", [0.3 + 0.02 * i + 0.01 * s for i in range(PROBLEMS)]) for s in seeds
    }
    content = {
        "title": "Small",
        "scale": "smoke",
        "note": "Its numbers mean nothing.",
        "model_title": "Model M",
        "method_title": "+BAPO",
        "seeds": seeds,
        "validation": {"set": "probe", "samples": 4},
        "parameters": [
            {"name": n, "title": f"the {n}", "choices": c, "distribution": distribution(c)}
            for n, c in parameters.items()
        ],
        "reference": {"title": "+GRPO", "runs": grpo},
        "trials": rows,
    }
    path = folder / "trials.json"
    write_json(path, content | changes)
    return path


def table(mean: float, shift: float = 0.01) -> list[list[float]]:
    """Two seeds, ``shift`` above and below ``mean``, on problems that spread around it alike."""
    spread = [0.02 * (i - (PROBLEMS - 1) / 2) for i in range(PROBLEMS)]
    return [[mean + s + x for x in spread] for s in (shift, -shift)]
