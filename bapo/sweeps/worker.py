"""The work of a slot: one trial, from its parameters to its report to the study."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bapo.errors import UserError
from bapo.experiments.settings import Settings
from bapo.store.files import write_json
from bapo.store.lock import locked
from bapo.sweeps import space, trials
from bapo.sweeps import study as studies
from bapo.sweeps.files import Sweep

if TYPE_CHECKING:
    from optuna import Study
    from optuna.trial import FrozenTrial, Trial

RESULT = "trial.json"


def slot_folder(sweep: Sweep, settings: Settings, slot: int) -> Path:
    """Return results/<scale>/sweeps/<name>/slots/<slot>."""
    return studies.folder_of(sweep, settings) / "slots" / str(slot)


def run_slot(sweep: Sweep, settings: Settings, slot: int) -> dict[str, Any]:
    """Work on the slot's trial until it is finished; write ``slots/<slot>/trial.json`` and return its content.

    Raises UserError for another sweep's study. A trial whose training fails stays open for the next attempt.
    """
    if not 0 <= slot < sweep.trials:
        raise UserError(f"--slot {slot}: sweep {sweep.name} has slots 0 to {sweep.trials - 1}")
    folder = slot_folder(sweep, settings, slot)
    with locked(folder):
        study = studies.open_study(sweep, settings, slot)
        trial = studies.claim(study, slot, sweep.retries)
        if trial is not None:
            _work(study, trial, sweep, settings)
        content = outcome(studies.trial_of(study, slot), sweep)
        write_json(folder / RESULT, content)
    return content


def _work(study: Study, trial: Trial, sweep: Sweep, settings: Settings) -> None:
    from optuna.trial import TrialState

    drawn = space.suggest(sweep.parameters, trial._suggest)
    label = f"sweep {sweep.name}, trial {trial.number} (slot {trial.user_attrs[studies.SLOT]})"
    print(f"{label}: {', '.join(f'{k} = {v}' for k, v in drawn.items())}", file=sys.stderr)
    try:
        try:
            configs = [trials.configured(sweep, settings, drawn, seed) for seed in sweep.seeds]
        except UserError as error:  # parameters that exclude each other are a result, not a crash
            trial.set_user_attr(studies.REASON, str(error))
            study.tell(trial, state=TrialState.FAIL)
            return
        means: list[float] = []
        for config in configs:
            folder = trials.train(config)
            scores = list(trials.validation(folder).values())
            means.append(sum(scores) / len(scores))
            trial.set_user_attr(f"seed{config.seed}", {"run": str(folder), "accuracy": means[-1]})
            print(f"{label}: seed {config.seed}: validation accuracy {100 * means[-1]:.2f}", file=sys.stderr)
            if _pruned(trial, sweep, scores, len(means)):
                # TPE ranks pruned trials by their last report, and the study shows it as the value
                trial.report(sum(means) / len(means), len(means) * len(scores))
                study.tell(trial, state=TrialState.PRUNED)
                return
        study.tell(trial, sum(means) / len(means))
    except BaseException:
        with contextlib.suppress(Exception):  # an error or Ctrl-C is not a kill, so this start does not count
            trial.set_user_attr(studies.STARTS, trial.user_attrs[studies.STARTS] - 1)
        raise


def _pruned(trial: Trial, sweep: Sweep, scores: list[float], done: int) -> bool:
    """Report every problem of a seed and return whether the rank test ends the trial before the next seed.

    Each pair of the test is one problem with one seed, in this trial and in the best one so far.
    """
    if sweep.pruning is None:
        return False
    first = (done - 1) * len(scores)
    reported = trial.storage.get_trial(trial._trial_id).intermediate_values
    for step, score in enumerate(scores, first):
        if step not in reported:  # a resumed trial has reported it already
            trial.report(score, step)
    return sweep.pruning.seeds <= done < len(sweep.seeds) and trial.should_prune()


def outcome(trial: FrozenTrial | None, sweep: Sweep) -> dict[str, Any]:
    """Return the numbers, the state and the value (accuracy, a fraction) of a trial."""
    assert trial is not None
    attributes = trial.user_attrs
    return {
        "slot": attributes[studies.SLOT],
        "number": trial.number,
        "state": trial.state.name.lower(),
        "drawn": dict(trial.params),
        "value": trial.value,
        "starts": attributes[studies.STARTS],
        "reason": attributes.get(studies.REASON, ""),
        "seeds": {str(s): attributes[f"seed{s}"] for s in sweep.seeds if f"seed{s}" in attributes},
    }
