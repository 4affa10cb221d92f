"""Estimate what one job costs: measured seconds at laptop scale, the paper's Table 2 or a stated model on GPUs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig

from bapo import methods
from bapo.experiments import budgets
from bapo.experiments import compose as configuration
from bapo.experiments.cells import Cell
from bapo.experiments.identity import shipped_base
from bapo.experiments.schema import on_gpus
from bapo.experiments.settings import Settings
from bapo.plan import estimates

PAPER, MODEL, MEASURED, SCALED, UNKNOWN = "paper", "model", "measured", "scaled", "unknown"
#: source of a job's hours -> the same in words
SOURCES = {
    PAPER: "the paper's Table 2",
    MODEL: "the model of docs/paper_scale.md",
    MEASURED: "measured times (bapo/plan/measured.yaml)",
    SCALED: "measured times of the task's slowest measured method (bapo/plan/measured.yaml has none of this one)",
    UNKNOWN: "not known: nobody has measured it",
}
TABLES_BYTES = 1_000_000  # steps, groups, probe and evaluation of a laptop-scale run; more with more problems


@dataclass(frozen=True)
class Cost:
    """Hours of one job (GPU-hours: hours times GPUs), where they are from, and the bytes that stay on disk."""

    gpu_hours: float = 0.0
    cpu_hours: float = 0.0
    disk: float = 0.0
    source: str = MEASURED

    def times(self, jobs: int) -> Cost:
        return Cost(jobs * self.gpu_hours, jobs * self.cpu_hours, jobs * self.disk, self.source)


@lru_cache(maxsize=1)
def measured() -> Mapping[str, Any]:
    return yaml.safe_load(Path(__file__).with_name("measured.yaml").read_text(encoding="utf-8"))


@lru_cache(maxsize=64)
def of_model(settings: Settings, task: str, model: str) -> DictConfig:
    """Compose the configuration of a task and a model, without a method's settings."""
    return configuration.run_config(settings.scale, task, model, "", 0, settings.overrides_of(""))


@lru_cache(maxsize=512)
def of_run(settings: Settings, task: str, model: str, method: str) -> DictConfig:
    """Compose the configuration of the runs of a method, whatever the seed."""
    return settings.run(Cell(task, model, method, 0))


def parameters(config: DictConfig) -> float | None:
    """Return model.parameters, or what the model's name says (qwen2-112k: 112,000); None where neither does."""
    if config.model.parameters:
        return float(config.model.parameters)
    size = re.search(r"(\d+(?:\.\d+)?)([kmb])$", config.model.name.split("+")[0])
    return float(size[1]) * {"k": 1e3, "m": 1e6, "b": 1e9}[size[2]] if size else None


def expected_steps(config: DictConfig) -> float:
    """Estimate training steps; a budgeted run's from what BAPO took for GRPO's budget (measured.yaml)."""
    budget = config.train.budget
    share = 1.0 if budget.unit == "steps" else min(measured()["budget"][budget.unit], budget.most)
    return budgets.steps(config) * share


def data(config: DictConfig) -> Cost:
    if config.data.source == "hub":
        return Cost(source=UNKNOWN)  # a download and minutes
    return Cost(cpu_hours=(measured()["start"] + measured()["data"].get(config.task.name, 10)) / 3600)


def base(config: DictConfig) -> Cost:
    """Estimate a base model's training; one that comes with the suite, or from the hub, is only written down."""
    count = parameters(config)
    if config.model.kind != "scratch" or shipped_base(config):
        return Cost(cpu_hours=measured()["start"] / 3600)
    disk = 4 * (count or 0)
    if on_gpus(config) or config.task.name not in measured()["iteration"]:
        return Cost(disk=disk, source=UNKNOWN)
    seconds = measured()["iteration"][config.task.name] * config.base.iterations * config.base.batch_size / 64
    return Cost(cpu_hours=(measured()["start"] + seconds) * config.base.threads / 3600, disk=disk)


@lru_cache(maxsize=512)
def train_of(settings: Settings, task: str, model: str, method: str) -> Cost:
    """Estimate one run of the method: every seed costs the same."""
    return train(of_run(settings, task, model, method))


def train(config: DictConfig) -> Cost:
    disk = checkpoints(config)
    pretrained = config.model.kind == "pretrained" and config.model.parameters
    if pretrained and config.engine == "verl" and on_gpus(config):
        gpus = config.verl.get("gpus_per_node", 8)
        named = estimates.PAPER_HOURS.get(config.model.name, {}) if config.scale.name == "paper" else {}
        hours = named.get(config.method.name)
        if hours is not None:
            return Cost(gpu_hours=8 * hours, disk=disk, source=PAPER)
        seconds = estimates.estimate(config, gpus).seconds * expected_steps(config)
        return Cost(gpu_hours=gpus * seconds / 3600, disk=disk, source=MODEL)
    times = measured()["step"].get(config.task.name)
    if config.engine != "torch" or on_gpus(config) or config.model.kind != "scratch" or not times:
        return Cost(disk=disk, source=UNKNOWN)
    name = config.method.name
    known = times.get(name, times.get(name.split("+")[0], times.get(config.method.algorithm)))
    share = config.train.batch_size * config.train.group_size / measured()["responses"]
    seconds = measured()["start"] + (known or max(times.values())) * share * expected_steps(config)
    return Cost(cpu_hours=seconds * config.threads / 3600, disk=disk, source=MEASURED if known else SCALED)


def checkpoints(config: DictConfig) -> float:
    """Estimate the bytes of a finished run: the kept checkpoints' models, the tables, two states of the trainer where
    they are kept.

    A kept model has the bytes of its dtype; a state 12 a parameter (float32 weights and Adam's moments), 4 more with a
    delayed rollout policy, 12 more with a critic, and with verl the model once more. What methods replay is not
    counted.
    """
    count = parameters(config)
    if count is None:
        return 0.0
    method = methods.of_run(config)
    kept = -(-expected_steps(config) // config.checkpoint.every) if config.checkpoint.keep_models else 1
    width = 2 if "16" in config.model.dtype else 4
    state = 12 + 4 * method.delays_rollout_policy + 12 * method.uses_critic
    state += width if config.engine == "verl" else 0
    states = 2 if config.engine == "verl" or config.checkpoint.keep_state else 0
    return count * (kept * width + states * state) + TABLES_BYTES


def evaluate(config: DictConfig, curve: bool = False) -> Cost:
    """Estimate an evaluation on every benchmark; curve: of every kept checkpoint and the start, with fewer samples."""
    e = config.evaluation
    names = {*e.benchmarks, *([e.validation] if curve and e.validation else [])}
    models = 1 + -(-expected_steps(config) // config.checkpoint.every) if curve else 1
    samples = (e.curve_samples if curve else e.samples) * models
    samples *= sum(config.data.split_sizes.get(name, 0) for name in names)
    if config.model.kind == "pretrained" and config.model.parameters and on_gpus(config):
        tokens = samples * config.sampling.max_response_tokens / 2
        return Cost(gpu_hours=2 * config.model.parameters * tokens / (312e12 * 0.05) / 3600, source=MODEL)
    times = measured()["samples"].get(config.task.name)
    if on_gpus(config) or config.model.kind != "scratch" or e.backend != "torch" or not times:
        return Cost(source=UNKNOWN)
    seconds = measured()["start"] + samples / times
    return Cost(cpu_hours=seconds * config.threads / 3600, disk=TABLES_BYTES / 2 if curve else 0)


def analysis() -> Cost:
    return Cost(cpu_hours=measured()["analysis"] / 3600)
