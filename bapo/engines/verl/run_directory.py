"""The run directory of a verl run: the same tables, with the same columns, as the torch engine writes."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bapo import runs, theory
from bapo.methods import Batch, Method
from bapo.rollouts import FRESH, ORIGINS, Group


@dataclass
class Ledger:
    """What one step cost."""

    fresh_rollouts: int = 0
    regenerated_rollouts: int = 0
    generated_tokens: int = 0
    prompt_tokens: int = 0
    trained_tokens: int = 0
    forwards: int = 0
    seconds_regenerate: float = 0.0

    def add(self, groups: list[Group], origin: str, prompt_tokens: int) -> None:
        """Groups that were just generated; one prefill a prompt."""
        rollouts = sum(g.size for g in groups)
        if origin == FRESH:
            self.fresh_rollouts += rollouts
        else:
            self.regenerated_rollouts += rollouts
        self.generated_tokens += int(sum(g.samples.lengths.sum() for g in groups))
        self.prompt_tokens += prompt_tokens


def step_row(
    step: int, rollout_version: int, fresh: list[Group], batch: Batch, method: Method, parameters: int, ledger: Ledger,
    update: dict[str, float], seconds: dict[str, float],
) -> dict[str, Any]:  # fmt: skip
    """One row of ``steps.parquet``. ``update``: metrics of the policy update (none for an empty batch)."""
    means = np.array([g.mean for g in fresh])
    nan = math.nan
    extra = {"generation_batches": 1.0, "reevaluated_prompts": 0.0, **dict.fromkeys(
        ("c2", "c3", "r_tot", "bad_buffer", "high_buffer"), nan), **batch.metrics}  # fmt: skip
    c1 = getattr(method.config, "c1", None)
    k = (
        theory.k1(fresh[0].size),
        nan if c1 is None else theory.k2(c1),
        nan if math.isnan(extra["c2"]) else theory.k3(extra["c2"], extra["c3"]),
    )
    generation = 2.0 * parameters * (ledger.generated_tokens + ledger.prompt_tokens)
    return {
        "step": step,
        "policy_version": step - 1,
        "rollout_version": rollout_version,
        "staleness": step - 1 - rollout_version,
        "reward_mean": float(means.mean()),
        "groups_fresh": len(fresh),
        "groups_none_correct": int((means == 0).sum()),
        "groups_all_correct": int((means == 1).sum()),
        "batch_groups": len(batch.groups),
        **{f"x{i}": sum(g.origin == o for g in batch.groups) for i, o in enumerate(ORIGINS, start=1)},
        **{name: float(value) for name, value in extra.items()},
        "updates": int(update.get("updates", 0)),
        **{name: update.get(name, nan) for name in ("loss", "gradient_norm", "clip_fraction", "kl", "entropy")},
        "response_length": float(np.concatenate([g.samples.lengths for g in fresh]).mean()),
        **{name: update.get(name, nan) for name in ("tv_x1", "tv_x2", "tv_x3")},
        **{f"k{i}": value for i, value in enumerate(k, start=1)},
        "learning_rate": update.get("learning_rate", nan),
        "fresh_rollouts": ledger.fresh_rollouts,
        "regenerated_rollouts": ledger.regenerated_rollouts,
        "generated_tokens": ledger.generated_tokens,
        "trained_tokens": ledger.trained_tokens,
        # 2 and 4 operations a parameter and token; attention is left out
        "forward_flops": generation + 2.0 * parameters * ledger.forwards,
        "backward_flops": 4.0 * parameters * ledger.trained_tokens,
        **{f"seconds_{phase}": value for phase, value in seconds.items()},  # "total" is one of them
    }


def update_metrics(metrics: dict[str, Any]) -> dict[str, float]:
    """The update's metrics under the names of ``steps.parquet``, from verl's means over the mini-batches."""
    found = {"loss": metrics.get("actor/bapo/loss"), "gradient_norm": metrics.get("actor/grad_norm")}
    tokens = metrics.get("actor/bapo/tokens", 0)
    for name in ("clip_fraction", "kl", "entropy"):
        if tokens and f"actor/bapo/{name}_sum" in metrics:
            found[name] = metrics[f"actor/bapo/{name}_sum"] / tokens
    for name in ("tv_x1", "tv_x2", "tv_x3"):
        if metrics.get(f"actor/bapo/{name}_count"):
            found[name] = metrics[f"actor/bapo/{name}_sum"] / metrics[f"actor/bapo/{name}_count"]
    return {name: float(value) for name, value in found.items() if value is not None}


def probe_rows(step: int, entries: Iterable[tuple[str, str, float]]) -> list[dict[str, Any]]:
    """``probe.parquet`` from (set, problem, reward) of each response."""
    scores: dict[tuple[str, str], list[float]] = defaultdict(list)
    for name, problem, score in entries:
        scores[name, problem].append(score)
    return [
        {"step": step, "set": name, "prompt_id": problem, "correct": int(sum(s)), "samples": len(s),
         "mean": sum(s) / len(s)}
        for (name, problem), s in scores.items()
    ]  # fmt: skip


class Tables:
    """Rows of the three tables, in memory until they are written."""

    def __init__(self) -> None:
        self.rows: dict[str, list[dict[str, Any]]] = {name: [] for name in runs.TABLES}

    def write(self, folder: Path) -> None:
        import pandas as pd

        for name, rows in self.rows.items():
            runs.write_parquet(folder / name, pd.DataFrame(rows))

    def read(self, folder: Path) -> None:
        for name in self.rows:
            self.rows[name] = runs.read_table(folder / name).to_dict("records")


def summary(folder: Path, identity: str, total_steps: int, checkpoint: Path) -> dict[str, Any]:
    """``summary.json`` of a finished run, from the tables in its folder."""
    steps = runs.read_table(folder / runs.STEPS)
    sums = ("fresh_rollouts", "regenerated_rollouts", "generated_tokens", "trained_tokens", "updates",
            "forward_flops", "backward_flops")  # fmt: skip
    totals = {name: steps[name].sum().item() for name in sums}
    return {
        "identity": identity,
        "steps": total_steps,
        "checkpoint": str(checkpoint.relative_to(folder)),
        "totals": {
            "rollouts": totals["fresh_rollouts"] + totals["regenerated_rollouts"],
            **totals,
            "seconds": float(steps["seconds_total"].sum() - steps["seconds_probe"].sum()),
        },
        "final": {"reward_mean": float(steps["reward_mean"].tail(10).mean())},
        "files": runs.fingerprints(folder, runs.TABLES),
    }
