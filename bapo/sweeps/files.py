"""Sweep files, ``experiments/sweep/<name>.yaml``: reading, checking, and reduction to one scale."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from bapo import methods
from bapo.errors import UserError, unknown
from bapo.experiments import compose, places
from bapo.experiments.cells import Cell, require_name
from bapo.experiments.identity import digest
from bapo.experiments.places import options
from bapo.experiments.settings import Settings
from bapo.store.memory import KEPT
from bapo.sweeps import space
from bapo.sweeps.space import Parameter
from bapo.validate import DISTINCT, NOT_EMPTY, ONE, REQUIRED, at_least, one_of, parse_yaml, read, setting, within, wrong

SAMPLERS = ("grid", "tpe")


@dataclass
class Pruning:
    """A trial ends early where Wilcoxon's signed-rank test says that it is worse than the best one so far."""

    p: float = setting(0.05, within(0, 1, "(0, 1)"))
    seeds: int = setting(1, ONE)  # a trial is judged only after this many of its seeds are trained


@dataclass(kw_only=True)
class At:
    """A sweep at one scale."""

    model: str | None = None  # None: the default of the task's setting
    seeds: list[int] = setting(REQUIRED, NOT_EMPTY, DISTINCT)
    trials: int | None = setting(None, ONE)  # of a free search; a grid has one per cell


@dataclass(kw_only=True)
class SweepFile:
    """The fields of ``experiments/sweep/<name>.yaml``."""

    name: str = setting()
    like: str | None = None  # another sweep, which gives the fields not set here
    title: str = ""
    task: str = setting()
    method: str = "bapo"
    reference: str = "grpo"  # the method whose accuracy the region must exceed
    named: list[str] = field(default_factory=list)  # methods that equal some of the trials, whose runs are used
    sampler: str = setting(REQUIRED, one_of(*SAMPLERS))
    space: dict[str, Any] = setting(REQUIRED, NOT_EMPTY)
    start: dict[str, Any] = field(default_factory=dict)  # first trial of a free search: Optuna's name -> value
    startup: int = 8  # random trials before the search begins (tpe)
    seed: int = 1  # the sampler's
    pruning: Pruning | None = None
    retries: int = setting(1, at_least(0))  # how often a trial is resumed after its worker was killed
    storage: str | None = None  # an Optuna storage URL; None: journal.log beside the sweep's results
    scales: dict[str, At] = setting()


@dataclass(kw_only=True)
class Sweep(SweepFile):
    """A checked sweep at one scale: the fields of its file, and those that the scale decides."""

    scale: str
    model: str
    parameters: tuple[Parameter, ...]
    trials: int
    seeds: tuple[int, ...]

    @property
    def space_identity(self) -> str:
        return digest([p.content() for p in self.parameters])

    def cell(self, method: str, seed: int) -> Cell:
        return Cell(self.task, self.model, method, seed)


def names() -> list[str]:
    return options("sweep")


def at_scale(scale: str) -> list[str]:
    """Return the sweeps that have runs at ``scale``."""
    key = ("sweeps at scale", *map(str, places.trees()), scale)
    return KEPT.get(key, lambda: [name for name in names() if scale in _read(name).scales])


def load(name: str, settings: Settings) -> Sweep:
    """Load the sweep ``name`` at the settings' scale. Raises UserError naming file, field and allowed values."""
    path, content = _path(name), _read(name)
    if settings.scale not in content.scales:
        raise UserError(
            f"{path}: scales has no '{settings.scale}'; it has {', '.join(content.scales)}: add seeds and trials of it"
        )
    at = content.scales[settings.scale]
    parameters = tuple(_parameter(path, key, entry) for key, entry in content.space.items())
    _check_intervals(path, parameters)
    _check_start(path, parameters, content.start)
    if content.sampler == "grid":
        numbers = [p.name for p in parameters if p.kind != "categorical"]
        if numbers:
            raise UserError(f"{path}: space.{numbers[0]}: a grid takes categorical parameters; list its choices")
        if at.trials is not None:
            cure = "a grid has as many trials as cells; leave trials out"
            raise wrong(path, f"scales.{settings.scale}.trials", at.trials, cure)
        trials = len(space.grid(parameters))
    else:
        trials = settings.trials or at.trials
        if not trials:
            raise wrong(path, f"scales.{settings.scale}.trials", None, "must say how many trials a free search has")
    model = (
        at.model or compose.run_config(settings.scale, content.task, "", "", 0, settings.overrides_of("")).model.name
    )
    scaled = {
        "scale": settings.scale,
        "title": content.title or name,
        "model": model,
        "parameters": parameters,
        "trials": trials,
        "seeds": settings.seeds or tuple(at.seeds),
        "storage": settings.storage or content.storage,
    }
    return Sweep(**vars(content) | scaled)


def _path(name: str) -> Path:
    return places.file_of("sweep", name)


def _plain(name: str) -> dict[str, Any]:
    path = _path(name)
    if not path.exists():
        raise UserError(unknown("sweep", f"no file {path}", name, names()))
    content = parse_yaml(path)
    return content if isinstance(content, dict) else read(SweepFile, content, path)  # raises the error


def _read(name: str) -> SweepFile:
    path, content = _path(name), _plain(name)
    if content.get("like"):
        other = _plain(str(content["like"]))
        if other.get("like"):
            raise UserError(f"{path}: like: {content['like']} is like another sweep itself; name {other['like']}")
        content = other | content
    sweep: SweepFile = read(SweepFile, content, path)
    if sweep.name != name:
        raise UserError(f"{path}: name is '{sweep.name}' but the file is called {path.name}; make them equal")
    choices = [("task", "task", sweep.task), ("method", "method", sweep.method)]
    choices += [("reference", "method", sweep.reference), *(("named", "method", n) for n in sweep.named)]
    choices += [("scales", "scale", s) for s in sweep.scales]
    for where, group, value in choices:
        require_name(path, where, group, value)
    return sweep


# ------------------------------------------------------------------------------------------------ the space


def _parameter(path: Path, name: str, entry: Any) -> Parameter:
    where = f"space.{name}"
    if not isinstance(entry, Mapping):
        raise UserError(f"{path}: {where} must be a mapping with type and key")
    fields = dict(entry)
    kind = fields.pop("type", None)
    if kind not in space.KINDS:
        raise UserError(f"{path}: " + unknown(f"{where}.type", f"unknown '{kind}'", str(kind), space.KINDS))
    allowed = [f.name for f in dataclasses.fields(Parameter) if f.name not in ("name", "kind")]
    for key in fields:
        if key not in allowed:
            raise UserError(f"{path}: " + unknown(f"{where}.{key}", "no such field", str(key), allowed))
    if kind == "categorical":
        fields["choices"] = _choices(path, where, fields)
    else:
        fields = _numbers(path, where, kind, fields)
        if not fields.get("key"):
            raise UserError(f"{path}: {where}.key must name the key that it sets, for example method.v")
    return Parameter(name=str(name), kind=kind, **fields)


def _choices(path: Path, where: str, fields: Mapping[str, Any]) -> dict[Any, dict[str, Any]]:
    """Return {choice: overrides}, from a list of values of ``key`` or a mapping of names to overrides."""
    choices = fields.get("choices")
    if isinstance(choices, Mapping) and choices and all(isinstance(v, Mapping) for v in choices.values()):
        return {str(k): dict(v) for k, v in choices.items()}
    simple = isinstance(choices, list) and all(v is None or isinstance(v, (bool, int, float, str)) for v in choices)
    if not simple or not choices or len(set(choices)) < len(choices) or not fields.get("key"):
        raise UserError(f"{path}: {where}.choices must list different values of {where}.key, or map names to overrides")
    return {v: {fields["key"]: v} for v in choices}


def _numbers(path: Path, where: str, kind: str, fields: dict[str, Any]) -> dict[str, Any]:
    try:
        if kind == "interval":
            low, width = fields["low"], fields.pop("width")
            fields |= {"low": float(low[0]), "high": float(low[1]), "width": (float(width[0]), float(width[1]))}
        else:
            fields |= {"low": float(fields["low"]), "high": float(fields["high"])}
        fields["step"] = None if fields.get("step") is None else float(fields["step"])
        Parameter(name="x", kind=kind, **fields).distributions()
    except (KeyError, IndexError, TypeError, ValueError) as error:
        needs = "low: [a, b] and width: [a, b]" if kind == "interval" else "low and high"
        raise UserError(f"{path}: {where} needs {needs} as numbers that fit together ({error})") from None
    return fields


def _check_intervals(path: Path, parameters: tuple[Parameter, ...]) -> None:
    earlier: list[str] = []
    for p in parameters:
        if p.above and p.above not in earlier:
            raise UserError(f"{path}: space.{p.name}.above: name an interval that comes before it, not '{p.above}'")
        if p.kind == "interval":
            earlier.append(p.name)


def _check_start(path: Path, parameters: tuple[Parameter, ...], start: Mapping[str, Any]) -> None:
    numbers = {name: d for p in parameters for name, d in p.distributions().items()} if start else {}
    for name, value in start.items():
        if name not in numbers:
            raise UserError(f"{path}: " + unknown(f"start.{name}", "no such number of the space", name, list(numbers)))
        try:
            inside = numbers[name]._contains(numbers[name].to_internal_repr(value))
        except (TypeError, ValueError):
            inside = False
        if not inside:
            raise UserError(f"{path}: start.{name}={value}: must be in the space, {numbers[name]}")


def check(sweep: Sweep, settings: Settings) -> DictConfig:
    """Return the configuration that every trial starts from. Raises UserError if no trial could be judged."""
    config = settings.run(sweep.cell(sweep.method, sweep.seeds[0]))
    if config.probe.prompts < 1:
        raise UserError("probe.prompts=0: a sweep is judged on the held-out probe problems; set it to at least 1")
    if config.data.source == "hub" and "probe" not in config.data.hub:
        raise UserError(
            f"{_path(sweep.name)}: scales.{sweep.scale}: no problems for the probe of {sweep.task} are kept out of "
            "training here, so no trial could be judged; add data.hub.probe to the setting, or leave the scale out"
        )
    methods.get(config.method.algorithm)
    return config
