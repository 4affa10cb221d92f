"""The runs of one trial: their configurations, folders and validation accuracy."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from bapo import engines
from bapo.errors import UserError
from bapo.experiments import budgets
from bapo.experiments import compose as configuration
from bapo.experiments.identity import train_identity
from bapo.experiments.places import run_directory
from bapo.experiments.settings import Settings
from bapo.store.files import PROBE, SUMMARY, read_json, read_table, verify_files
from bapo.store.lock import locked
from bapo.sweeps import space
from bapo.sweeps.files import Sweep

#: the probed set that judges a trial: problems that no method trains on and no test uses
VALIDATION = "probe"
#: seconds that a slot waits for another slot that trains the same run
PATIENCE = 7 * 24 * 3600.0


def overrides(sweep: Sweep, settings: Settings, drawn: Mapping[str, Any]) -> dict[str, Any]:
    """Return {key of the configuration: value} for a trial's numbers."""

    def whole(key: str) -> float:
        config = settings.run(sweep.cell(sweep.method, sweep.seeds[0]))
        value = OmegaConf.select(config, key)
        if not isinstance(value, (int, float)):
            raise UserError(f"sweep {sweep.name}: share_of: {key} is not a number of the configuration")
        return float(value)

    return space.values(sweep.parameters, drawn, whole)


def configured(sweep: Sweep, settings: Settings, drawn: Mapping[str, Any], seed: int) -> DictConfig:
    """Compose the configuration of one run of a trial. Runs with the same meaning share a folder.

    A trial that equals one of the sweep's named methods uses that method's folder, any other ``method+IDENTITY``, so
    that no sweep trains the same parameters twice. Raises UserError if the parameters do not fit together.
    """
    values = overrides(sweep, settings, drawn)
    # except for the quotes around a plain word, JSON is a subset of Hydra's grammar for values
    extra = (*settings.overrides, *(f"{k}={v if isinstance(v, str) else json.dumps(v)}" for k, v in values.items()))
    config = configuration.run_config(sweep.scale, sweep.task, sweep.model, sweep.method, seed, extra)
    identity = train_identity(config)
    for method in dict.fromkeys((sweep.method, *sweep.named)):
        plain = settings.run(sweep.cell(method, seed))
        if train_identity(plain) == identity:
            return plain
    config.seed = 0
    of_all_seeds = train_identity(config)
    config.seed = seed
    config.method.name = f"{sweep.method}+{of_all_seeds[:10]}"
    config.method.title = ", ".join(
        [config.method.title, *(f"{k.rpartition('.')[2]} = {v}" for k, v in values.items())]
    )
    return config


def finished(config: DictConfig) -> bool:
    """Return whether the configuration's run exists and is intact. Raises UserError if its files are damaged."""
    folder = run_directory(config)
    if not (folder / SUMMARY).exists():
        return False
    return read_json(folder / SUMMARY).get("identity") == budgets.identity(config) and bool(verify_files(folder))


def train(config: DictConfig) -> Path:
    """Train the run from its last checkpoint unless it is finished, and return its folder."""
    folder = run_directory(config)
    with locked(folder, PATIENCE):  # another slot may be training it
        if finished(config):
            return folder
    engines.train(config)
    return folder


def validation(folder: Path) -> dict[str, float]:
    """Return {problem: accuracy after the last step} of the held-out probe. Raises UserError if it is empty.

    The test sets of a run (eval/) are never opened here.
    """
    frame = read_table(folder / PROBE, ["step", "set", "prompt_id", "mean"])
    rows = frame[(frame["set"] == VALIDATION) & (frame["step"] == frame["step"].max())].sort_values("prompt_id")
    if rows.empty:
        raise UserError(f"{folder / PROBE}: no held-out problem was probed; set probe.prompts to at least 1")
    return dict(zip(rows["prompt_id"].astype(str), rows["mean"].astype(float), strict=True))
