"""The tables of a verl run: verl's metrics and validation under our names, and what the steps have cost."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

from bapo.algorithm.rollouts import Group
from bapo.engines.shared import records
from bapo.engines.shared.costs import StepCosts
from bapo.experiments.budgets import Budget
from bapo.experiments.schema import Config
from bapo.methods import Batch, Method
from bapo.store.files import GROUPS, PROBE, STEPS, Json

PHASES = ("rollout", "regenerate", "reward", "update", "probe", "total")
MEMORY = "actor/perf/max_memory_allocated_gb"
#: verl's phases of an update
UPDATE = ("old_log_prob", "ref", "values", "adv", "update_critic", "update_actor")


class Recorder:
    """The tables of a run, how much of its budget is spent, and whether the policy is probed next."""

    def __init__(self, run: Config, method: Method, budget: Budget) -> None:
        self.run, self.method, self.budget = run, method, budget
        self.tables = records.Tables()
        self.row: Json = {}  # the running step's in steps.parquet
        self.spent, self.probes = 0.0, run.probe.prompts > 0  # the first probe is of the model before training

    def finished(self, step: int) -> bool:
        return self.budget.finished(self.spent, step)

    def begin_row(
        self,
        step: int,
        version: int,
        fresh: list[Group],
        batch: Batch,
        parameters: int,
        costs: StepCosts,
        update: Mapping[str, float],
    ) -> None:
        """Make the step's row of ``steps.parquet``, without its time: a budget decides by it whether the run ends.

        Args:
            step: 1-based
            version: of alpha
            fresh: the groups of the step's rollout
            batch: what was trained on
            parameters: how many the policy has
            costs: of the step
            update: metrics of the policy's update; none for an empty batch
        """
        seconds = dict.fromkeys(PHASES, 0.0)
        self.row = records.step_row(step, version, fresh, batch, self.method, parameters, costs, update, seconds)
        before, self.spent = self.spent, self.spent + self.budget.spent([self.row])
        due = self.budget.probes(before, self.spent, step, self.run.probe.points)
        self.probes = due and self.run.probe.prompts > 0

    def end_row(
        self, step: int, batch: Batch, seconds: Mapping[str, float], timing: Mapping[str, float], metrics: Json
    ) -> Json:
        """Complete the row and keep it.

        Args:
            step: 1-based
            batch: what was trained on
            seconds: the sampler's, by phase
            timing, metrics: verl's
        """
        probe = timing.get("testing", 0.0)
        self.row |= {
            # the verifier's seconds are summed over all workers: verl grades a response as soon as it comes
            **{f"seconds_{phase}": seconds[phase] for phase in ("rollout", "regenerate", "reward")},
            "seconds_update": sum(timing.get(name, 0.0) for name in UPDATE),
            # the next two are for weights on their way to the rollout engine, and for comparing log-probabilities
            "seconds_push": timing.get("update_weights", 0.0),
            "seconds_compare": timing.get("compare", 0.0),
            # the most GB of a GPU that tensors took since the job began; verl counts 2^30 bytes, and 0 on CPU cores
            "memory_peak_gb": float(metrics.get(MEMORY) or math.nan) * 2**30 / 1e9,
            "seconds_probe": probe,
            "seconds_total": timing["step"] + probe,
        }
        self.tables.rows[STEPS].append(self.row)
        self.tables.rows[GROUPS] += records.group_rows(step, batch)
        return self.row

    def add_probe(self, step: int, entries: Iterable[tuple[str, str, float]], problems: int) -> None:
        """Keep the accuracies of (set, problem, reward) of every response to ``problems`` problems.

        Raises RuntimeError if some are missing: verl drops the samples of a rollout that failed.
        """
        scores: dict[tuple[str, str], list[float]] = defaultdict(list)
        for name, problem, score in entries:
            scores[name, problem].append(score)
        short = [problem for (_, problem), values in scores.items() if len(values) % self.run.probe.samples]
        if short or len(scores) != problems:
            raise RuntimeError(f"step {step}: {len(scores)} of {problems} problems validated, {len(short)} in part")
        self.tables.rows[PROBE] += [
            {
                **{"step": step, "set": name, "prompt_id": problem},
                **{"correct": int(sum(s)), "samples": len(s), "mean": sum(s) / len(s)},
            }
            for (name, problem), s in scores.items()
        ]

    def read(self, folder: Path) -> None:
        """Go on from the tables in ``folder``."""
        self.tables.read(folder)
        self.spent = self.budget.spent(self.tables.rows[STEPS])


def update_metrics(metrics: Json) -> dict[str, float]:
    """Return the update's metrics under the names of ``steps.parquet``, from verl's means over the mini-batches."""
    values = {"loss": metrics["actor/bapo/loss"], "gradient_norm": metrics["actor/grad_norm"]}
    tokens = metrics["actor/bapo/tokens"]
    for name in ("clip_fraction", "kl", "entropy"):
        if tokens and f"actor/bapo/{name}_sum" in metrics:
            values[name] = metrics[f"actor/bapo/{name}_sum"] / tokens
    for name in (f"{kind}_x{number}" for kind in records.BY_ORIGIN for number in (1, 2, 3)):
        if metrics.get(f"actor/bapo/{name}_count"):
            values[name] = metrics[f"actor/bapo/{name}_sum"] / metrics[f"actor/bapo/{name}_count"]
    largest = {f"ratio_max_x{number}": metrics.get(f"actor/bapo/ratio_max_x{number}") for number in (1, 2, 3)}
    values |= {name: value for name, value in largest.items() if value}  # 0: no response of that origin
    return {name: float(value) for name, value in values.items()}
