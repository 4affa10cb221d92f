"""The Optuna study of a sweep: made once, checked against the sweep, and asked for trials slot by slot."""

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
    """Return results/<scale>/sweeps/<name>."""
    return settings.home / "sweeps" / sweep.name


def meaning(sweep: Sweep, settings: Settings) -> dict[str, Any]:
    """Return what all trials of one study share. The number of trials is not part of it."""
    config = check(sweep, settings)
    config.seed = 0
    pruning = None if sweep.pruning is None else [sweep.pruning.p, sweep.pruning.seeds]
    return {
        "space": sweep.space_identity,
        "seeds": list(sweep.seeds),
        "configuration": train_identity(config),
        "sampler": [sweep.sampler, sweep.seed, dict(sweep.start), sweep.startup, pruning],
    }


#: part of the meaning -> its name in messages
PARTS = {"space": "search space", "seeds": "list of seeds", "configuration": "configuration", "sampler": "sampler"}


def identity(sweep: Sweep, settings: Settings) -> str:
    """Return a digest that changes when a slot's trial would belong to another study."""
    return digest(meaning(sweep, settings))


def sampler_of(sweep: Sweep, slot: int) -> BaseSampler:
    """Return a sampler fixed to cell ``slot`` of a grid, or TPE seeded by the slot, whose first trial is ``start``.

    A grid is dealt out by slot because Optuna's GridSampler may give two workers the same cell.
    """
    from optuna.samplers import PartialFixedSampler, RandomSampler, TPESampler

    seed = key64(sweep.seed, "sweep", sweep.name, slot) % 2**32
    if sweep.sampler == "grid":
        return PartialFixedSampler(space.grid(sweep.parameters)[slot], RandomSampler(seed=seed))
    search = TPESampler(seed=seed, n_startup_trials=sweep.startup)  # multivariate, and tells busy slots apart
    return PartialFixedSampler(dict(sweep.start), search) if slot == 0 and sweep.start else search


def open_study(sweep: Sweep, settings: Settings, slot: int = 0) -> Study:
    """Open the sweep's study with the slot's sampler. Raises UserError if it was made with another meaning."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    # the sampler's and the pruner's interface may change with the version, which pyproject.toml pins
    warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
    folder, parts = folder_of(sweep, settings), meaning(sweep, settings)
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
    stored = study.user_attrs
    for part, value in parts.items():
        if part in stored and stored[part] != value:
            place = folder / JOURNAL if not sweep.storage else f"study {study.study_name} in the storage"
            raise UserError(
                f"{place} was made with another {PARTS[part]} than experiments/sweep/{sweep.name}.yaml and --config "
                f"now give; undo the change, give the sweep another name, or move {folder} away"
            )
    for part, value in parts.items():
        if part not in stored:
            study.set_user_attr(part, value)
    return study


# ------------------------------------------------------------------------------------------------ slots


def trial_of(study: Study, slot: int) -> FrozenTrial | None:
    """Return the slot's trial in whatever state, or None."""
    return next((t for t in study.get_trials(deepcopy=False) if t.user_attrs.get(SLOT) == slot), None)


def claim(study: Study, slot: int, retries: int) -> Trial | None:
    """Return the slot's trial to work on, None if it is finished.

    A trial still running was left by a killed worker: it is resumed with the same parameters, up to ``retries`` times,
    and then marked as failed so that it cannot block the study for ever.
    """
    from optuna.trial import Trial, TrialState, create_trial

    frozen = trial_of(study, slot)
    if frozen is None:
        # study.ask() would make the trial before naming its slot: a kill in between would leave one without a slot
        blank = create_trial(state=TrialState.RUNNING, user_attrs={SLOT: slot, STARTS: 1})
        return Trial(study, study._storage.create_new_trial(study._study_id, template_trial=blank))
    if frozen.state.is_finished():
        return None
    starts = frozen.user_attrs.get(STARTS, 1)
    trial = Trial(study, frozen._trial_id)
    if starts > retries:
        trial.set_user_attr(REASON, f"its worker was killed {starts} times")
        study.tell(trial, state=TrialState.FAIL)
        return None
    trial.set_user_attr(STARTS, starts + 1)
    return trial
