"""The jobs of a target of the workflow and what each costs, as Snakemake's summary lists them before they run."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bapo import project
from bapo.errors import UserError
from bapo.experiments.places import suite_folder
from bapo.experiments.settings import Settings
from bapo.plan import costs
from bapo.plan.costs import Cost
from bapo.sweeps import files as sweep_files

#: rule -> kind of its jobs; every other rule makes tables, figures and pages
KINDS = {
    "data": "data",
    "base": "base",
    "train": "train",
    "evaluate": "evaluate",
    "evaluate_base": "evaluate",
    "curve": "curve",
    "sweep_slot": "sweep",
}


@dataclass(frozen=True)
class Job:
    """One job of the workflow. output: its files without their suffixes, in the scale's folder."""

    kind: str
    output: Path
    cost: Cost
    done: bool


def jobs(target: str, settings: Settings, words: Sequence[str] = ()) -> list[Job]:
    """Return every job of ``target``, done or not. words: of ``--config``. Raises UserError with Snakemake's reason."""
    listed: dict[tuple[str, Path], bool] = {}
    for file, rule, plan in _summary(target, words):
        place = Path(file).relative_to(settings.home).with_suffix("")  # files of one job differ in their suffixes
        listed[rule, place] = listed.get((rule, place), True) and plan == "no update"
    kinds = {key: KINDS.get(key[0], "analysis") for key in listed}
    return [Job(kinds[key], key[1], _cost(kinds[key], key[1], settings), done) for key, done in listed.items()]


def _summary(target: str, words: Sequence[str]) -> list[tuple[str, str, str]]:
    """Return (file, rule, plan) of every file that ``target`` takes."""
    suite = suite_folder()
    command = [sys.executable, "-m", "snakemake", target, "--summary", "--cores", "1"]
    if project.folder() is None:
        profile = suite / "workflows" / "profiles" / "default"
        command += ["--snakefile", str(suite / "Snakefile"), "--workflow-profile", str(profile)]
    done = subprocess.run([*command, *(["--config", *words] if words else [])], capture_output=True, text=True)
    if done.returncode:
        lines = [line for line in (done.stderr + done.stdout).splitlines() if line.strip()]
        said = next((line for line in lines if line.startswith("error: ")), lines[-1] if lines else "no reason given")
        raise UserError(f"plan {target}: {said.removeprefix('error: ')}")
    rows = (line.split("\t") for line in done.stdout.splitlines()[1:])
    return [(row[0], row[2], row[-1]) for row in rows]


def _cost(kind: str, place: Path, settings: Settings) -> Cost:
    if kind == "analysis":
        return costs.analysis()
    if kind == "sweep":  # at most every seed of a trial is trained: some are pruned, some are runs that are there
        sweep = sweep_files.load(place.parts[1], settings)
        return costs.train_of(settings, sweep.task, sweep.model, sweep.file.method).times(len(sweep.seeds))
    task, model, method = (*place.parts[:3], "", "")[:3]
    if kind == "data":
        return costs.data(costs.of_model(settings, task, ""))
    if method == "base":
        config = costs.of_model(settings, task, model)
        return costs.base(config) if kind == "base" else costs.evaluate(config)
    if kind == "train":
        return costs.train_of(settings, task, model, method)
    return costs.evaluate(costs.of_run(settings, task, model, method), curve=kind == "curve")
