"""The end of a run: after train.steps, or when it has used as much as another method's run (``train.budget``).

A budget compares two methods at equal rollouts, updates or compute, whatever a step of each costs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from bapo.errors import UserError
from bapo.experiments.identity import base_identity, digest, train_identity
from bapo.experiments.places import run_directory
from bapo.experiments.schema import Config
from bapo.store.files import MANIFEST, SUMMARY, Json, read_json, verify_files
from bapo.validate import wrong

#: unit -> the columns of steps.parquet, and the totals of summary.json, whose sum it is
UNITS = {
    "rollouts": ("fresh_rollouts", "regenerated_rollouts"),
    "updates": ("updates",),
    "flops": ("forward_flops", "backward_flops"),
}


@dataclass(frozen=True)
class Budget:
    """Ends a run with the first step after which it has spent ``amount``, and after ``most`` steps in any case.

    unit: one of UNITS, or "steps", in which ``amount`` is counted.
    """

    unit: str
    amount: float
    most: int

    def spent(self, rows: Iterable[Json]) -> float:
        """Return what steps have cost. rows: of steps.parquet."""
        if self.unit == "steps":
            return float(sum(1 for _ in rows))
        return float(sum(row[column] for row in rows for column in UNITS[self.unit]))

    def finished(self, spent: float, step: int) -> bool:
        return spent >= self.amount or step >= self.most

    def probes(self, previous: float, spent: float, step: int, points: int) -> bool:
        """Return whether a probe is due after a step that raised the spending from ``previous`` to ``spent``.

        ``points`` probes, at least 2, are spread evenly over the budget. The first comes before the first step.
        """
        if self.finished(spent, step):
            return True
        shares = [round(i * self.amount / (points - 1)) for i in range(1, points - 1)]
        return any(previous < share <= spent for share in shares)


def outcome(budget: Budget, rows: Iterable[Json]) -> Json | None:
    """Describe a finished run's budget for ``summary.json``, or return None where it is counted in steps.

    ``reached`` is False where the run ended at ``most`` steps, before it had spent ``amount``. rows: of steps.parquet.
    """
    if budget.unit == "steps":
        return None
    rows = list(rows)
    spent = budget.spent(rows)
    # a run that ended before ``most`` steps reached the amount, even if this sum is rounded to less
    reached = spent >= budget.amount or len(rows) < budget.most
    return {"unit": budget.unit, "amount": budget.amount, "spent": spent, "reached": reached}


def like_directory(config: Config) -> Path | None:
    """Return the folder of the run that sets the budget, or None where the run ends after its steps.

    Raises UserError where that is the run itself.
    """
    budget = config.train.budget
    if budget.unit == "steps":
        return None
    folder = run_directory(config, budget.like)
    if folder == run_directory(config):
        raise wrong(None, "train.budget.like", budget.like, "is the run itself; name another method")
    return folder


def steps(config: Config, problems: int | None = None) -> int:
    """Count the steps that the configuration asks for. Raises UserError where there are none.

    problems: number of training problems, by default that of the configuration.
    """
    if config.train.steps is not None:
        return config.train.steps
    problems = config.data.split_sizes["train"] if problems is None else problems
    if problems < config.train.batch_size:
        raise UserError(
            f"train.batch_size={config.train.batch_size}: larger than the {problems} problems of "
            f"train.epochs={config.train.epochs}; there would be no step"
        )
    assert config.train.epochs is not None  # as steps is None
    return config.train.epochs * (problems // config.train.batch_size)


def of(config: Config, steps: int, limit: float | None) -> Budget:
    """Return the budget of a run whose configuration asks for ``steps``. limit: its :func:`amount`."""
    if limit is None:
        return Budget("steps", steps, steps)
    return Budget(config.train.budget.unit, limit, max(1, round(steps * config.train.budget.most)))


def amount(config: Config) -> float | None:
    """Return the rollouts, updates or floating-point operations that a run may use, or None where steps are counted.

    Raises UserError where the run that sets it is missing, unfinished, damaged, or started from another model.
    """
    folder = like_directory(config)
    if folder is None:
        return None
    unit, method = config.train.budget.unit, config.train.budget.like
    totals = verify_files(folder)["totals"] if (folder / SUMMARY).exists() else None
    if totals is None or read_json(folder / MANIFEST).get("base_identity") != base_identity(config):
        cure = f"{folder} holds no finished run of the same base model to count the {unit} of; train it first"
        raise wrong(None, "train.budget.like", method, cure)
    return float(sum(totals[column] for column in UNITS[unit]))


def identity(config: Config) -> str:
    """Identify a run by its configuration and, with a budget, by the amount that the other run used.

    Raises UserError as :func:`amount` does.
    """
    return limited(train_identity(config), config, amount(config))


def limited(unbudgeted: str, config: Config, limit: float | None) -> str:
    """Return the identity of a run that ends after ``limit``. unbudgeted: by its configuration alone."""
    return unbudgeted if limit is None else digest([unbudgeted, config.train.budget.unit, limit])
