"""What a training step costs and leaves in the run directory, for both engines: time, rows of tables, the summary."""

from __future__ import annotations

import math
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from bapo.algorithm import theory
from bapo.algorithm.rollouts import DEMONSTRATED, FRESH, ORIGINS, Group
from bapo.experiments import budgets
from bapo.methods import Batch, Method
from bapo.store.files import STEPS, TABLES, Json, atomic, fingerprints, read_table, write_parquet

#: fields of a ledger that are columns of ``steps.parquet`` and totals of ``summary.json``
COUNTS = ("fresh_rollouts", "regenerated_rollouts", "generated_tokens", "trained_tokens")
#: metrics of a critic's update; nan for a method without one
CRITIC = ("value_loss", "value_clip_fraction", "explained_variance", "critic_gradient_norm")

#: means over the responses of one origin that an update reports, as NAME_x1 to NAME_x3: ``Learner._note_divergence``
BY_ORIGIN = ("tv", "surrogate", "clipped", "clipped_upper", "clipped_lower", "ratio", "ratio_squared")
#: those of them that are columns of ``steps.parquet``, and the tails of pi/alpha over a step's responses of one origin:
#: its 99th percentile, nan with verl, whose workers hand over sums alone, and its maximum
SHOWN = (*BY_ORIGIN[:5], "ratio_p99", "ratio_max")

#: seconds that a process may take to write its tables and to end
PARTING = 10.0

#: mean and maximum over tokens of |log-probability of the rollout engine - of the training engine|, the same weights in
#: both; nan where one engine does both
MISMATCH = ("mismatch_mean", "mismatch_max")


@dataclass
class Ledger:
    """What one step cost.

    forwards: tokens that went forward during the update, once for each policy, or to be scored for the method.
    critic_tokens: tokens of the rows that a critic of ``critic_parameters`` was trained on; they go forward twice, for
    the values and for the update. overloaded: responses that the machine was too busy to grade, whose reward is 0.
    """

    fresh_rollouts: int = 0
    regenerated_rollouts: int = 0
    generated_tokens: int = 0
    prompt_tokens: int = 0
    trained_tokens: int = 0
    forwards: int = 0
    critic_tokens: int = 0
    critic_parameters: int = 0
    overloaded: int = 0
    seconds: dict[str, float] = field(default_factory=lambda: {"rollout": 0.0, "regenerate": 0.0, "reward": 0.0})

    def add(self, groups: list[Group], origin: str, prompt_tokens: int) -> None:
        """Groups that were just generated; one prefill a prompt."""
        rollouts = sum(g.size for g in groups)
        if origin == FRESH:
            self.fresh_rollouts += rollouts
        else:
            self.regenerated_rollouts += rollouts
        self.generated_tokens += int(sum(g.samples.lengths.sum() for g in groups))
        self.prompt_tokens += prompt_tokens

    @contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """Add the time that the block takes to a phase."""
        begun = time.perf_counter()
        yield
        self.seconds[phase] += time.perf_counter() - begun


def warn(overloaded: int, where: str, say: Callable[[str], None] | None = None) -> None:
    """Say, on stderr or by ``say``, how many responses the machine was too busy to grade, if any."""
    if overloaded:
        found = f"the machine was too busy to grade {overloaded} responses, counted as wrong; give it more CPU cores"
        (say or (lambda text: print(text, file=sys.stderr, flush=True)))(f"warning: {where}: {found}")


class JobClock:
    """Tells when a run writes a checkpoint because time has passed, and when it stops because its job is about to end.

    end: of the job, in seconds since 1970; minutes: between two checkpoints at most; step: seconds of the longest step,
    with the checkpoint behind the one before it.
    """

    def __init__(self, end: float | None, minutes: float | None) -> None:
        self.end, self.minutes, self.step = end, minutes, 0.0
        self.start()

    def start(self) -> None:
        """Measure from here: what came before was no step."""
        self.mark = self.written = time.monotonic()  # whatever is done to the machine's clock

    def step_ended(self) -> None:
        now = time.monotonic()
        self.step, self.mark = max(self.step, now - self.mark), now

    def checkpoint_due(self) -> bool:
        return self.minutes is not None and time.monotonic() - self.written >= 60 * self.minutes

    def checkpoint_written(self) -> None:
        self.written = time.monotonic()

    def ending(self) -> bool:
        """Return whether the end of the job is nearer than three of the longest steps: two, and a checkpoint.

        Asked after a step, so every job takes at least one.
        """
        return self.end is not None and self.end - time.time() < 3 * self.step + PARTING

    def left(self) -> str:
        """Say how far the end of the job is."""
        return f"{max(0.0, (self.end or 0.0) - time.time()) / 60:.1f} minutes before the end of its job"


def step_row(
    step: int,
    rollout_version: int,
    fresh: list[Group],
    batch: Batch,
    method: Method,
    parameters: int,
    ledger: Ledger,
    update: Mapping[str, float],
    seconds: dict[str, float],
) -> Json:
    """One row of ``steps.parquet``.

    parameters: of the model, a count. update: metrics of the policy update (none for an empty batch). seconds: by
    phase; "total" is one of them.
    """
    nan = math.nan
    # with a budget of tokens, what is known after a step are the groups whose last response ended in it
    judged = [g for g in batch.groups if g.origin == FRESH] if any(g.unfinished is not None for g in fresh) else fresh
    means = np.array([g.mean for g in judged])
    extra = {
        "generation_batches": 1.0,
        "reevaluated_prompts": 0.0,
        **dict.fromkeys(("c2", "c3", "r_tot", "bad_buffer", "high_buffer"), nan),
        **batch.metrics,
    }
    c1 = getattr(method.config, "c1", None)
    constants = (
        theory.k1(fresh[0].size),
        nan if c1 is None else theory.k2(c1),
        nan if math.isnan(extra["c2"]) else theory.k3(extra["c2"], extra["c3"]),
    )
    generated = ledger.generated_tokens + ledger.prompt_tokens
    critic = ledger.critic_parameters * ledger.critic_tokens
    return {
        "step": step,
        "policy_version": step - 1,
        "rollout_version": rollout_version,
        "staleness": step - 1 - rollout_version,
        # of the oldest group of the batch: how many steps of updates lie between its policy and this one
        "batch_age": max((step - 1 - g.version for g in batch.groups if g.origin != DEMONSTRATED), default=0),
        "reward_mean": float(means.mean()) if judged else nan,
        "groups_fresh": len(fresh),
        "groups_none_correct": int((means == 0).sum()),
        "groups_all_correct": int((means == 1).sum()),
        "batch_groups": len(batch.groups),
        **{f"x{i}": sum(g.origin == o for g in batch.groups) for i, o in enumerate(ORIGINS, start=1)},
        **{name: float(value) for name, value in extra.items()},
        "updates": int(update.get("updates", 0)),
        **{name: update.get(name, nan) for name in ("loss", "gradient_norm", "clip_fraction", "kl", "entropy")},
        "cut_off": update.get("cut_off", nan),
        "response_length": float(np.concatenate([g.samples.lengths for g in judged]).mean()) if judged else nan,
        **{f"{name}_x{i}": update.get(f"{name}_x{i}", nan) for name in SHOWN for i in (1, 2, 3)},
        **{f"ess_x{i}": effective_sample_size(update, i) for i in (1, 2, 3)},
        **{f"k{i}": value for i, value in enumerate(constants, start=1)},
        **{name: update.get(name, nan) for name in (*CRITIC, "learning_rate")},
        **{name: getattr(ledger, name) for name in COUNTS},
        "overloaded": ledger.overloaded,
        **{name: update.get(name, nan) for name in MISMATCH},
        # 2 and 4 operations a parameter and token; attention over a few hundred tokens is left out
        "forward_flops": 2.0 * (parameters * (generated + ledger.forwards) + 2 * critic),
        "backward_flops": 4.0 * (parameters * ledger.trained_tokens + critic),
        **{f"seconds_{phase}": value for phase, value in seconds.items()},
    }


def effective_sample_size(update: Mapping[str, float], part: int) -> float:
    """Return (sum w)^2 / (n sum w^2) over the n responses of X1, X2 or X3: from 1/n to 1, where all weigh the same.

    w: pi_theta / alpha of a whole response at the update that it was part of, over all updates of the step; nan without
    such a response. Kish's effective sample size as a share of n (Kish 1965; Kong 1992 for importance weights).
    """
    mean, mean_square = (update.get(f"{name}_x{part}", math.nan) for name in ("ratio", "ratio_squared"))
    return mean**2 / mean_square


def group_rows(step: int, batch: Batch) -> list[Json]:
    """``groups.parquet``: every group of the step, used or not and why.

    replayed: how many of its responses this step's rollout did not sample (stored ones, an expert's).
    """
    entries = [(g, True, "") for g in batch.groups] + [(g, False, why) for g, why in batch.rejected]
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


class Tables:
    """Rows of the three tables, in memory until they are written."""

    def __init__(self) -> None:
        self.rows: dict[str, list[Json]] = {name: [] for name in TABLES}

    def write(self, folder: Path, durable: bool = True) -> None:
        """Write all rows so far; durable: see ``bapo.store.files.atomic``."""
        import pandas as pd

        for name, rows in self.rows.items():
            write_parquet(folder / name, pd.DataFrame(rows), durable)

    def read(self, folder: Path) -> None:
        for name in self.rows:
            self.rows[name] = read_table(folder / name).to_dict("records")


def copy_tables(checkpoint: Path, run: Path) -> None:
    """Copy the tables beside a checkpoint's state to the run's folder, where readers look for them."""
    for name in TABLES:
        with atomic(run / name) as temporary:
            shutil.copyfile(checkpoint / name, temporary)


def summary(
    folder: Path, identity: str, total_steps: int, checkpoint: Path, budget: budgets.Budget | None = None
) -> Json:
    """``summary.json`` of a finished run, from the tables in its folder. Time spent on probes is not a cost."""
    steps = read_table(folder / STEPS)
    totals = {name: steps[name].sum().item() for name in (*COUNTS, "updates", "forward_flops", "backward_flops")}
    outcome = budget and budgets.outcome(budget, steps.to_dict("records"))
    return {
        "identity": identity,
        "steps": total_steps,
        "checkpoint": str(checkpoint.relative_to(folder)),
        "totals": {
            "rollouts": totals["fresh_rollouts"] + totals["regenerated_rollouts"],
            **totals,
            "seconds": float(steps["seconds_total"].sum() - steps["seconds_probe"].sum()),
        },
        **({"budget": outcome} if outcome else {}),
        "files": fingerprints(folder, TABLES),
    }
