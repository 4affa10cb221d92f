"""A collected sweep (``trials.json``) with the probe accuracies of its runs, checked against each other."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from analysis import statistics
from bapo.errors import UserError
from bapo.store.files import PROBE, SUMMARY, read_json, read_table, verify_files

COMPLETE, FAIL = "complete", "fail"


@dataclass(frozen=True)
class Parameter:
    """choices: of a categorical one, in the file's order; distribution: Optuna's, as JSON."""

    name: str
    title: str
    choices: tuple[Any, ...] | None
    log: bool
    distribution: str

    @property
    def numeric(self) -> bool:
        choices = self.choices or ()
        return all(isinstance(c, (int, float)) and not isinstance(c, bool) for c in choices)


@dataclass(frozen=True, eq=False)
class Trial:
    """accuracy: of each seed that was trained, on every validation problem [s, n]; s = S for a complete trial."""

    number: int
    state: str
    drawn: Mapping[str, Any]
    settings: Mapping[str, Any]
    reason: str
    runs: tuple[str, ...]
    accuracy: np.ndarray

    @cached_property
    def estimate(self) -> statistics.Estimate:
        return estimate(self.accuracy)

    @property
    def seed_means(self) -> list[float]:
        return [float(m) for m in self.accuracy.mean(axis=1)] if len(self.accuracy) else []


@dataclass(frozen=True, eq=False)
class Sweep:
    """What the report is made of. reference: accuracies of the reference's runs of the same seeds [S, n]."""

    content: Mapping[str, Any]
    parameters: tuple[Parameter, ...]
    trials: tuple[Trial, ...]
    reference: np.ndarray

    @property
    def complete(self) -> list[Trial]:
        return [t for t in self.trials if t.state == COMPLETE]

    @property
    def reference_title(self) -> str:
        return str(self.content["reference"]["title"]).lstrip("+")


def estimate(table: np.ndarray) -> statistics.Estimate:
    """Return the mean of [S, n] with the error for new problems and, from two seeds on, new seeds."""
    return told(statistics.mean_over_seeds(table).tested)


def told(found: statistics.Estimate) -> statistics.Estimate:
    """Without an interval where that would be wider than all accuracies: too few problems and seeds to tell.

    Satterthwaite's degrees of freedom fall below 1 where seeds differ and problems hardly do.
    """
    return dataclasses.replace(found, df=float("nan")) if found.half_width > 1 else found


def load(path: Path) -> Sweep:
    """Raises UserError naming the file or run that is missing, damaged, or about other problems."""
    content = read_json(path)
    probes = _Probes(str(content["validation"]["set"]), path)
    seeds = [str(s) for s in content["seeds"]]
    reference = probes.table([content["reference"]["runs"][s] for s in seeds])
    trials = []
    for row in content["trials"]:
        folders = [row["seeds"][s]["run"] for s in seeds if s in row["seeds"]]
        table = probes.table(folders) if folders else np.zeros((0, reference.shape[1]))
        if row["state"] == COMPLETE and abs(table.mean() - row["value"]) > 1e-9:
            raise UserError(
                f"{path}: trial {row['number']} was told {row['value']:.6f}, but its runs say {table.mean():.6f}: they "
                f"have changed since; delete {path} and the sweep's folder and run the sweep again"
            )
        trials.append(
            Trial(row["number"], row["state"], row["drawn"], row["settings"], row["reason"], tuple(folders), table)
        )
    parameters = tuple(
        Parameter(
            p["name"],
            p["title"],
            None if p["choices"] is None else tuple(p["choices"]),
            p["log"],
            p["distribution"] if isinstance(p["distribution"], str) else json.dumps(p["distribution"]),
        )
        for p in content["parameters"]
    )
    return Sweep(content, parameters, tuple(trials), reference)


class _Probes:
    """Reads the last probe of runs, all on the same problems."""

    def __init__(self, name: str, source: Path) -> None:
        self.name, self.source = name, source
        self.problems: list[str] | None = None
        self.read: dict[str, np.ndarray] = {}

    def table(self, folders: Sequence[str]) -> np.ndarray:
        return np.stack([self._run(folder) for folder in folders])

    def _run(self, folder: str) -> np.ndarray:
        if folder in self.read:
            return self.read[folder]
        place = Path(folder)
        if not (place / SUMMARY).exists():
            raise UserError(f"{place}: not finished, but {self.source} names it; run the sweep again")
        verify_files(place)
        frame = read_table(place / PROBE, ["step", "set", "prompt_id", "mean"])
        last = frame[(frame["set"] == self.name) & (frame["step"] == frame["step"].max())].sort_values("prompt_id")
        problems = list(last["prompt_id"].astype(str))
        self.problems = self.problems or problems
        if not problems or problems != self.problems:
            raise UserError(f"{place / PROBE}: other validation problems than the first run of {self.source} has")
        self.read[folder] = last["mean"].to_numpy(float)
        return self.read[folder]
