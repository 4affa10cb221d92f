"""What a training step leaves in the run's folder, with both engines: rows of tables, and the summary at the end."""

from __future__ import annotations

import math
import re
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from bapo.algorithm import theory
from bapo.algorithm.rollouts import DEMONSTRATED, FRESH, ORIGINS, Group
from bapo.engines.shared.costs import StepCosts
from bapo.errors import UserError
from bapo.experiments import budgets
from bapo.experiments.identity import base_identity, data_identity
from bapo.experiments.schema import Config
from bapo.methods import Batch, Method
from bapo.store import columns, files
from bapo.store.files import GROUPS, STEPS, TABLES, Json, atomic, fingerprints, read_table, write_parquet
from bapo.store.provenance import start_manifest

#: fields of ``StepCosts`` that are columns of ``steps.parquet`` and totals of ``summary.json``
COUNTS = ("fresh_rollouts", "regenerated_rollouts", "generated_tokens", "trained_tokens")
#: metrics of a critic's update; nan for a method without one
CRITIC = ("value_loss", "value_clip_fraction", "explained_variance", "critic_gradient_norm")

#: means over the responses of one origin that an update reports, as NAME_x1 to NAME_x3: ``terms_by_origin``
BY_ORIGIN = ("tv", "surrogate", "clipped", "clipped_upper", "clipped_lower", "ratio", "ratio_squared")
#: The columns of ``steps.parquet`` by origin: most of BY_ORIGIN, and the tails of pi/alpha over a step's responses. The
#: 99th percentile is nan with verl, whose workers report sums only.
RECORDED_BY_ORIGIN = (*BY_ORIGIN[:5], "ratio_p99", "ratio_max")

#: names that the metrics of a method cannot have: columns that methods do not write, and further metrics of updates
RESERVED = {name.replace("_xN", f"_x{i}") for name in columns.STEP.keys() - columns.OF_METHODS for i in (1, 2, 3)}
RESERVED |= {"critic_tokens", "scored_tokens", *(f"{name}_x{i}" for name in BY_ORIGIN for i in (1, 2, 3))}

#: parts of a step whose seconds are columns of ``steps.parquet``; "total" is the whole step
PHASES = ("rollout", "regenerate", "reward", "update", "probe", "total")

#: mean and maximum over tokens of the distance between the log-probabilities of the rollout and of the training engine,
#: with the same weights in both; nan where one engine does both
MISMATCH = ("mismatch_mean", "mismatch_max")


def warn(overloaded: int, where: str, say: Callable[[str], None] | None = None) -> None:
    """Report, on stderr or by ``say``, how many responses the machine was too busy to grade, if any."""
    if overloaded:
        cause = f"the machine was too busy to grade {overloaded} responses, counted as wrong; give it more CPU cores"
        (say or (lambda text: print(text, file=sys.stderr, flush=True)))(f"warning: {where}: {cause}")


def ended(fresh: list[Group], batch: Batch) -> list[Group]:
    """Return the new groups with all their rewards: with a budget of tokens, those whose last response ended now."""
    budgeted = any(g.unfinished is not None for g in fresh)
    return [g for g in batch.groups if g.origin == FRESH] if budgeted else fresh


class Recorder:
    """Keeps the tables of a run in memory until they are written.

    ``rows`` has them by table. ``spent`` is the spent part of the run's budget, and ``probes`` says whether the policy
    is probed next.
    """

    def __init__(self, config: Config, method: Method, budget: budgets.Budget) -> None:
        self.method, self.budget, self.probe = method, budget, config.probe
        self.rows: dict[str, list[Json]] = {name: [] for name in TABLES}
        self.row: Json = {}  # the running step's in steps.parquet
        self.left_out: list[Group] = []  # new groups of the running step that the method neither lists nor keeps
        self.spent, self.probes = 0.0, config.probe.prompts > 0  # the first probe is of the model before training

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
        """Make the step's row, without its time. The budget then tells whether the run ends, or is probed.

        Args:
            step: 1-based
            version: the step after which alpha's weights were taken
            fresh: the groups of the step's rollout
            batch: what was trained on
            parameters: how many the model has
            costs: of the step
            update: metrics of the policy's update; none for an empty batch

        Raises UserError where the batch and the loss have a metric of the same name.
        """
        nan = math.nan
        graded = ended(fresh, batch)
        listed = {g.key for g in (*batch.groups, *(g for g, _ in batch.rejected), *self.method.kept)}
        self.left_out = [g for g in graded if g.key not in listed]
        means = np.array([g.mean for g in graded])
        extra = {
            "generation_batches": 1.0,
            "reevaluated_prompts": 0.0,
            **dict.fromkeys(("c2", "c3", "r_tot", "bad_buffer", "high_buffer"), nan),
            **batch.metrics,
        }
        of_loss = {name: value for name, value in update.items() if name not in RESERVED}
        if duplicates := sorted(of_loss.keys() & extra.keys()):
            raise UserError(
                f"{self.method.config.algorithm}: the loss and its batch both measure {duplicates[0]}; rename one"
            )
        c1 = getattr(self.method.config, "c1", None)
        constants = (
            theory.k1(fresh[0].size),
            nan if c1 is None else theory.k2(c1),
            nan if math.isnan(extra["c2"]) else theory.k3(extra["c2"], extra["c3"]),
        )
        generated = costs.generated_tokens + costs.prompt_tokens
        critic = costs.critic_parameters * costs.critic_tokens
        self.row = {
            "step": step,
            "policy_version": step - 1,
            "rollout_version": version,
            "staleness": step - 1 - version,
            # the steps of updates between the policy that sampled the batch's oldest group and this one
            "batch_age": max((step - 1 - g.version for g in batch.groups if g.origin != DEMONSTRATED), default=0),
            "reward_mean": float(means.mean()) if graded else nan,
            "groups_fresh": len(fresh),
            "groups_none_correct": int((means == 0).sum()),
            "groups_all_correct": int((means == 1).sum()),
            "batch_groups": len(batch.groups),
            **{f"x{i}": sum(g.origin == o for g in batch.groups) for i, o in enumerate(ORIGINS, start=1)},
            **{name: float(value) for name, value in extra.items()},
            **of_loss,
            "updates": int(update.get("updates", 0)),
            **{name: update.get(name, nan) for name in ("loss", "gradient_norm", "clip_fraction", "kl", "entropy")},
            "cut_off": update.get("cut_off", nan),
            "response_length": float(np.concatenate([g.samples.lengths for g in graded]).mean()) if graded else nan,
            **{f"{name}_x{i}": update.get(f"{name}_x{i}", nan) for name in RECORDED_BY_ORIGIN for i in (1, 2, 3)},
            **{f"ess_x{i}": effective_sample_size(update, i) for i in (1, 2, 3)},
            **{f"k{i}": value for i, value in enumerate(constants, start=1)},
            **{name: update.get(name, nan) for name in (*CRITIC, "learning_rate")},
            **{name: getattr(costs, name) for name in COUNTS},
            "overloaded": costs.overloaded,
            **{name: update.get(name, nan) for name in MISMATCH},
            # 2 and 4 operations a parameter and token; attention over a few hundred tokens is left out
            "forward_flops": 2.0 * (parameters * (generated + costs.forward_tokens) + 2 * critic),
            "backward_flops": 4.0 * (parameters * costs.trained_tokens + critic),
            **{f"seconds_{phase}": 0.0 for phase in PHASES},
        }
        before, self.spent = self.spent, self.spent + self.budget.spent([self.row])
        due = self.budget.probes(before, self.spent, step, self.probe.points)
        self.probes = due and self.probe.prompts > 0

    def end_row(self, step: int, batch: Batch, measurements: Mapping[str, float]) -> Json:
        """Complete the row and keep it. measurements: its times, and what else the engine measures, by column."""
        self.row |= measurements
        self.rows[STEPS].append(self.row)
        self.rows[GROUPS] += group_rows(step, batch, self.left_out)
        return self.row

    def write(self, folder: Path, durable: bool = True) -> None:
        """Write all rows so far; durable: see ``bapo.store.files.atomic``."""
        import pandas as pd

        for name, rows in self.rows.items():
            write_parquet(folder / name, pd.DataFrame(rows), durable)

    def read(self, folder: Path) -> None:
        """Go on from the tables in ``folder``. Raises UserError where one is missing or damaged."""
        self.rows = {name: read_table(folder / name).to_dict("records") for name in TABLES}
        self.spent = self.budget.spent(self.rows[STEPS])


def effective_sample_size(update: Mapping[str, float], part: int) -> float:
    """Return (sum w)^2 / (n sum w^2) over the n responses of X1, X2 or X3: from 1/n to 1, where all weigh the same.

    w: pi_theta / alpha of a whole response at the update that it was part of, over all updates of the step; nan without
    such a response. Kish's effective sample size as a share of n (Kish 1965; Kong 1992 for importance weights).
    """
    mean, mean_square = (update.get(f"{name}_x{part}", math.nan) for name in ("ratio", "ratio_squared"))
    return mean**2 / mean_square


def group_rows(step: int, batch: Batch, left_out: Sequence[Group] = ()) -> list[Json]:
    """Return the rows of ``groups.parquet``: every group of the step, used or not and why.

    A new group that the method keeps for a later step has its row there. ``replayed`` is how many of its responses this
    step's rollout did not sample (stored ones, an expert's).

    Args:
        step: 1-based
        batch: what was trained on, and what the method rejected
        left_out: groups that the method has in neither list and does not keep
    """
    unused = [*batch.rejected, *((g, "not chosen") for g in left_out)]
    entries = [(g, True, "") for g in batch.groups] + [(g, False, why) for g, why in unused]
    return [
        {
            "step": step,
            "prompt_id": g.prompt.id,
            "origin": g.origin,
            "version": g.version,
            "generated_step": g.step,
            "rewards": g.rewards.tolist(),
            "replayed": int(g.replayed.sum()),
            "mean": g.mean,
            "used": used,
            "reason": why,
        }
        for g, used, why in entries
    ]


def probe_row(step: int, set_name: str, prompt_id: str, rewards: np.ndarray) -> Json:
    """Return a row of ``probe.parquet``.

    set_name: "train" or "probe", where the prompt is from; rewards: float [n], of all responses to the prompt.
    """
    correct, mean = int(rewards.sum()), float(rewards.mean(dtype=np.float64))
    row = {"step": step, "set": set_name, "prompt_id": prompt_id}
    return row | {"correct": correct, "samples": len(rewards), "mean": mean}


def model_folder(run: Path, step: int) -> Path:
    """Return the folder of a step's checkpoint in Hugging Face format."""
    return run / "checkpoints" / f"step_{step:06d}"


def model_steps(run: Path) -> list[int]:
    """Return the steps that have a :func:`model_folder`, newest first. Folders of other names do not count."""
    names = [p.name.removeprefix("step_") for p in (run / "checkpoints").glob("step_*")]
    return sorted((int(name) for name in names if re.fullmatch("[0-9]{6}|[1-9][0-9]{6,}", name)), reverse=True)


def begin(config: Config, folder: Path, identity: str, **facts: object) -> Json:
    """Write the configuration and the manifest of a run that starts or resumes, and return the manifest.

    folder, identity: the run's; facts: further entries of the manifest.
    """
    identities = {"data_identity": data_identity(config), "base_identity": base_identity(config)}
    manifest = start_manifest(folder, identity, **identities, seed=config.seed, **facts)
    files.write_text(folder / files.CONFIG, config.yaml())
    return manifest


def copy_tables(checkpoint: Path, run: Path) -> None:
    """Copy the tables beside a checkpoint's state to the run's folder, where readers look for them."""
    for name in TABLES:
        with atomic(run / name) as temporary:
            shutil.copyfile(checkpoint / name, temporary)


def summary(folder: Path, identity: str, total_steps: int, budget: budgets.Budget | None) -> Json:
    """Return ``summary.json`` of a finished run, from the tables in its folder. Time spent on probes is not a cost.

    Args:
        folder: the run's
        identity: the run's
        total_steps: the steps that it took
        budget: what ended the run; None: its steps alone

    Raises UserError where a table is missing or damaged.
    """
    steps = read_table(folder / STEPS)
    totals = {name: steps[name].sum().item() for name in (*COUNTS, "updates", "forward_flops", "backward_flops")}
    if not totals["updates"]:
        cause = f"no update was made, so its model is the one that it began with; {files.GROUPS} says why, under reason"
        print(f"warning: {folder}: {cause}", file=sys.stderr, flush=True)
    outcome = budget and budgets.outcome(budget, steps.to_dict("records"))
    return {
        "identity": identity,
        "steps": total_steps,
        "checkpoint": str(model_folder(folder, total_steps).relative_to(folder)),
        "totals": {
            "rollouts": totals["fresh_rollouts"] + totals["regenerated_rollouts"],
            **totals,
            "seconds": float(steps["seconds_total"].sum() - steps["seconds_probe"].sum()),
        },
        **({"budget": outcome} if outcome else {}),
        "files": fingerprints(folder, TABLES),
    }
