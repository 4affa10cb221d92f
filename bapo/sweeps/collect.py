"""A finished sweep as one JSON file, which ``python -m analysis robustness`` reads."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bapo.errors import UserError
from bapo.experiments.cells import Cell
from bapo.experiments.places import run_directory
from bapo.experiments.products import TRIALS
from bapo.experiments.settings import Settings
from bapo.store.files import write_json
from bapo.sweeps import study as studies
from bapo.sweeps import trials
from bapo.sweeps.files import Sweep, check
from bapo.sweeps.worker import RESULT, outcome, slot_folder


def needed_methods(sweep: Sweep) -> list[str]:
    """Return the methods whose runs a sweep reuses: those that equal some of its trials, and the reference."""
    return list(dict.fromkeys([*sweep.named, sweep.reference]))


def needed_cells(sweep: Sweep) -> list[Cell]:
    """Return the runs of :func:`needed_methods` for the sweep's seeds."""
    return [sweep.cell(method, seed) for method in needed_methods(sweep) for seed in sweep.seeds]


def collect(sweep: Sweep, settings: Settings) -> Path:
    """Write ``trials.json``: every finished trial with its runs. Raises UserError unless each slot has one."""
    study = studies.open_study(sweep, settings)
    by_slot: dict[int, Any] = {}
    for trial in study.get_trials(deepcopy=False):
        slot = trial.user_attrs.get(studies.SLOT)
        if slot is None or slot in by_slot:
            raise UserError(
                f"sweep {sweep.name}: trial {trial.number} of the study belongs to no slot; another program made it"
            )
        by_slot[slot] = trial
    open_slots = [s for s in range(sweep.trials) if s not in by_slot or not by_slot[s].state.is_finished()]
    if open_slots:
        raise UserError(
            f"sweep {sweep.name}: slots {', '.join(map(str, open_slots))} of {sweep.trials} are not finished; run "
            f"`snakemake --cores all sweep_{sweep.name}`"
        )
    # the study of a sweep with fewer trials than before keeps the others, which count as well
    rows = [outcome(t, sweep) for _, t in sorted(by_slot.items()) if t.state.is_finished()]
    for row in rows:
        row["settings"] = trials.overrides(sweep, settings, row["drawn"])
    path = studies.folder_of(sweep, settings) / TRIALS
    write_json(path, content(sweep, settings, rows))
    return path


def content(sweep: Sweep, settings: Settings, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the file's content: the sweep, its parameters and trials, and the reference's runs of the same seeds."""
    config = check(sweep, settings)
    reference = {s: settings.run(sweep.cell(sweep.reference, s)) for s in sweep.seeds}
    return {
        "name": sweep.name,
        "title": sweep.title,
        "scale": sweep.scale,
        "note": config.scale.note,
        "config": settings.as_words(),
        "task": sweep.task,
        "task_title": config.task.title,
        "model": sweep.model,
        "model_title": config.model.title,
        "method": sweep.method,
        "method_title": config.method.title,
        "sampler": sweep.sampler,
        "pruning": None if sweep.pruning is None else {"p": sweep.pruning.p, "seeds": sweep.pruning.seeds},
        "seeds": list(sweep.seeds),
        "validation": {"set": trials.VALIDATION, "problems": config.probe.prompts, "samples": config.probe.samples},
        "parameters": list(_numbers(sweep)),
        "reference": {
            "method": sweep.reference,
            "title": reference[sweep.seeds[0]].method.title,
            "runs": {str(s): str(run_directory(c)) for s, c in reference.items()},
        },
        "trials": rows,
    }


def _numbers(sweep: Sweep) -> Iterator[dict[str, Any]]:
    """Yield each number of the space with its title and how Optuna draws it."""
    from optuna.distributions import CategoricalDistribution, distribution_to_json

    for parameter in sweep.parameters:
        titles = parameter.titles()
        for name, distribution in parameter.distributions().items():
            categorical = isinstance(distribution, CategoricalDistribution)
            yield {
                "name": name,
                "title": titles[name],
                "choices": list(distribution.choices) if categorical else None,
                "log": bool(getattr(distribution, "log", False)),
                "distribution": distribution_to_json(distribution),
            }


def show(sweep: Sweep, settings: Settings) -> str:
    """List the study's trials, finished or not, as lines of text."""
    study = studies.open_study(sweep, settings)
    lines = [f"{study.study_name}: {len(study.trials)} of {sweep.trials} trials begun"]
    for trial in sorted(study.get_trials(deepcopy=False), key=lambda t: t.user_attrs.get(studies.SLOT, -1)):
        value = "" if trial.value is None else f" {100 * trial.value:.2f}"
        drawn = ", ".join(f"{k} = {v}" for k, v in trial.params.items())
        reason = trial.user_attrs.get(studies.REASON, "")
        lines.append(
            f"slot {trial.user_attrs.get(studies.SLOT)}: {trial.state.name.lower()}{value}  {drawn}"
            + (f"  ({reason})" if reason else "")
        )
    return "\n".join(lines)


def slot_files(sweep: Sweep, settings: Settings) -> list[Path]:
    return [slot_folder(sweep, settings, slot) / RESULT for slot in range(sweep.trials)]
