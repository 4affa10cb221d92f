"""The Optuna study of a sweep, which gives each slot a trial and is written to one file at the end."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

from bapo.errors import UserError
from bapo.experiments.identity import digest, identity_of_seed, train_content
from bapo.experiments.places import run_directory
from bapo.experiments.settings import Settings
from bapo.seeds import key64
from bapo.store.files import Json, write_json
from bapo.sweeps.files import Sweep, check

if TYPE_CHECKING:
    from optuna import Study
    from optuna.storages import BaseStorage
    from optuna.trial import FrozenTrial, Trial

SLOT, REASON = "slot", "reason"
#: the probed set that judges a trial: problems that no method trains on and no test uses
VALIDATION = "probe"
JOURNAL, RESULT = "journal.log", "trial.json"


def folder_of(sweep: Sweep, settings: Settings) -> Path:
    """Return results/<scale>/sweeps/<name>."""
    return settings.home / "sweeps" / sweep.name


def slot_files(sweep: Sweep, settings: Settings) -> list[Path]:
    """Return the file of each slot, which is written when the slot is finished."""
    return [folder_of(sweep, settings) / "slots" / str(slot) / RESULT for slot in range(sweep.trials)]


def identity(sweep: Sweep, settings: Settings) -> str:
    """Identify the study to which a slot's trial belongs. The number of trials is not part of it, so it may grow.

    What every method of the sweep means is part of it, as a trial keeps the value that its runs had. Raises UserError
    where one cannot be composed without a trial's values, and as :func:`check` does.
    """
    from optuna.distributions import distribution_to_json

    check(sweep, settings)
    identities: dict[str, str] = {}
    waiting: list[str | None] = [*sweep.methods]
    while waiting:
        if (name := waiting.pop(0)) and name not in identities:
            config = settings.run(sweep.cell(name, sweep.seeds[0]))
            identities[name] = identity_of_seed(train_content(config), 0)
            waiting.append(config.train.budget.like)  # the method's runs end when that one's have
    space = [[key, distribution_to_json(d)] for key, d in sweep.space.items()]
    return digest([space, list(sweep.seeds), *identities.values(), sweep.file.start])


def open_study(sweep: Sweep, settings: Settings, slot: int = 0) -> Study:
    """Open the study of the sweep's identity, with a sampler seeded by the slot.

    Raises UserError where its journal is damaged, and as :func:`check` does.
    """
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna.create_study(
        study_name=f"{settings.home.name}/{sweep.name}/{identity(sweep, settings)}",
        # Optuna's lock is a link with the file's path: of a relative one it never sees that its owner has died
        storage=_journal((folder_of(sweep, settings) / JOURNAL).absolute()),
        sampler=optuna.samplers.TPESampler(seed=key64("sweep", sweep.name, slot) % 2**32, n_startup_trials=8),
        direction="maximize",
        load_if_exists=True,
    )


def _journal(path: Path) -> BaseStorage:
    """Open a journal file, which is made if it is missing. Raises UserError if a complete line of it is damaged."""
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend, JournalFileSymlinkLock

    class Journal(JournalFileBackend):
        """Cuts off an incomplete last line before it writes: Optuna's backend only skips one when it reads."""

        def append_logs(self, logs: list[Json]) -> None:
            lock = JournalFileSymlinkLock(str(path))
            lock.acquire()
            try:
                os.truncate(path, path.read_bytes().rfind(b"\n") + 1)
            finally:
                lock.release()
            super().append_logs(logs)

    path.parent.mkdir(parents=True, exist_ok=True)
    lock = path.with_name(f"{path.name}.lock")
    if lock.is_symlink() and not lock.exists():  # of a folder that was moved since: Optuna would wait for ever
        lock.unlink(missing_ok=True)
    try:
        complete, newline, _ = path.read_bytes().rpartition(b"\n") if path.exists() else (b"", b"", b"")
        if newline:
            json.loads(complete.rpartition(b"\n")[2])  # Optuna would skip a last line that it cannot read
        return JournalStorage(Journal(str(path)))
    except (ValueError, KeyError) as error:
        raise UserError(f"{path} is damaged ({error}); put a copy of it back, or move it away to begin anew") from None


def trial_of(study: Study, slot: int) -> FrozenTrial | None:
    """Return the slot's trial in any state, or None."""
    return next((t for t in study.get_trials(deepcopy=False) if t.user_attrs.get(SLOT) == slot), None)


def claim(study: Study, sweep: Sweep, slot: int) -> tuple[Trial, FrozenTrial]:
    """Return the slot's trial, to work on and as it is stored, and make it where there is none.

    A trial of a grid gets its combination at once, and the first trial of a free search its ``start``. A trial that is
    still running was left by a killed worker, and is continued with the same parameters.
    """
    from optuna.trial import Trial, TrialState, create_trial

    if trial_of(study, slot) is None:
        parameters = sweep.combinations[slot] if sweep.combinations else sweep.file.start if slot == 0 else {}
        ranges = {key: sweep.space[key] for key in parameters}
        # a kill after study.ask() would leave a trial without a slot
        study.add_trial(
            create_trial(state=TrialState.RUNNING, params=parameters, distributions=ranges, user_attrs={SLOT: slot})
        )
    trial = trial_of(study, slot)
    assert trial is not None
    return Trial(study, trial._trial_id), trial


# ------------------------------------------------------------------------------------------------ results


def outcome(trial: FrozenTrial, sweep: Sweep) -> Json:
    """Describe a trial by its numbers, state, parameters and value (accuracy, 0 to 1)."""
    attributes = trial.user_attrs
    return {
        "slot": attributes[SLOT],
        "number": trial.number,
        "state": trial.state.name.lower(),
        "drawn": dict(trial.params),
        "value": trial.value,
        "reason": attributes.get(REASON, ""),
        "seeds": {str(s): attributes[f"seed{s}"] for s in sweep.seeds if f"seed{s}" in attributes},
    }


def description(sweep: Sweep, settings: Settings) -> Json:
    """Return what ``trials.json`` says beside the trials, titles and the reference's runs included.

    Raises UserError as :func:`check` does.
    """
    from optuna.distributions import distribution_to_json

    config = check(sweep, settings)
    reference = {str(seed): settings.run(sweep.cell(sweep.file.reference, seed)) for seed in sweep.seeds}
    return {
        "title": f"{sweep.file.title}, {config.task.title}",
        "scale": sweep.scale,
        "note": config.scale.note,
        "model_title": config.model.title,
        "method_title": config.method.title,
        "seeds": list(sweep.seeds),
        "validation": {"set": VALIDATION, "samples": config.probe.samples},
        "parameters": [
            {
                "name": key,
                "title": sweep.file.space[key].get("title", key),
                "choices": getattr(distribution, "choices", None),
                "distribution": distribution_to_json(distribution),
            }
            for key, distribution in sweep.space.items()
        ],
        "reference": {
            "title": reference[str(sweep.seeds[0])].method.title,
            "runs": {seed: str(run_directory(run)) for seed, run in reference.items()},
        },
    }


def collect(sweep: Sweep, settings: Settings) -> Path:
    """Write ``trials.json``, which ``analysis robustness`` reads: the sweep, its finished trials, the reference's runs.

    Raises UserError unless each slot has a finished trial and one of them has a value.
    """
    trials = open_study(sweep, settings).get_trials(deepcopy=False)
    # if the sweep had more trials before, these are in the study and count as well
    rows = [outcome(trial, sweep) for trial in trials if trial.state.is_finished()]
    if missing := sorted(set(range(sweep.trials)) - {row["slot"] for row in rows}):
        raise UserError(
            f"sweep {sweep.name}: slots {', '.join(map(str, missing))} of {sweep.trials} are not finished; run "
            f"`bapo run sweep_{sweep.name}`"
        )
    if all(row["value"] is None for row in rows):
        raise UserError(f"sweep {sweep.name}: no trial could be trained; {rows[0]['reason']}")
    content = description(sweep, settings) | {"trials": sorted(rows, key=lambda row: row["slot"])}
    path = folder_of(sweep, settings) / "trials.json"
    write_json(path, content)
    return path
