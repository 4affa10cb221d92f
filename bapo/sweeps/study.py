"""The Optuna study of a sweep: made once, refused where it is another one, and asked slot by slot."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bapo.errors import UserError
from bapo.experiments.identity import digest, train_identity
from bapo.experiments.settings import Settings
from bapo.seeds import key64
from bapo.sweeps import space
from bapo.sweeps.files import Sweep, check
from bapo.sweeps.storage import JOURNAL, open_storage

if TYPE_CHECKING:
    from optuna import Study
    from optuna.samplers import BaseSampler
    from optuna.trial import FrozenTrial, Trial

SLOT, STARTS, REASON = "slot", "starts", "reason"


def folder_of(sweep: Sweep, settings: Settings) -> Path:
    """results/<scale>/sweeps/<name>"""
    return settings.home / "sweeps" / sweep.name


def meaning(sweep: Sweep, settings: Settings) -> dict[str, Any]:
    """What must be the same for two trials to be of one study. The number of trials is not part of it."""
    config = check(sweep, settings)
    config.seed = 0
    pruning = None if sweep.pruning is None else [sweep.pruning.p, sweep.pruning.seeds]
    return {
        "space": sweep.space_identity,
        "seeds": list(sweep.seeds),
        "configuration": train_identity(config),
        "sampler": [sweep.sampler, sweep.seed, dict(sweep.start), sweep.startup, pruning],
    }


#: part of the meaning -> what a message calls it
WORDS = {"space": "search space", "seeds": "list of seeds", "configuration": "configuration", "sampler": "sampler"}


def identity(sweep: Sweep, settings: Settings) -> str:
    """Changes when a slot's trial would be of another study."""
    return digest(meaning(sweep, settings))


def sampler_of(sweep: Sweep, slot: int) -> BaseSampler:
    """Cell ``slot`` of a grid; TPE with random numbers of the slot's own, the first one from the method's own values.

    A grid is dealt out by slot because Optuna's GridSampler may give two workers the same cell.
    """
    from optuna.samplers import PartialFixedSampler, RandomSampler, TPESampler

    own = key64(sweep.seed, "sweep", sweep.name, slot) % 2**32
    if sweep.sampler == "grid":
        return PartialFixedSampler(space.grid(sweep.parameters)[slot], RandomSampler(seed=own))
    search = TPESampler(seed=own, n_startup_trials=sweep.startup)  # multivariate, and tells busy slots apart
    return PartialFixedSampler(dict(sweep.start), search) if slot == 0 and sweep.start else search


def open_study(sweep: Sweep, settings: Settings, slot: int = 0) -> Study:
    """The sweep's study with the slot's sampler. Raises UserError where it was made with another meaning."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    # a sampler and a pruner whose interface may change with the version, which pyproject.toml pins
    warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
    folder, mine = folder_of(sweep, settings), meaning(sweep, settings)
    pruner = optuna.pruners.NopPruner()
    if sweep.pruning is not None:
        pruner = optuna.pruners.WilcoxonPruner(p_threshold=sweep.pruning.p)
    study = optuna.create_study(
        study_name=f"{settings.folder()}/{sweep.name}",
        storage=open_storage(sweep.storage, folder),
        sampler=sampler_of(sweep, slot),
        pruner=pruner,
        direction="maximize",
        load_if_exists=True,
    )
    there = study.user_attrs
    for part, value in mine.items():
        if part in there and there[part] != value:
            place = folder / JOURNAL if not sweep.storage else f"study {study.study_name} in the storage"
            raise UserError(
                f"{place} was made with another {WORDS[part]} than experiments/sweep/{sweep.name}.yaml and --config "
                f"now give; undo the change, give the sweep another name, or move {folder} away"
            )
    for part, value in mine.items():
        if part not in there:
            study.set_user_attr(part, value)
    return study


# ------------------------------------------------------------------------------------------------ slots


def trial_of(study: Study, slot: int) -> FrozenTrial | None:
    """The slot's trial, in whatever state it is."""
    return next((t for t in study.get_trials(deepcopy=False) if t.user_attrs.get(SLOT) == slot), None)


def claim(study: Study, slot: int, retries: int) -> Trial | None:
    """The slot's trial to work on; None where it is finished.

    A trial that is still running was left by a worker that was killed: it is taken up again, with the same parameters,
    ``retries`` times; after that it is told as failed, so that it cannot stop the study for ever.
    """
    from optuna.trial import Trial, TrialState, create_trial

    found = trial_of(study, slot)
    if found is None:
        # study.ask() would make the trial first and name its slot later: a kill in between would leave one that
        # belongs to nobody
        blank = create_trial(state=TrialState.RUNNING, user_attrs={SLOT: slot, STARTS: 1})
        return Trial(study, study._storage.create_new_trial(study._study_id, template_trial=blank))
    if found.state.is_finished():
        return None
    starts = found.user_attrs.get(STARTS, 1)
    trial = Trial(study, found._trial_id)
    if starts > retries:
        trial.set_user_attr(REASON, f"its worker was killed {starts} times")
        study.tell(trial, state=TrialState.FAIL)
        return None
    trial.set_user_attr(STARTS, starts + 1)
    return trial
