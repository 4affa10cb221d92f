"""``python -m bapo plan TARGET``: the jobs of a target, their hours, disk and downloads, before anything runs.

Snakemake's own summary says which jobs there are and which of them are done.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from bapo import project
from bapo.errors import UserError
from bapo.experiments.places import suite_folder
from bapo.experiments.schema import Config
from bapo.experiments.settings import Settings, read_settings
from bapo.plan import costs
from bapo.plan.costs import Cost
from bapo.store import wheels
from bapo.store.files import Json
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
ORDER = (*dict.fromkeys(KINDS.values()), "analysis")
NOTE = """\
GPU-hours are of A100s with 80 GB. Table 2 names no model: the small one of each task is taken. The model assumes
responses half as long as they may be, full batches and DAPO's every generation batch: 0.8 to 1.5 times the paper's
hours for mathematics and planning, four to eight times too many for geometry (docs/paper_scale.md)."""


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
    for file, rule, plan in summary(target, words):
        place = Path(file).relative_to(settings.home).with_suffix("")  # files of one job differ in their suffixes
        kind = KINDS.get(rule, "analysis")
        listed[kind, place] = listed.get((kind, place), True) and plan == "no update"
    return [Job(kind, place, _cost(kind, place, settings), done) for (kind, place), done in listed.items()]


def summary(target: str, words: Sequence[str]) -> list[tuple[str, str, str]]:
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
        return Cost(cpu_hours=costs.measured()["analysis"] / 3600)
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


def downloads(configs: Iterable[Config]) -> list[str]:
    """List everything that the configurations fetch from the hub or a registry, each once, with what is known."""
    found: dict[str, None] = {}
    for config in configs:
        if config.model.kind == "pretrained" and config.model.path:
            size = f"about {2 * config.model.parameters / 1e9:.1f} GB" if config.model.parameters else "size not known"
            wheel = config.model.path.startswith(wheels.SCHEME)
            found[f"model {config.model.path}: {'a wheel of the Python registry' if wheel else size}"] = None
        if config.data.source == "hub" and not config.paths.data_folder:
            found.update(dict.fromkeys(f"data {part.repository}" for part in config.data.hub.values()))
    return list(found)


def as_text(target: str, settings: Settings, listed: Sequence[Job]) -> str:
    """Write the plan for people."""
    lines = [f"Plan of {target} at scale {settings.scale}, in {settings.home}: all, and what is missing", ""]
    lines.append(f"{'':<10}{'jobs':>12}{'GPU-hours':>16}{'CPU-hours':>16}  hours from")
    for kind in ORDER:
        of_kind = [job for job in listed if job.kind == kind]
        for source in dict.fromkeys(job.cost.source for job in of_kind):
            lines.append(f"{kind:<10}{_sums([job for job in of_kind if job.cost.source == source])}  {source}")
    lines.append(f"{'all':<10}{_sums(listed)}")
    if any(job.kind == "sweep" for job in listed):
        lines += ["", "Sweeps take at most this: trials that are pruned or are runs that exist take less."]
    total, missing = (_bytes(sum(job.cost.disk for job in part)) for part in (listed, _missing(listed)))
    lines += ["", f"Disk: {total}, of which {missing} still to be written: kept models, trainer states, tables"]
    bases = (job.output.parts[:2] for job in listed if job.kind == "base")
    fetched = downloads(costs.of_model(settings, task, model.split("+")[0]) for task, model in bases)
    lines += ["Downloads:" + ("" if fetched else " none"), *(f"  {what}" for what in fetched)]
    gpu_hours = any(job.cost.gpu_hours for job in listed)
    return "\n".join([*lines, *(["", NOTE] if gpu_hours else [])]) + "\n"


def _missing(listed: Sequence[Job]) -> list[Job]:
    return [job for job in listed if not job.done]


def _sums(listed: Sequence[Job]) -> str:
    """Write jobs, GPU-hours and CPU-hours of all, and of those that are missing."""
    parts = (listed, _missing(listed))
    hours = [[sum(getattr(job.cost, unit) for job in part) for part in parts] for unit in ("gpu_hours", "cpu_hours")]
    return f"{len(parts[0]):>6}{len(parts[1]):>6}" + "".join(f"{_hours(a):>8}{_hours(b):>8}" for a, b in hours)


def _hours(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 1 or not value else f"{value:.2f}"


def _bytes(value: float) -> str:
    unit, size = next(((u, s) for u, s in (("TB", 1e12), ("GB", 1e9)) if value >= s), ("MB", 1e6))
    return f"{value / size:.1f} {unit}"


def settings_of(words: Iterable[str]) -> Settings:
    """Read ``--config KEY=VALUE ...`` and check it as the workflow does. Raises UserError."""
    values: Json = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not re.fullmatch(r"\w+", key):
            raise UserError(f"--config {word}: must be KEY=VALUE, for example scale=paper")
        try:
            values[key] = yaml.safe_load(value)
        except yaml.YAMLError:
            values[key] = value
    return read_settings(values)


def main(target: str, config: Sequence[str]) -> None:
    """Print the plan. config: words of ``--config``."""
    settings = settings_of(config)
    print(as_text(target, settings, jobs(target, settings, config)), end="")
