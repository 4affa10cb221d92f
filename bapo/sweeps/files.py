"""Sweep files, ``experiments/sweep/<name>.yaml``, and the sweep of one task at one scale that a file gives."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from bapo.errors import UserError, unknown
from bapo.experiments import compose
from bapo.experiments.order import Cell
from bapo.experiments.places import file_of, options, require_name
from bapo.experiments.settings import Settings
from bapo.experiments.studies import Some
from bapo.store.files import Json
from bapo.validate import Part, Seed, parse_yaml, read, wrong

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

    from bapo.experiments.schema import Config

#: the parameter of a space that chooses the method, with its variants
METHOD = "method"


class At(Part):
    """Holds what a sweep does at one scale."""

    seeds: Some[Seed]
    trials: Annotated[int, Field(ge=1)] | None = None  # of a free search; a grid has one per combination
    tasks: list[str] | None = None  # None: all of the file's


class SweepFile(Part):
    """Holds the fields of ``experiments/sweep/<name>.yaml``."""

    title: str
    tasks: Some[str]
    method: str = "bapo"
    reference: str = "grpo"  # the method whose accuracy the region must exceed
    named: list[str] = Field(default_factory=list)  # methods that equal some of the trials, whose runs are used
    space: Annotated[dict[str, Json], Field(min_length=1)]  # key of the configuration -> distribution
    start: Json = Field(default_factory=dict)  # parameters of a free search's first trial
    scales: dict[str, At]


@dataclass(kw_only=True)
class Sweep:
    """Holds a checked sweep of one task at one scale."""

    name: str
    task: str
    scale: str
    model: str
    trials: int
    seeds: tuple[int, ...]
    space: Mapping[str, BaseDistribution]
    combinations: list[Json]  # of a grid, the last parameter changing fastest; [] for a free search
    file: SweepFile

    def cell(self, method: str, seed: int) -> Cell:
        return Cell(self.task, self.model, method, seed)

    @property
    def methods(self) -> list[str]:
        """Return the methods that trials begin from or equal, the usual one first."""
        choices = getattr(self.space.get(METHOD), "choices", ())
        return [*dict.fromkeys([self.file.method, *self.file.named, *choices])]

    def reused_cells(self) -> list[Cell]:
        """Return the ordinary runs that the sweep uses: of methods that equal some trials, and of the reference."""
        methods = dict.fromkeys([*self.methods, self.file.reference])
        return [self.cell(method, seed) for method in methods for seed in self.seeds]


def at_scale(scale: str) -> dict[str, tuple[Path, SweepFile, str]]:
    """Return the file, its content and the task of each sweep ``<file>_<task>`` that has runs at ``scale``.

    Raises UserError naming file, field and cure.
    """
    files: dict[str, tuple[Path, SweepFile, str]] = {}
    for stem in options("sweep"):
        path = file_of("sweep", stem)
        content: SweepFile = read(SweepFile, parse_yaml(path), path)
        methods = [content.method, content.reference, *content.named]
        named = [*content.tasks, *(task for at in content.scales.values() for task in at.tasks or ())]
        for group, values in (("task", named), ("scale", content.scales), ("method", methods)):
            for value in values:
                require_name(f"{path}: {group}", group, value)
        at = content.scales.get(scale)
        files |= {f"{stem}_{task}": (path, content, task) for task in (at.tasks or content.tasks if at else ())}
    return files


def load(name: str, settings: Settings) -> Sweep:
    """Load the sweep ``<file>_<task>`` at the settings' scale. Raises UserError naming file, field and cure."""
    sweeps = at_scale(settings.scale)
    if name not in sweeps:
        raise UserError(unknown("sweep", f"no '{name}' with runs at scale {settings.scale}", name, list(sweeps)))
    path, content, task = sweeps[name]
    at, space = content.scales[settings.scale], _space(path, content)
    choices: list[Any] = [getattr(d, "choices", None) for d in space.values()]
    grid = [] if None in choices else [dict(zip(space, row, strict=True)) for row in itertools.product(*choices)]
    trials = len(grid) or settings.trials or at.trials
    if trials is None:
        raise wrong(path, f"scales.{settings.scale}.trials", None, "must say how many trials a free search has")
    return Sweep(
        name=name,
        task=task,
        scale=settings.scale,
        model=compose.run_config(settings.scale, task, "", "", 0, settings.overrides_of("")).model.name,
        trials=trials,
        seeds=tuple(dict.fromkeys(settings.seeds or at.seeds)),
        space=space,
        combinations=grid,
        file=content,
    )


def _space(path: Path, content: SweepFile) -> dict[str, BaseDistribution]:
    """Build Optuna's distributions from their types and arguments in the file. Raises UserError."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    kinds = {"int": IntDistribution, "float": FloatDistribution, "categorical": CategoricalDistribution}
    space = {}
    for key, entry in content.space.items():
        try:
            space[key] = kinds[entry["type"]](**{k: v for k, v in entry.items() if k not in ("type", "title")})
        except (KeyError, TypeError, ValueError) as error:
            cure = f"needs type int or float with low and high, or categorical with choices ({error})"
            raise wrong(path, f"space.{key}", entry, cure) from None
    for key, value in content.start.items():
        if key not in space or not _lies_in(space[key], value):
            raise wrong(path, f"start.{key}", value, "must lie in the space")
    return space


def _lies_in(distribution: BaseDistribution, value: Any) -> bool:
    """Return whether a distribution contains the value, which may have any type."""
    try:
        return distribution._contains(distribution.to_internal_repr(value))
    except (TypeError, ValueError):
        return False


def check(sweep: Sweep, settings: Settings) -> Config:
    """Return the configuration that every trial starts from. Raises UserError if no trial could be judged."""
    config = settings.run(sweep.cell(sweep.file.method, sweep.seeds[0]))
    if config.probe.prompts < 1 or (config.data.source == "hub" and "probe" not in config.data.hub):
        raise UserError(
            f"sweep {sweep.name}: no problems of {sweep.task} are kept out of training for the probe at scale "
            f"{sweep.scale}, so no trial could be judged; set probe.prompts and data.hub.probe, or leave the scale out"
        )
    return config
