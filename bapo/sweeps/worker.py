"""``bapo sweep``: fills a slot, which takes one trial through its runs to its result."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from bapo import engines
from bapo.errors import UserError
from bapo.experiments import budgets, compose
from bapo.experiments.identity import identity_of_seed, train_content, train_identity
from bapo.experiments.places import run_directory
from bapo.experiments.settings import Settings
from bapo.store.files import PROBE, SUMMARY, Json, read_json, read_table, verify_files, write_json
from bapo.store.lock import locked
from bapo.sweeps import study as studies
from bapo.sweeps.files import METHOD, Sweep

if TYPE_CHECKING:
    from optuna import Study
    from optuna.trial import FrozenTrial, Trial

    from bapo.experiments.schema import Config


def run_slot(sweep: Sweep, settings: Settings, slot: int) -> Json:
    """Finish the slot's trial, write ``slots/<slot>/trial.json`` and return its content.

    A trial whose training fails stays open for the next attempt. Raises UserError for a slot that the sweep does not
    have, and as the training does.
    """
    if not 0 <= slot < sweep.trials:
        raise UserError(f"--slot {slot}: sweep {sweep.name} has slots 0 to {sweep.trials - 1}")
    file = studies.slot_files(sweep, settings)[slot]
    with locked(file.parent):
        study = studies.open_study(sweep, settings, slot)
        trial, frozen = studies.claim(study, sweep, slot)
        if not frozen.state.is_finished():
            frozen = _work(study, trial, sweep, settings)
        content = studies.outcome(frozen, sweep)
        write_json(file, content)
    value = "" if frozen.value is None else f", validation accuracy {100 * frozen.value:.2f}"
    print(f"sweep {sweep.name}, slot {slot}: {content['state']}{value}", file=sys.stderr)
    return content


def _work(study: Study, trial: Trial, sweep: Sweep, settings: Settings) -> FrozenTrial:
    from optuna.trial import TrialState

    parameters = {key: trial._suggest(key, distribution) for key, distribution in sweep.space.items()}
    label = f"sweep {sweep.name}, trial {trial.number} (slot {trial.user_attrs[studies.SLOT]})"
    print(f"{label}: {', '.join(f'{k} = {v}' for k, v in parameters.items())}", file=sys.stderr)
    try:
        configs = [config_of_trial(sweep, settings, parameters, seed) for seed in sweep.seeds]
    except UserError as error:  # the study's identity has composed the methods, so the parameters exclude each other
        trial.set_user_attr(studies.REASON, str(error))
        return study.tell(trial, state=TrialState.FAIL)
    means: list[float] = []
    for config in configs:
        folder = train(config)
        means.append(validation(folder))
        trial.set_user_attr(f"seed{config.seed}", {"run": str(folder), "accuracy": means[-1]})
        print(f"{label}: seed {config.seed}: validation accuracy {100 * means[-1]:.2f}", file=sys.stderr)
    return study.tell(trial, sum(means) / len(means))


# ------------------------------------------------------------------------------------------------ runs


def overrides(parameters: Json) -> Json:
    """Return {key of the configuration: value} for a trial's parameters, the method excepted.

    ``key.0`` and ``key.1`` become the list ``key``.
    """
    values: Json = {}
    for key in sorted(parameters):
        list_key, _, last = key.rpartition(".")
        if last.isdecimal():
            values.setdefault(list_key, []).append(parameters[key])
        elif key != METHOD:
            values[key] = parameters[key]
    return values


def config_of_trial(sweep: Sweep, settings: Settings, parameters: Json, seed: int) -> Config:
    """Compose the configuration of one run of a trial. Runs with the same meaning share a folder.

    A trial that equals one of the methods that the sweep names uses that method's folder. Any other has the folder
    ``method+IDENTITY``, so that no sweep trains the same parameters twice. parameters: of the trial, by the keys of the
    space; seed: of the run. Raises UserError if the parameters do not fit together.
    """
    method, values = str(parameters.get(METHOD, sweep.file.method)), overrides(parameters)
    extra = (*settings.overrides, *(f"{k}={json.dumps(v)}" for k, v in values.items()))
    config = compose.run_config(sweep.scale, sweep.task, sweep.model, method, seed, extra)
    identity = train_identity(config)
    for name in (method, *sweep.file.named):
        ordinary = settings.run(sweep.cell(name, seed))
        if train_identity(ordinary) == identity:
            return ordinary
    config.method.name = f"{method}+{identity_of_seed(train_content(config), 0)[:10]}"  # the same for all seeds
    words = (f"{k.rpartition('.')[2]} = {v}" for k, v in values.items())
    config.method.title = ", ".join([config.method.title, *words])
    return config


def train(config: Config) -> Path:
    """Train the run from its last checkpoint unless it is finished, and return its folder.

    Raises UserError if a finished run's files are damaged.
    """
    folder = run_directory(config)
    if not (folder / SUMMARY).exists():
        with locked(folder, patience=-1):  # another slot may be training the same parameters
            pass
    if not (folder / SUMMARY).exists() or read_json(folder / SUMMARY).get("identity") != budgets.identity(config):
        engines.train(config)
    verify_files(folder)
    return folder


def validation(folder: Path) -> float:
    """Return the accuracy on the held-out probe after the last step. No test set is read."""
    frame = read_table(folder / PROBE, ["step", "set", "mean"])
    return float(frame["mean"][(frame["set"] == studies.VALIDATION) & (frame["step"] == frame["step"].max())].mean())
