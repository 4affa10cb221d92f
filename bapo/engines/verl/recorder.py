"""The tables of a verl run: verl's metrics and validation under the names of this project, and the costs of steps."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping

import numpy as np

from bapo.engines.shared.records import Recorder, probe_row
from bapo.methods import Batch
from bapo.store.files import PROBE, Json

#: verl's name of the most memory that tensors took
MEMORY = "actor/perf/max_memory_allocated_gb"
#: verl's phases of an update
UPDATE = ("old_log_prob", "ref", "values", "adv", "update_critic", "update_actor")


class VerlRecorder(Recorder):
    """Keeps the tables of a run, from what verl measures."""

    def end_step(self, step: int, batch: Batch, seconds: Mapping[str, float], timing: Json, metrics: Json) -> Json:
        """Complete the row of a step, keep it and return it.

        Args:
            step: 1-based
            batch: what was trained on
            seconds: the sampler's, by phase
            timing, metrics: verl's
        """
        probe = timing.get("testing", 0.0)
        values = {
            # the verifier's seconds are summed over all workers, as verl grades each response when it arrives
            **{f"seconds_{phase}": seconds[phase] for phase in ("rollout", "regenerate", "reward")},
            "seconds_update": sum(timing.get(name, 0.0) for name in UPDATE),
            # the time to push weights to the rollout engine, and to compare log-probabilities
            "seconds_push": timing.get("update_weights", 0.0),
            "seconds_compare": timing.get("compare", 0.0),
            # the most GB that tensors took on a GPU since the job began. verl counts 2^30 bytes, and 0 on CPU cores
            "memory_peak_gb": float(metrics.get(MEMORY) or math.nan) * 2**30 / 1e9,
            "seconds_probe": probe,
            "seconds_total": timing["step"] + probe,
        }
        return self.end_row(step, batch, values)

    def add_probe(self, step: int, entries: Iterable[tuple[str, str, float]], problems: int) -> None:
        """Keep the accuracies of a probe.

        Args:
            step: the step after which the probe was made
            entries: (set, problem, reward) of every response
            problems: how many problems were probed

        Raises RuntimeError if responses are missing, because verl drops those whose rollout failed.
        """
        scores: dict[tuple[str, str], list[float]] = defaultdict(list)
        for name, problem, score in entries:
            scores[name, problem].append(score)
        short = [problem for (_, problem), values in scores.items() if len(values) % self.probe.samples]
        if short or len(scores) != problems:
            raise RuntimeError(f"step {step}: {len(scores)} of {problems} problems validated, {len(short)} in part")
        self.rows[PROBE] += [
            probe_row(step, name, problem, np.array(values)) for (name, problem), values in scores.items()
        ]


def update_metrics(metrics: Json) -> dict[str, float]:
    """Return the update's metrics under the names of ``steps.parquet``, from verl's means over the mini-batches."""
    values = {"loss": metrics["actor/bapo/loss"], "gradient_norm": metrics["actor/grad_norm"]}
    values |= means(metrics, "actor/bapo/")
    largest = {f"ratio_max_x{number}": metrics.get(f"actor/bapo/ratio_max_x{number}") for number in (1, 2, 3)}
    values |= {name: value for name, value in largest.items() if value}  # 0 without a response of that origin
    return {name: float(value) for name, value in values.items()}


def means(metrics: Json, prefix: str) -> dict[str, float]:
    """Return NAME_sum / NAME_count of the metrics with this prefix, by the NAME of ``learner.over_tokens``."""
    values = dict[str, float]()
    for key, total in metrics.items():
        match = re.fullmatch(rf"{prefix}(.+)_sum", key)
        if match and (count := metrics[f"{prefix}{match[1]}_count"]):
            values[match[1].replace("m~", "m")] = float(total / count)
    return values
