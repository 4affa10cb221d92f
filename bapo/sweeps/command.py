"""``python -m bapo sweep``: a slot of a sweep, and the finished sweep as one file for ``analysis robustness``."""

from __future__ import annotations

import sys
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from bapo.errors import UserError
from bapo.experiments.places import run_directory
from bapo.experiments.settings import Settings, read_settings
from bapo.store.files import write_json
from bapo.sweeps import files, worker
from bapo.sweeps import study as studies

if TYPE_CHECKING:
    from bapo.experiments.schema import Config


def configuration(arguments: Namespace) -> Config | None:
    """Return the configuration of a slot's runs before its parameters, which change nothing of what it needs."""
    settings = read_settings(arguments.settings)
    sweep = files.load(arguments.name, settings)
    return None if arguments.slot is None else files.check(sweep, settings)


def run(arguments: Namespace) -> int:
    """Work on a slot or collect the sweep, and return the exit status. Raises UserError for wrong input."""
    settings = read_settings(arguments.settings)
    sweep = files.load(arguments.name, settings)
    if arguments.slot is None:
        print(f"wrote {collect(sweep, settings)}", file=sys.stderr)
    else:
        trial = worker.run_slot(sweep, settings, arguments.slot)
        value = "" if trial["value"] is None else f", validation accuracy {100 * trial['value']:.2f}"
        print(f"sweep {sweep.name}, slot {trial['slot']}: {trial['state']}{value}", file=sys.stderr)
    return 0


def collect(sweep: files.Sweep, settings: Settings) -> Path:
    """Write ``trials.json``: the sweep, its finished trials with their runs, and the reference's runs.

    Raises UserError unless each slot has a finished trial.
    """
    from optuna.distributions import distribution_to_json

    trials = studies.open_study(sweep, settings).get_trials(deepcopy=False)
    # the study of a sweep with fewer trials than before keeps the others, which count as well
    rows = [worker.outcome(trial, sweep) for trial in trials if trial.state.is_finished()]
    if missing := sorted(set(range(sweep.trials)) - {row["slot"] for row in rows}):
        raise UserError(
            f"sweep {sweep.name}: slots {', '.join(map(str, missing))} of {sweep.trials} are not finished; run "
            f"`snakemake --cores all sweep_{sweep.name}`"
        )
    config = files.check(sweep, settings)
    reference = {seed: settings.run(sweep.cell(sweep.file.reference, seed)) for seed in sweep.seeds}
    content = {
        "title": f"{sweep.file.title}, {config.task.title}",
        "scale": sweep.scale,
        "note": config.scale.note,
        "config": settings.as_words(),
        "task_title": config.task.title,
        "model_title": config.model.title,
        "method_title": config.method.title,
        "sampler": "grid" if sweep.combinations else "tpe",
        "seeds": list(sweep.seeds),
        "validation": {"set": worker.VALIDATION, "problems": config.probe.prompts, "samples": config.probe.samples},
        "parameters": [
            {
                "name": key,
                "title": sweep.file.space[key].get("title", key),
                "choices": getattr(distribution, "choices", None),
                "log": getattr(distribution, "log", False),
                "distribution": distribution_to_json(distribution),
            }
            for key, distribution in sweep.space.items()
        ],
        "reference": {
            "title": reference[sweep.seeds[0]].method.title,
            "runs": {str(seed): str(run_directory(run)) for seed, run in reference.items()},
        },
        "trials": sorted(rows, key=lambda row: row["slot"]),
    }
    path = studies.folder_of(sweep, settings) / "trials.json"
    write_json(path, content)
    return path
