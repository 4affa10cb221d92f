"""Studies: which runs a table or a figure is made of (``experiments/study/``), and what the workflow is asked for.

The Snakefile reads everything it knows about runs from here; nothing here imports torch or pandas.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from bapo import tasks
from bapo.errors import UserError, unknown
from bapo.experiments import compose, order, places, tuned
from bapo.experiments.cells import Cell, require_name
from bapo.experiments.places import base_directory, options
from bapo.experiments.settings import Settings, read_settings
from bapo.project import file_and_name, is_place
from bapo.store.files import SUMMARY, write_json
from bapo.store.memory import KEPT
from bapo.validate import NOT_EMPTY, REQUIRED, parse_yaml, read, setting

# ------------------------------------------------------------------------------------------------ the study files


@dataclass(kw_only=True)
class Runs:
    """Every method with every seed from every model of one task, alone and with each of the variants."""

    task: str = setting()
    models: list[str] = setting(REQUIRED, NOT_EMPTY)
    methods: list[str] = setting(REQUIRED, NOT_EMPTY)
    variants: list[str] = field(default_factory=list)
    seeds: list[int] = setting(REQUIRED, NOT_EMPTY)


@dataclass(kw_only=True)
class StudyFile:
    """What ``experiments/study/<name>.yaml`` may say."""

    name: str = setting()
    title: str = ""
    scales: dict[str, list[Runs]] = setting(REQUIRED, NOT_EMPTY)
    reference: str = "grpo"  # the method that the others are compared with
    tables: list[str] = field(default_factory=lambda: ["comparison"])  # of analysis/products.py, made of these runs
    #: of analysis/products.py, drawn from these runs, or a project's own, FILE.py:NAME
    figures: list[str] = field(default_factory=list)
    curves: list[str] = field(default_factory=list)  # methods whose kept checkpoints are all evaluated
    tuned: bool = False  # each method with the variants that its task's setting names under tuned
    evaluated: bool = True  # on the test benchmarks; else it shows what training itself has recorded


@dataclass(frozen=True)
class Study:
    """A study's runs at one scale.

    plain: of a run that carries a tuned choice, the method as the study's file names it, and as readers see it.
    """

    name: str
    title: str
    scale: str
    cells: tuple[Cell, ...]
    figures: tuple[str, ...] = ()
    reference: str = "grpo"
    curves: tuple[str, ...] = ()
    evaluated: bool = True
    plain: Mapping[Cell, str] = field(default_factory=dict)

    def method_of(self, cell: Cell) -> str:
        """Return the method that a run stands for."""
        return self.plain.get(cell, cell.method)

    @property
    def models(self) -> list[tuple[str, str]]:
        """(task, model) of every base model, in the order of the study."""
        return list(dict.fromkeys((c.task, c.model) for c in self.cells))

    @property
    def curved(self) -> list[Cell]:
        """Return the runs whose kept checkpoints are all evaluated."""
        return [cell for cell in self.cells if self.method_of(cell) in self.curves]

    def first_look(self, home: Path) -> list[str]:
        """Return the evaluations in ``home`` that the first look shows: of its runs and of their base model."""
        cells = order.first_look(self.cells, self.method_of)
        folders = [places.base_folder(home, cells[0].task, cells[0].model)]
        folders += [places.run_folder(home, **vars(cell)) for cell in cells]
        return [f"{folder}/eval/{SUMMARY}" for folder in folders]

    def summaries(self, home: Path, curves: bool) -> list[str]:
        """Return the summary of every run and base model in ``home`` and of its evaluations; curves: of the curves.

        Of a study that evaluates nothing: of its runs alone.
        """
        if not self.evaluated:
            return [f"{places.run_folder(home, **vars(cell))}/{SUMMARY}" for cell in self.cells]
        folders = [places.run_folder(home, **vars(cell)) for cell in self.cells]
        folders += [places.base_folder(home, *start) for start in self.models]
        files = [f"{folder}/{name}" for folder in folders for name in (SUMMARY, f"eval/{SUMMARY}")]
        runs = [places.run_folder(home, **vars(cell)) for cell in self.curved] if curves else []
        return [*files, *(f"{run}/curve/{SUMMARY}" for run in runs)]


def load_study(
    name: str, scale: str, methods: Sequence[str] = (), seeds: Sequence[int] = (), overrides: Sequence[str] = ()
) -> Study:
    """Load the study ``name`` at ``scale``.

    methods, seeds: replace those of the file where not empty. overrides: of the settings that name tuned variants.
    Raises UserError naming the file, the field and what is allowed.
    """
    content = _read(name)
    blocks = content.scales
    if scale not in blocks:
        where = _path(name)
        raise UserError(f"{where}: scales has no '{scale}'; it has {', '.join(blocks)}: add the runs of this scale")
    named = [
        Cell(block.task, model, "+".join((method, *variant)), seed)
        for block in blocks[scale]
        for model in block.models
        for method in (methods or block.methods)
        for variant in ((), *((v,) for v in block.variants))
        for seed in (seeds or block.seeds)
    ]
    named = list(dict.fromkeys(named)) if methods else named  # which replace those of every block
    cells = _tuned(named, scale, tuple(overrides)) if content.tuned else named
    for cell, count in Counter(cells).items():
        if count > 1:
            raise UserError(f"{_path(name)}: scales.{scale} names {cell.method} seed {cell.seed} of {cell.model} twice")
    return Study(
        name,
        content.title or name,
        scale,
        tuple(cells),
        tuple(content.figures),
        content.reference,
        curves=tuple(m for m in content.curves if any(cell.method == m for cell in named)),
        evaluated=content.evaluated,
        plain={run: cell.method for run, cell in zip(cells, named, strict=True) if run != cell},
    )


def _tuned(named: Sequence[Cell], scale: str, overrides: tuple[str, ...]) -> list[Cell]:
    """Return the runs that the cells of a tuned study stand for."""
    starts = dict.fromkeys((cell.task, cell.model) for cell in named)
    choices = {start: tuned.of_setting(compose.run_config(scale, *start, "", 0, overrides)) for start in starts}
    applied = cache(lambda task, model, method: tuned.applied(choices[task, model], method))  # whatever the seed
    return [replace(cell, method=applied(cell.task, cell.model, cell.method)) for cell in named]


def study_of(name: str, settings: Settings) -> Study:
    """Load the study ``name`` at the scale, and with the methods, seeds and overrides, of the settings."""
    return load_study(name, settings.scale, settings.methods, settings.seeds, settings.overrides_of(""))


def _path(name: str) -> Path:
    return places.file_of("study", name)


def _read(name: str) -> StudyFile:
    path = _path(name)
    if not path.exists():
        raise UserError(unknown("study", f"no file {path}", name, options("study")))
    return _parsed(name, path, path.read_text(encoding="utf-8"))


@lru_cache(maxsize=64)
def _parsed(name: str, path: Path, text: str) -> StudyFile:
    """Parse and check a study's file, once a process: Snakemake asks for it many times."""
    return KEPT.get(("study", name, str(path), text), lambda: _checked(name, path, text))


def _checked(name: str, path: Path, text: str) -> StudyFile:
    content: StudyFile = read(StudyFile, parse_yaml(path, text), path)
    if content.name != name:
        raise UserError(f"{path}: name is '{content.name}' but the file is called {path.name}; make them equal")
    for scale, blocks in content.scales.items():
        require_name(path, f"scales.{scale}", "scale", scale)
        if not blocks:
            raise UserError(f"{path}: scales.{scale} is empty; name the runs of this scale")
        for number, block in enumerate(blocks):
            where = f"scales.{scale}[{number}]"
            require_name(path, f"{where}.task", "task", block.task)
            groups = {"model": block.models, "method": block.methods, "variant": block.variants}
            for group, names in groups.items():
                for value in names:
                    require_name(path, f"{where}.{group}s", group, value)
    for method in content.curves:
        require_name(path, "curves", "method", method)
    for figure in filter(is_place, content.figures):
        file_and_name(figure, f"{path}: figures")
    return content


# ------------------------------------------------------------------------------------------------ for the analysis


def study_content(study: Study, settings: Settings) -> dict[str, Any]:
    """Describe a study for the analysis: every run with its titles and its folder.

    A tuned run goes by the name and title of the method that it stands for; "tuned" says what was chosen for it. Of a
    study that chooses, "chosen" holds what the settings name: task -> method -> variants.
    """
    cells: list[dict[str, Any]] = []
    chosen: dict[str, dict[str, list[str]]] = {}
    bases: dict[tuple[str, str], dict[str, Any]] = {}
    benchmarks: dict[str, list[list[str]]] = {}
    note = ""
    described: dict[tuple[str, str, str], tuple[Path, dict[str, Any]]] = {}  # once for all seeds
    for cell in study.cells:
        key = (cell.task, cell.model, cell.method)
        if key not in described:
            config = settings.run(cell)
            note = config.scale.note
            if not study.evaluated:
                chosen.setdefault(cell.task, tuned.of_setting(config))
            common = {
                "task": cell.task,
                "task_title": config.task.title,
                "model": cell.model,
                "model_title": config.model.title,
            }
            method = {"method": cell.method, "method_title": config.method.title, "kind": config.method.kind}
            described[key] = places.home(config), common | method | _plain(study, cell, config, settings)
            bases.setdefault((cell.task, cell.model), common | {"run": str(base_directory(config))})
            benchmarks[cell.task] = benchmarks.get(cell.task) or _benchmarks(config)
        home, facts = described[key]
        cells.append(facts | {"seed": cell.seed, "run": str(places.run_folder(home, **vars(cell)))})
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
        **({} if study.evaluated else {"chosen": chosen}),
    }


def _benchmarks(config: DictConfig) -> list[list[str]]:
    """Return name, title and role of each benchmark."""
    task = tasks.get(config.task.name)
    return [
        [name, task.benchmarks.get(name, name), task.roles.get(name, name)] for name in config.evaluation.benchmarks
    ]


def _plain(study: Study, cell: Cell, config: DictConfig, settings: Settings) -> dict[str, Any]:
    """Describe a tuned run as the method that it stands for; {} for any other run."""
    if cell not in study.plain:
        return {}
    method = study.method_of(cell)
    own = method.split("+")
    return {
        "method": method,
        "method_title": settings.run(replace(cell, method=method)).method.title,
        "tuned": [config.variant[v] for v in cell.method.split("+") if v not in own],
    }


def main(arguments: Iterable[str] | None = None) -> int:
    """``python -m bapo.experiments.studies NAME --out FILE``: write a study for ``python -m analysis``."""
    parser = argparse.ArgumentParser(prog="python -m bapo.experiments.studies", description=main.__doc__)
    parser.add_argument("name", help=f"one of {', '.join(options('study'))}")
    parser.add_argument("--settings", type=json.loads, default={}, help="the workflow's --config as JSON")
    parser.add_argument("--out", type=Path, required=True)
    parsed = parser.parse_args(None if arguments is None else list(arguments))
    try:
        settings = read_settings(parsed.settings)
        write_json(parsed.out, study_content(study_of(parsed.name, settings), settings))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
