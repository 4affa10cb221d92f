"""``bapo plan TARGET``: the jobs of a target, their hours, memory and disk, before anything runs.

Snakemake's summary lists the jobs and those that are done. A job's cost comes from seconds measured at laptop scale,
from the paper's Table 2, or from a model of its time on GPUs with P parameters. The model counts 2 P operations a
generated token at ``GENERATING`` of a card's peak (decoding is bound by memory), and 8 P a trained token (forward,
backward, and the forward that gradient checkpointing repeats) at ``TRAINING``. The log-probabilities of another policy
cost 2 P more, a critic 8 P for its update and 2 P for its values.

These are upper bounds: DAPO is charged for all generation batches that it may draw, BAPO for all re-evaluations that it
may make, RePO for all its replays, and every method for a full training batch. Probe, validation, checkpoints, and a
processor's updates of a policy in host memory are not counted.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import yaml

from bapo import methods, run
from bapo.engines.verl import memory
from bapo.errors import UserError
from bapo.experiments import budgets
from bapo.experiments import compose as configuration
from bapo.experiments.identity import shipped_base
from bapo.experiments.order import Cell
from bapo.experiments.schema import STATES, Config, on_gpus
from bapo.experiments.settings import Settings
from bapo.store.files import Json
from bapo.sweeps import files as sweep_files

PAPER, MODEL = "the paper's Table 2", "the model of docs/paper_scale.md"
MEASURED, UNKNOWN = "measured times (bapo/plan/measured.yaml)", "nobody has measured it"
GUESS = "guess from other tasks"  # from the slowest of them
TABLES_BYTES = 1_000_000  # steps, groups, probe and evaluation of a laptop-scale run; more with more problems
#: bfloat16 operations a second of an A100, and the shares of them that generation and training reach
PEAK, GENERATING, TRAINING = 312e12, 0.05, 0.35
#: rule -> kind of its jobs, in the order of the table; every other rule makes tables, figures and pages
KINDS = {"data": "data", "base": "base", "train": "train", "evaluate": "evaluate", "evaluate_base": "evaluate"}
KINDS |= {"data_of_model": "data", "curve": "curve", "sweep_slot": "sweep"}
NOTE = """\
GPU-hours are of A100s with 80 GB. Table 2 names no model: the small one of each task is taken. The model assumes
responses half as long as they may be, full batches and DAPO's every generation batch: 0.8 to 1.5 times the paper's
hours for mathematics and planning, four to eight times too many for geometry (docs/paper_scale.md)."""
SWEEP_NOTE = "A sweep's hours are an upper bound: trials that are pruned or are runs that exist take less."


@dataclass(frozen=True)
class Cost:
    """Holds what one job takes.

    gpu_hours: hours times the number of GPUs
    cpu_hours: hours times the number of cores
    disk: bytes
    source: where the hours come from
    gpu_share: the largest share of a GPU's memory that verl takes at a time
    host: GB of host memory that verl takes
    """

    gpu_hours: float = 0.0
    cpu_hours: float = 0.0
    disk: float = 0.0
    source: str = MEASURED
    gpu_share: float = 0.0
    host: float = 0.0

    def times(self, jobs: int) -> Cost:
        return replace(self, gpu_hours=jobs * self.gpu_hours, cpu_hours=jobs * self.cpu_hours, disk=jobs * self.disk)


@dataclass(frozen=True)
class Job:
    """Describes one job of the workflow. output: the path of its files without suffixes, in the scale's folder."""

    kind: str
    output: Path
    cost: Cost
    done: bool


@lru_cache(maxsize=1)
def measurements() -> Json:
    return yaml.safe_load(Path(__file__).with_name("measured.yaml").read_text(encoding="utf-8"))


def measured_task(config: Config) -> tuple[str, str]:
    """Return the task whose measurements hold for a configuration, and what to call the hours that come from them."""
    seconds = measurements()["iteration"]
    return (config.task.name, MEASURED) if config.task.name in seconds else (max(seconds, key=seconds.get), GUESS)


# ------------------------------------------------------------------------------------------------ the model


def parameters(config: Config) -> float:
    """Return model.parameters, or the number in the model's name (qwen2-112k: 112,000), or else 0."""
    size = re.search(r"(\d+(?:\.\d+)?)([kmb])$", config.model.name.split("+")[0])
    in_name = float(size[1]) * {"k": 1e3, "m": 1e6, "b": 1e9}[size[2]] if size else 0.0
    return float(config.model.parameters or in_name)


def expected_steps(config: Config) -> float:
    """Estimate training steps; for a budgeted run from the steps of BAPO at GRPO's budget (measured.yaml)."""
    budget = config.train.budget
    share = 1.0 if budget.unit == "steps" else min(measurements()["budget"][budget.unit], budget.most)
    return budgets.steps(config) * share


def step_seconds(config: Config, gpus: int) -> tuple[float, float]:
    """Estimate the seconds of generation and of training in one step with a full batch."""
    s, t, method = config.sampling, config.train, methods.of_run(config)
    response = s.max_response_tokens / 2
    rows = t.batch_size * t.group_size
    generated = rows * method.most_generated * response
    replayed = getattr(config.method, "replays", 0) / t.group_size  # RePO's replays, which are added to a batch
    tokens = rows * (1 + replayed) * (s.max_prompt_tokens / 2 + response)
    policies = method.needs_reference + (method.needs_step_policy or method.keeps_step_logprobs)
    operations = 8 + 2 * policies + 10 * method.uses_critic  # for each parameter and token
    seconds = parameters(config) / (gpus * PEAK)  # for one operation with each parameter
    return 2 * seconds * generated / GENERATING, operations * seconds * tokens / TRAINING


# ------------------------------------------------------------------------------------------------ one job


def data(config: Config) -> Cost:
    if config.data.source == "hub":
        return Cost(source=UNKNOWN)  # it downloads, and takes minutes
    task, source = measured_task(config)
    return Cost(cpu_hours=(measurements()["start"] + measurements()["data"][task]) / 3600, source=source)


def base(config: Config) -> Cost:
    """Estimate the base job, which trains the model unless it comes with the suite or from the hub."""
    if config.model.kind != "scratch" or shipped_base(config):
        return Cost(cpu_hours=measurements()["start"] / 3600)
    disk = 4 * parameters(config)
    if on_gpus(config):
        return Cost(disk=disk, source=UNKNOWN)
    task, source = measured_task(config)
    seconds = measurements()["iteration"][task] * config.base.iterations * config.base.batch_size / 64
    return Cost(cpu_hours=(measurements()["start"] + seconds) * config.base.threads / 3600, disk=disk, source=source)


def train(config: Config) -> Cost:
    disk, name = checkpoints(config), config.method.name
    if config.model.kind == "pretrained" and config.model.parameters and config.engine == "verl" and on_gpus(config):
        gpus, card = config.verl.gpus_per_node or 8, config.verl.gpu_memory or memory.CARD
        *of_gpu, host = memory.gigabytes(config, gpus, card) if config.model.sizes else (0.0, 0.0)
        cost = Cost(disk=disk, source=MODEL, gpu_share=max(of_gpu) / card, host=host)
        hours = papers_hours(config.model.name, name) if _as_in_the_paper(config) else None
        if hours is not None:
            return replace(cost, gpu_hours=8 * hours, source=PAPER)
        seconds = sum(step_seconds(config, gpus)) * expected_steps(config)
        return replace(cost, gpu_hours=gpus * seconds / 3600)
    if config.engine != "torch" or on_gpus(config) or config.model.kind != "scratch":
        return Cost(disk=disk, source=UNKNOWN)
    task, source = measured_task(config)
    times = measurements()["step"][task]
    # a method without a measurement takes as long as the task's slowest
    step = times.get(name, times.get(name.split("+")[0], times.get(config.method.algorithm, max(times.values()))))
    share = config.train.batch_size * config.train.group_size / measurements()["responses"]
    seconds = measurements()["start"] + step * share * expected_steps(config)
    return Cost(cpu_hours=seconds * config.threads / 3600, disk=disk, source=source)


def _as_in_the_paper(config: Config) -> bool:
    """Return whether a run at the paper's scale trains and samples as its setting says, without other values."""
    if config.scale.name != "paper":
        return False
    names = (config.scale.name, config.task.name, config.model.name, config.method.name)
    usual = configuration.run_config(*names, config.seed)
    return all(getattr(config, part) == getattr(usual, part) for part in ("method", "train", "sampling"))


def papers_hours(model: str, method: str) -> float | None:
    """Return the hours of Table 2 on 8 A100, or None for a run that it does not list."""
    minutes = measurements()["paper"].get(model, {}).get(method)
    return minutes and minutes / 60


def checkpoints(config: Config) -> float:
    """Estimate the most bytes of a run at a time: models, tables, and states of the trainer, where they are kept.

    A new state is complete before the oldest is deleted.
    """
    checkpoints = -(-expected_steps(config) // config.checkpoint.every) if config.checkpoint.keep_models else 1
    states = STATES + 1 if config.engine == "verl" or config.checkpoint.keep_state else 0
    return memory.disk_bytes(config, parameters(config), checkpoints, states) + TABLES_BYTES


def evaluate(config: Config, curve: bool = False) -> Cost:
    """Estimate an evaluation on every benchmark. curve: of all kept checkpoints and the base model."""
    e = config.evaluation
    names = {*e.benchmarks, *([e.validation] if curve and e.validation else [])}
    models = 1 + -(-expected_steps(config) // config.checkpoint.every) if curve else 1
    samples = (e.curve_samples if curve else e.samples) * models
    samples *= sum(config.data.split_sizes.get(name, 0) for name in names)
    if config.model.kind == "pretrained" and config.model.parameters and on_gpus(config):
        tokens = samples * config.sampling.max_response_tokens / 2
        return Cost(gpu_hours=2 * config.model.parameters * tokens / (PEAK * GENERATING) / 3600, source=MODEL)
    if on_gpus(config) or config.model.kind != "scratch" or e.backend != "torch":
        return Cost(source=UNKNOWN)
    task, source = measured_task(config)
    seconds = measurements()["start"] + samples / measurements()["samples"][task]
    return Cost(cpu_hours=seconds * config.threads / 3600, disk=TABLES_BYTES / 2 if curve else 0, source=source)


# ------------------------------------------------------------------------------------------------ the plan


def jobs(targets: Sequence[str], settings: Settings) -> list[Job]:
    """Return every job of ``targets``, done or not. Raises UserError with Snakemake's reason."""
    done: dict[tuple[str, Path], bool] = {}
    for file, rule, plan in summary(targets, settings):
        output = Path(os.path.relpath(file, settings.home)).with_suffix("")  # files of one job differ in their suffixes
        kind = KINDS.get(rule, "analysis")
        done[kind, output] = done.get((kind, output), True) and plan == "no update"
    return [Job(kind, output, _cost(kind, output.parts, settings), is_done) for (kind, output), is_done in done.items()]


def summary(targets: Sequence[str], settings: Settings) -> list[tuple[str, str, str]]:
    """Return (file, rule, plan) of every file that ``targets`` need. Raises UserError with Snakemake's reason."""
    command = run.command(targets, settings, options=["--summary", "--cores", "1"])
    process = subprocess.run(command, capture_output=True, text=True)
    if process.returncode:
        lines = [line for line in (process.stderr + process.stdout).splitlines() if line.strip()]
        reason = next((line for line in lines if line.startswith("error: ")), lines[-1] if lines else "no reason given")
        raise UserError(f"plan {' '.join(targets)}: {reason.removeprefix('error: ')}")
    rows = (line.split("\t") for line in process.stdout.splitlines()[1:])
    return [(row[0], row[2], row[-1]) for row in rows]


def _cost(kind: str, parts: Sequence[str], settings: Settings) -> Cost:
    """Estimate a job. parts: the folders of its output; all seeds of a method cost the same."""
    if kind == "analysis":
        return Cost(cpu_hours=measurements()["analysis"] / 3600)
    if kind == "sweep":  # at most all seeds of a trial are trained
        sweep = sweep_files.load(parts[1], settings)
        return cost_of("train", settings, sweep.task, sweep.model, sweep.file.method).times(len(sweep.seeds))
    return cost_of(kind, settings, *(*parts[:3], "", "")[:3])


@lru_cache(maxsize=512)
def cost_of(kind: str, settings: Settings, task: str, model: str, method: str) -> Cost:
    """Estimate a job of the workflow. Raises UserError where its configuration cannot be composed.

    Args:
        kind: data, base, train, evaluate or curve
        settings: the workflow's
        task, model, method: names of its cell, "" where it has none; method ``base``: the model before training
    """
    if kind == "data":
        return data(configuration.run_config(settings.scale, task, "", "", 0, settings.overrides_of("")))
    if method == "base":
        config = configuration.run_config(settings.scale, task, model, "", 0, settings.overrides_of(""))
        return base(config) if kind == "base" else evaluate(config)
    config = settings.run(Cell(task, model, method, 0))
    return train(config) if kind == "train" else evaluate(config, curve=kind == "curve")


def as_text(targets: Sequence[str], settings: Settings, job_list: Sequence[Job]) -> str:
    """Return the plan as a table with a row for each kind of job: what is left to do, and all that there is."""
    lines = [f"Plan of {' '.join(targets) or 'all'} at scale {settings.scale}, in {settings.home}", ""]
    on_gpu = any(job.cost.gpu_hours for job in job_list)
    any_unknown = any(job.cost.source == UNKNOWN for job in job_list)
    units = {"gpu_hours": "GPU-hours"} if on_gpu else {}
    units |= {"cpu_hours": "CPU-hours", "disk": "GB of disk"}
    lines.append(
        "".join([f"{'left / of':<10}", *(f"  {title:>16}" for title in ("jobs", *units.values())), "  hours from"])
    )
    rows: dict[tuple[str, str], list[Job]] = {}
    for kind in (*dict.fromkeys(KINDS.values()), "analysis"):
        for job in (job for job in job_list if job.kind == kind):
            rows.setdefault((kind, job.cost.source), []).append(job)
    for (kind, source), row in {**rows, ("together", ""): [*job_list]}.items():
        left_and_all = ([job for job in row if not job.done], row)
        columns = [" / ".join(str(len(jobs)) for jobs in left_and_all)]
        for unit in units:
            divisor = 1e9 if unit == "disk" else 1
            sums = [sum(getattr(job.cost, unit) for job in jobs) / divisor for jobs in left_and_all]
            if source == UNKNOWN and unit != "disk":
                columns.append("unknown")
            else:
                at_least = "from " if kind == "together" and unit != "disk" and any_unknown else ""
                columns.append(at_least + " / ".join(map(_short, sums)))
        lines.append("".join([f"{kind:<10}", *(f"  {column:>16}" for column in columns), f"  {source}"]).rstrip())
    left = [job.cost.cpu_hours for job in job_list if not job.done]
    if left and not (on_gpu or any_unknown):
        cores = len(os.sched_getaffinity(0))
        hours = max(sum(left) / cores, *left)  # a job of one core is no faster on many
        lines += ["", f"The jobs that are left take about {_duration(hours)} on {_count(cores, 'core')}."]
    if gpu_share := max((job.cost.gpu_share for job in job_list), default=0.0):
        host = max(job.cost.host for job in job_list)
        lines += [
            "",
            f"A run fills up to {gpu_share:.0%} of a GPU's memory (verl.gpu_memory), and {host:.0f} GB of memory.",
        ]
    notes = [NOTE] * on_gpu + [SWEEP_NOTE] * any(job.kind == "sweep" for job in job_list)
    return "\n".join([*lines, *([""] * bool(notes)), *notes]) + "\n"


def _duration(hours: float) -> str:
    return f"{hours:.1f} hours" if hours >= 2 else _count(max(round(60 * hours), 1), "minute")


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"


def _short(value: float) -> str:
    """Return a number with two decimals below 10; 0 for nothing at all."""
    if not value:
        return "0"
    return f"{max(value, 0.01):.2f}" if value < 10 else f"{value:,.0f}"


def main(words: Sequence[str]) -> None:
    """Print the plan. words: as ``bapo run`` takes them. Raises UserError."""
    targets, settings = run.targets_and_settings(words)
    print(as_text(targets, settings, jobs(targets, settings)), end="")
