"""Studies: which runs a table or a figure is made of (``experiments/study/``), and what the workflow is asked for.

The Snakefile reads everything it knows about runs from here; nothing here imports torch or pandas.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
import shlex
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml
from omegaconf import MISSING, DictConfig, OmegaConf

from bapo import tasks
from bapo.errors import UserError, unknown
from bapo.experiments import compose as configuration
from bapo.experiments import places
from bapo.experiments.places import base_directory, options, run_directory
from bapo.experiments.validate import checked, require_name, unknown_name
from bapo.store.files import SUMMARY, write_json

# ------------------------------------------------------------------------------------------------ the study files


@dataclass
class Runs:
    """Every method with every seed from every model of one task."""

    task: str = MISSING
    models: list[str] = MISSING
    methods: list[str] = MISSING
    seeds: list[int] = MISSING


@dataclass
class StudyFile:
    """What ``experiments/study/<name>.yaml`` may say."""

    name: str = MISSING
    title: str = ""
    scales: dict[str, Any] = MISSING  # scale -> list of Runs
    reference: str = "grpo"  # the method that the others are compared with
    figures: list[str] = field(default_factory=list)  # of the paper, drawn from these runs
    curves: list[str] = field(default_factory=list)  # methods whose kept checkpoints are all evaluated


@dataclass(frozen=True)
class Cell:
    """One training run."""

    task: str
    model: str
    method: str
    seed: int


@dataclass(frozen=True)
class Study:
    name: str
    title: str
    scale: str
    cells: tuple[Cell, ...]
    figures: tuple[str, ...] = ()
    reference: str = "grpo"
    curves: tuple[str, ...] = ()

    @property
    def models(self) -> list[tuple[str, str]]:
        """(task, model) of every base model, in the order of the study."""
        return list(dict.fromkeys((c.task, c.model) for c in self.cells))

    @property
    def curved(self) -> list[Cell]:
        """The runs whose kept checkpoints are all evaluated."""
        return [cell for cell in self.cells if cell.method in self.curves]

    def summaries(self, home: Path, curves: bool) -> list[str]:
        """Return the summary of every run and base model in ``home`` and of its evaluations; curves: of the curves."""
        folders = [places.run_folder(home, *dataclasses.astuple(cell)) for cell in self.cells]
        folders += [places.base_folder(home, *start) for start in self.models]
        files = [f"{folder}/{name}" for folder in folders for name in (SUMMARY, f"eval/{SUMMARY}")]
        runs = [places.run_folder(home, *dataclasses.astuple(cell)) for cell in self.curved] if curves else []
        return [*files, *(f"{run}/curve/{SUMMARY}" for run in runs)]


def load_study(name: str, scale: str, methods: Sequence[str] = (), seeds: Sequence[int] = ()) -> Study:
    """The study ``name`` at ``scale``.

    methods, seeds: used instead of the file's, where given. Raises UserError naming the file, the field and what is
    allowed.
    """
    content = _read(name)
    blocks = content.scales
    if scale not in blocks:
        where = _path(name)
        raise UserError(f"{where}: scales has no '{scale}'; it has {', '.join(blocks)}: add the runs of this scale")
    cells = [
        Cell(block.task, model, method, seed)
        for block in blocks[scale]
        for model in block.models
        for method in (methods or block.methods)
        for seed in (seeds or block.seeds)
    ]
    for cell, count in Counter(cells).items():
        if count > 1:
            raise UserError(f"{_path(name)}: scales.{scale} names {cell.method} seed {cell.seed} of {cell.model} twice")
    curves = tuple(m for m in content.curves if any(cell.method == m for cell in cells))
    return Study(name, content.title or name, scale, tuple(cells), tuple(content.figures), content.reference, curves)


def _path(name: str) -> Path:
    return places.EXPERIMENTS / "study" / f"{name}.yaml"


def _read(name: str) -> StudyFile:
    path = _path(name)
    if not path.exists():
        raise UserError(unknown("study", f"no file {path}", name, options("study")))
    return _parsed(name, path, path.read_text(encoding="utf-8"))


@lru_cache(maxsize=64)
def _parsed(name: str, path: Path, text: str) -> StudyFile:
    """The checked content of a study's file, which is asked for again and again."""
    try:
        content = checked(StudyFile, OmegaConf.create(text), path)
    except yaml.YAMLError as error:
        raise UserError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from None
    if content.name != name:
        raise UserError(f"{path}: name is '{content.name}' but the file is called {path.name}; make them equal")
    if not content.scales:
        raise UserError(f"{path}: scales is empty; name the runs of at least one scale")
    # OmegaConf does not check what is inside a list inside a dictionary
    for scale, blocks in content.scales.items():
        require_name(path, f"scales.{scale}", "scale", scale)
        if not isinstance(blocks, list) or not blocks:
            raise UserError(f"{path}: scales.{scale} must be a list of blocks with task, models, methods and seeds")
        for i, block in enumerate(blocks):
            blocks[i] = _block(path, f"scales.{scale}[{i}]", block)
    for method in content.curves:
        require_name(path, "curves", "method", method)
    return content


def _block(path: Path, where: str, block: Any) -> Runs:
    runs = checked(Runs, block, path, f"{where}.")
    require_name(path, f"{where}.task", "task", runs.task)
    for group, names in (("model", runs.models), ("method", runs.methods)):
        for value in names:
            require_name(path, f"{where}.{group}s", group, value)
    for key in ("models", "methods", "seeds"):
        if not getattr(runs, key):
            raise UserError(f"{path}: {where}.{key} is empty; name at least one")
    return runs


# ------------------------------------------------------------------------------------------------ the settings


@dataclass(frozen=True)
class Settings:
    """What ``snakemake --config`` asks for, checked (``workflows/schemas/config.schema.yaml``)."""

    scale: str = "laptop"
    engine: str | None = None
    device: str | None = None
    results: str = "results"
    data_folder: str | None = None
    tracking: str | None = None
    methods: tuple[str, ...] = ()
    seeds: tuple[int, ...] = ()
    trials: int | None = None
    storage: str | None = None
    set: tuple[str, ...] = ()

    @property
    def overrides(self) -> tuple[str, ...]:
        """The Hydra overrides of every job, its cell's names excepted."""
        named = {
            "engine": self.engine,
            "device": self.device,
            "tracking": self.tracking,
            "paths.results": None if self.results == "results" else self.results,
            "paths.data_folder": self.data_folder,
        }
        return (*(f"{key}={_hydra_value(value)}" for key, value in named.items() if value is not None), *self.set)

    def overrides_of(self, method: str) -> tuple[str, ...]:
        """Those of a job of ``method``; "": of problems or a base model, which no method's settings concern."""
        return self.overrides if method else tuple(o for o in self.overrides if not configuration.METHODS_OWN.match(o))

    def folder(self) -> str:
        """Return the name of the folder of the scale's results."""
        own = OmegaConf.load(places.EXPERIMENTS / "scale" / f"{self.scale}.yaml").get("engine", "torch")
        return places.scale_directory(self.scale, self.engine or own, own)

    @property
    def home(self) -> Path:
        """The folder of the scale's results."""
        return Path(self.results, self.folder())

    def study(self, name: str) -> Study:
        return load_study(name, self.scale, self.methods, self.seeds)

    def run(self, cell: Cell) -> DictConfig:
        """The configuration of a run."""
        return configuration.run_config(self.scale, cell.task, cell.model, cell.method, cell.seed, self.overrides)

    def changed(self) -> dict[str, Any]:
        """Only what differs from the defaults."""
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if getattr(self, f.name) != f.default}

    def as_json(self) -> str:
        """The same for a command line."""
        return json.dumps(self.changed(), sort_keys=True)

    def as_words(self) -> list[str]:
        """The same as ``snakemake --config`` takes it, less what only says how the work is done."""
        given = {key: value for key, value in self.changed().items() if key not in ("device", "tracking", "storage")}
        return [
            f"{key}={json.dumps(value, separators=(',', ':')) if isinstance(value, tuple) else value}"
            for key, value in given.items()
        ]


def _hydra_value(text: str) -> str:
    """A string as Hydra's override grammar reads it back unchanged."""
    if re.fullmatch(r"[\w./\-]+", text):
        return text
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def read_settings(given: Mapping[str, Any], schema: Path) -> Settings:
    """Check ``--config`` against its JSON schema and the names in ``experiments/``.

    Raises UserError: one sentence with the key and the allowed values.
    """
    import jsonschema

    rules = yaml.safe_load(schema.read_text(encoding="utf-8"))
    properties = rules["properties"]
    values = {key: _as_list(key, value, properties) for key, value in given.items() if value is not None}
    for error in jsonschema.Draft202012Validator(rules).iter_errors(values):
        extra = sorted(set(values) - set(properties))
        if extra:
            raise UserError(unknown(f"--config {extra[0]}", "no such key", extra[0], sorted(properties)))
        key = str(error.absolute_path[0])
        raise UserError(f"--config {key}={given[key]}: must be {properties[key]['description']}")
    for group, names in (("scale", [values.get("scale", "laptop")]), ("method", values.get("methods", []))):
        key = "methods" if group == "method" else group
        for value in names:
            if wrong := unknown_name(group, value):
                allowed = options(wrong[0])
                what = f"unknown {wrong[0]} '{wrong[1]}'" if wrong[0] == "variant" else f"unknown {wrong[0]}"
                raise UserError(unknown(f"--config {key}={value}", what, wrong[1], allowed))
    return Settings(**{key: tuple(value) if isinstance(value, list) else value for key, value in values.items()})


def _as_list(key: str, value: Any, properties: Mapping[str, Any]) -> Any:
    """Snakemake leaves numbers in a list as text, and people type ``seeds=1`` or ``methods=grpo,bapo`` for a list."""
    if properties.get(key, {}).get("type") != "array":
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        return str(value) if number and properties.get(key, {}).get("type") != "integer" else value
    if isinstance(value, str):
        value = shlex.split(value) if key == "set" else re.split(r"[\s,]+", value.strip())
    elif not isinstance(value, list):
        value = [value]
    if properties[key]["items"]["type"] == "integer":
        return [int(v) if isinstance(v, str) and v.isdecimal() else v for v in value]
    return value


# ------------------------------------------------------------------------------------------------ for the analysis


def study_content(study: Study, settings: Settings) -> dict[str, Any]:
    """What the analysis reads: every run with its titles and its folder."""
    cells: list[dict[str, Any]] = []
    bases: dict[tuple[str, str], dict[str, Any]] = {}
    benchmarks: dict[str, list[list[str]]] = {}
    note = ""
    configs: dict[tuple[str, str, str], DictConfig] = {}
    for cell in study.cells:
        if (cell.task, cell.model, cell.method) not in configs:
            configs[cell.task, cell.model, cell.method] = settings.run(cell)
        config = configs[cell.task, cell.model, cell.method]
        config.seed = cell.seed  # all that differs
        note = config.scale.note
        common = {
            "task": cell.task,
            "task_title": config.task.title,
            "model": cell.model,
            "model_title": config.model.title,
        }
        cells.append(
            common
            | {
                "method": cell.method,
                "method_title": config.method.title,
                "kind": config.method.kind,
                "seed": cell.seed,
                "run": str(run_directory(config)),
            }
        )
        bases.setdefault((cell.task, cell.model), common | {"run": str(base_directory(config))})
        task = tasks.get(cell.task)
        benchmarks[cell.task] = [
            [name, task.benchmarks.get(name, name), task.roles.get(name, name)] for name in config.evaluation.benchmarks
        ]
    return {
        "name": study.name,
        "title": study.title,
        "scale": study.scale,
        "reference": study.reference,
        "config": settings.as_words(),
        "note": note,
        "cells": cells,
        "bases": list(bases.values()),
        "benchmarks": benchmarks,
        "curves": list(study.curves),
    }


def main(arguments: Iterable[str] | None = None) -> int:
    """``python -m bapo.experiments.studies NAME --out FILE``: write a study for ``python -m analysis``."""
    parser = argparse.ArgumentParser(prog="python -m bapo.experiments.studies", description=main.__doc__)
    parser.add_argument("name", help=f"one of {', '.join(options('study'))}")
    parser.add_argument("--settings", type=json.loads, default={}, help="the workflow's --config as JSON")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args(None if arguments is None else list(arguments))
    try:
        settings = read_settings(given.settings, SCHEMA)
        write_json(given.out, study_content(settings.study(given.name), settings))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


SCHEMA = Path(__file__).resolve().parents[2] / "workflows" / "schemas" / "config.schema.yaml"

if __name__ == "__main__":
    sys.exit(main())
