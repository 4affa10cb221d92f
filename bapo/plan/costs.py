"""What one job costs: measured seconds at laptop scale, the paper's Table 2 or a model of its time on GPUs.

The model: 2 P operations a generated token at ``GENERATING`` of a card's peak (decoding is bound by memory), and 8 P a
trained token (forward, backward, and the forward that gradient checkpointing repeats) at ``TRAINING``. Other policies'
log-probabilities cost 2 P more each, a critic 8 P for its update and 2 P for its values. DAPO is charged for all the
generation batches that it may draw, BAPO for as many re-evaluations as it may make, RePO for all its replays, and every
method for a full training batch: upper bounds. Probe, validation, checkpoints, and a processor's updates of a policy in
host memory are not counted.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import yaml

from bapo import methods
from bapo.experiments import budgets
from bapo.experiments import compose as configuration
from bapo.experiments.identity import shipped_base
from bapo.experiments.order import Cell
from bapo.experiments.schema import Config, on_gpus
from bapo.experiments.settings import Settings
from bapo.store.files import Json

PAPER, MODEL = "the paper's Table 2", "the model of docs/paper_scale.md"
MEASURED, UNKNOWN = "measured times (bapo/plan/measured.yaml)", "nobody has measured it"
TABLES_BYTES = 1_000_000  # steps, groups, probe and evaluation of a laptop-scale run; more with more problems
#: bfloat16 operations a second of an A100, and the shares of them that generation and training reach
PEAK, GENERATING, TRAINING = 312e12, 0.05, 0.35
#: hours on 8 A100, Table 2 of the paper, which names no model: the small one of each task
PAPER_HOURS = {
    "deepseek-r1-distill-qwen-1.5b": {"grpo": 40 + 58 / 60, "dapo": 63.5, "bapo": 46 + 37 / 60},
    "qwen2.5-math-1.5b": {
        "grpo": 3 + 47 / 60,
        "dapo": 6 + 35 / 60,
        "bapo": 3 + 23 / 60,
        "bapo_without_x2": 2 + 38 / 60,
        "bapo_without_x3": 3 + 4 / 60,
        "bapo+fixed_0_2": 3.9,
        "bapo+fixed_3_4": 3 + 4 / 60,
    },
    "qwen2.5-vl-3b": {
        "grpo": 7 + 55 / 60,
        "dapo": 12 + 19 / 60,
        "bapo": 5 + 50 / 60,
        "bapo_without_x2": 3.7,
        "bapo_without_x3": 4 + 31 / 60,
    },
}


@dataclass(frozen=True)
class Cost:
    """Hours of one job (GPU-hours: hours times GPUs), the bytes that stay on disk, and where the hours are from."""

    gpu_hours: float = 0.0
    cpu_hours: float = 0.0
    disk: float = 0.0
    source: str = MEASURED

    def times(self, jobs: int) -> Cost:
        return Cost(jobs * self.gpu_hours, jobs * self.cpu_hours, jobs * self.disk, self.source)


@lru_cache(maxsize=1)
def measured() -> Json:
    return yaml.safe_load(Path(__file__).with_name("measured.yaml").read_text(encoding="utf-8"))


@lru_cache(maxsize=64)
def of_model(settings: Settings, task: str, model: str) -> Config:
    """Compose the configuration of a task and a model, without a method's settings."""
    return configuration.run_config(settings.scale, task, model, "", 0, settings.overrides_of(""))


@lru_cache(maxsize=512)
def of_run(settings: Settings, task: str, model: str, method: str) -> Config:
    """Compose the configuration of the runs of a method, whatever the seed."""
    return settings.run(Cell(task, model, method, 0))


# ------------------------------------------------------------------------------------------------ the model


def parameters(config: Config) -> float:
    """Return model.parameters, or what the model's name says (qwen2-112k: 112,000); 0 where neither does."""
    size = re.search(r"(\d+(?:\.\d+)?)([kmb])$", config.model.name.split("+")[0])
    named = float(size[1]) * {"k": 1e3, "m": 1e6, "b": 1e9}[size[2]] if size else 0.0
    return float(config.model.parameters or named)


def expected_steps(config: Config) -> float:
    """Estimate training steps; a budgeted run's from what BAPO took for GRPO's budget (measured.yaml)."""
    budget = config.train.budget
    share = 1.0 if budget.unit == "steps" else min(measured()["budget"][budget.unit], budget.most)
    return budgets.steps(config) * share


def generation_batches(config: Config) -> float:
    """Return how many batches of ``train.batch_size`` groups are generated a step at most."""
    m = config.method
    if hasattr(m, "max_generation_batches"):
        return float(m.max_generation_batches)
    if not hasattr(m, "m") or m.algorithm == "bapo_without_x2":
        return 1.0
    half = max(1, config.train.batch_size // 2)
    return 1.0 + (getattr(m, "max_reevaluated", None) or half) / config.train.batch_size / m.m


def step_seconds(
    config: Config, gpus: int = 8, mean_response: float | None = None, peak: float = PEAK
) -> tuple[float, float]:
    """Estimate the seconds of generation and of training in one step with a full batch.

    mean_response: tokens, by default half the longest response. peak: operations a second of one GPU.
    """
    s, t, method = config.sampling, config.train, methods.of_run(config)
    response = mean_response or s.max_response_tokens / 2
    rows = t.batch_size * t.group_size
    generated = rows * generation_batches(config) * response
    replayed = getattr(config.method, "replays", 0) / t.group_size  # RePO's share of a batch, on top of it
    tokens = rows * (1 + replayed) * (s.max_prompt_tokens / 2 + response)
    forwards = 8 + 2 * (method.needs_reference + method.needs_step_policy) + 10 * method.uses_critic
    seconds = parameters(config) / (gpus * peak)  # of one operation a parameter
    return 2 * seconds * generated / GENERATING, forwards * seconds * tokens / TRAINING


# ------------------------------------------------------------------------------------------------ jobs


def data(config: Config) -> Cost:
    if config.data.source == "hub":
        return Cost(source=UNKNOWN)  # a download and minutes
    return Cost(cpu_hours=(measured()["start"] + measured()["data"].get(config.task.name, 10)) / 3600)


def base(config: Config) -> Cost:
    """Estimate a base model's training; one that comes with the suite, or from the hub, is only written down."""
    if config.model.kind != "scratch" or shipped_base(config):
        return Cost(cpu_hours=measured()["start"] / 3600)
    disk = 4 * parameters(config)
    if on_gpus(config) or config.task.name not in measured()["iteration"]:
        return Cost(disk=disk, source=UNKNOWN)
    seconds = measured()["iteration"][config.task.name] * config.base.iterations * config.base.batch_size / 64
    return Cost(cpu_hours=(measured()["start"] + seconds) * config.base.threads / 3600, disk=disk)


@lru_cache(maxsize=512)
def train_of(settings: Settings, task: str, model: str, method: str) -> Cost:
    """Estimate one run of the method: every seed costs the same."""
    return train(of_run(settings, task, model, method))


def train(config: Config) -> Cost:
    disk, name = checkpoints(config), config.method.name
    if config.model.kind == "pretrained" and config.model.parameters and config.engine == "verl" and on_gpus(config):
        hours = PAPER_HOURS.get(config.model.name, {}).get(name) if config.scale.name == "paper" else None
        if hours is not None:
            return Cost(gpu_hours=8 * hours, disk=disk, source=PAPER)
        gpus = config.verl.gpus_per_node or 8
        seconds = sum(step_seconds(config, gpus)) * expected_steps(config)
        return Cost(gpu_hours=gpus * seconds / 3600, disk=disk, source=MODEL)
    times = measured()["step"].get(config.task.name)
    if config.engine != "torch" or on_gpus(config) or config.model.kind != "scratch" or not times:
        return Cost(disk=disk, source=UNKNOWN)
    # a method that nobody has measured takes as long as the task's slowest
    step = times.get(name, times.get(name.split("+")[0], times.get(config.method.algorithm, max(times.values()))))
    share = config.train.batch_size * config.train.group_size / measured()["responses"]
    seconds = measured()["start"] + step * share * expected_steps(config)
    return Cost(cpu_hours=seconds * config.threads / 3600, disk=disk)


def checkpoints(config: Config) -> float:
    """Estimate the bytes of a finished run: kept models, tables, and two states of the trainer where they are kept.

    A kept model has the bytes of its dtype; a state 12 a parameter (float32 weights and Adam's moments), 4 more with a
    delayed rollout policy, 12 more with a critic, and with verl the model once more. What methods replay is not
    counted.
    """
    method = methods.of_run(config)
    kept = -(-expected_steps(config) // config.checkpoint.every) if config.checkpoint.keep_models else 1
    width = 2 if "16" in config.model.dtype else 4
    state = 12 + 4 * method.delays_rollout_policy + 12 * method.uses_critic
    state += width if config.engine == "verl" else 0
    states = 2 if config.engine == "verl" or config.checkpoint.keep_state else 0
    return parameters(config) * (kept * width + states * state) + TABLES_BYTES


def evaluate(config: Config, curve: bool = False) -> Cost:
    """Estimate an evaluation on every benchmark; curve: of every kept checkpoint and the start, with fewer samples."""
    e = config.evaluation
    names = {*e.benchmarks, *([e.validation] if curve and e.validation else [])}
    models = 1 + -(-expected_steps(config) // config.checkpoint.every) if curve else 1
    samples = (e.curve_samples if curve else e.samples) * models
    samples *= sum(config.data.split_sizes.get(name, 0) for name in names)
    if config.model.kind == "pretrained" and config.model.parameters and on_gpus(config):
        tokens = samples * config.sampling.max_response_tokens / 2
        return Cost(gpu_hours=2 * config.model.parameters * tokens / (PEAK * GENERATING) / 3600, source=MODEL)
    times = measured()["samples"].get(config.task.name)
    if on_gpus(config) or config.model.kind != "scratch" or e.backend != "torch" or not times:
        return Cost(source=UNKNOWN)
    seconds = measured()["start"] + samples / times
    return Cost(cpu_hours=seconds * config.threads / 3600, disk=TABLES_BYTES / 2 if curve else 0)
