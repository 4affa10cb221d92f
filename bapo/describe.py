"""``bapo describe STUDY --out FILE``: describe a study for ``python -m analysis``, which reads the file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from bapo.experiments import places
from bapo.experiments.order import Cell
from bapo.experiments.schema import Config
from bapo.experiments.settings import Settings, read_settings
from bapo.experiments.studies import Study, load_study, study_file, study_of
from bapo.store.files import Json, write_json

#: the study whose tuned rows were chosen by studies without evaluations
TUNED = "table1"


def study_content(study: Study, settings: Settings, titles: bool = True) -> Json:
    """Describe a study for the analysis: every run with its titles and its folder.

    A tuned run has the name and title of the method that it stands for, and "tuned" names its variants. For a study
    without evaluations, "chosen" holds the variants in Table 1 by task and method.

    Args:
        study: what is described
        settings: of the workflow
        titles: whether benchmarks get titles, for which their tasks are imported; a dry run does without

    Raises UserError where the configuration of a run cannot be composed.
    """
    cells: list[Json] = []
    bases: dict[tuple[str, str], Json] = {}
    benchmarks: dict[str, list[list[str]]] = {}
    note = ""
    described: dict[tuple[str, str, str], Json] = {}  # once for all seeds
    for cell in study.cells:
        key = (cell.task, cell.model, cell.method)
        if key not in described:
            config = settings.run(cell)
            note = config.scale.note
            common = {"task": cell.task, "task_title": config.task.title}
            common |= {"model": cell.model, "model_title": config.model.title}
            described[key] = common | _method(study, cell, config, settings)
            bases.setdefault(key[:2], common | {"run": str(places.base_directory(config))})
            benchmarks[cell.task] = benchmarks.get(cell.task) or _benchmarks(config, titles)
        cells.append(described[key] | {"seed": cell.seed, "run": str(places.run_folder(settings.home, **vars(cell)))})
    file = study.file
    missing = missing_runs(study, settings.methods) if file.gates else []
    return {
        "name": file.name,
        "title": file.title,
        "scale": study.scale,
        "reference": file.reference,
        "config": settings.as_words(),
        "note": note,
        "cells": cells,
        "bases": list(bases.values()),
        "benchmarks": benchmarks,
        "curves": study.curves,
        **({} if file.evaluated else {"chosen": _tuned_variants(study)}),
        **({"missing": missing} if missing else {}),
    }


def _benchmarks(config: Config, titles: bool) -> list[list[str]]:
    """Return the name, title and role of each benchmark, or its name alone without titles."""
    names = config.evaluation.benchmarks
    if not titles:
        return [[name] for name in names]
    from bapo import tasks

    task = tasks.get(config.task.name)
    return [[name, task.benchmarks.get(name, name), task.roles.get(name, name)] for name in names]


def _method(study: Study, cell: Cell, config: Config, settings: Settings) -> Json:
    """Describe the method of a run, for a tuned run the method that it stands for."""
    name = study.method_of(cell)
    method = config.method if name == cell.method else settings.run(replace(cell, method=name)).method
    of_project = study.file.name in places.own("study")  # only rows of the paper's studies have a plus
    title = method.title.removeprefix("+") if of_project else method.title
    content: Json = {"method": name, "method_title": title, "kind": method.kind}
    if cell in study.tuned:
        variants = (variant for variant in cell.method.split("+") if variant not in name.split("+"))
        content["tuned"] = [places.variants()[variant][1]["title"] for variant in variants]
    return content


def _tuned_variants(study: Study) -> dict[str, dict[str, list[str]]]:
    """Return task -> method -> the variants of its row in Table 1 at this scale."""
    blocks = study_file(TUNED).scales.get(study.scale, [])
    rows = {block.task: {method: variants.split("+") for method, variants in block.tuned.items()} for block in blocks}
    return {task: rows.get(task, {}) for task in dict.fromkeys(cell.task for cell in study.cells)}


def missing_runs(study: Study, methods: Sequence[str] = ()) -> list[str]:
    """Return runs that a study with rules lacks, TASK/MODEL/METHOD/SEED, where a row has fewer than its file asks for.

    Other seeds than the file's repeat a study, if they are as many. methods: what the settings put in the file's place.
    """
    planned = load_study(study.file.name, study.scale, methods)
    there = Counter(replace(cell, seed=0) for cell in study.cells)
    asked = Counter(replace(cell, seed=0) for cell in planned.cells)
    lacking: list[Cell] = []
    for row, count in (asked - there).items():
        cells = [cell for cell in planned.cells if replace(cell, seed=0) == row and cell not in study.cells]
        lacking += cells[:count]
    return [f"{c.task}/{c.model}/{planned.method_of(c)}/seed{c.seed}" for c in lacking]


def main(name: str, settings: Json, out: Path) -> None:
    """Write the description of study ``name`` to ``out``. settings: of the workflow. Raises UserError."""
    checked_settings = read_settings(settings, "--settings")
    write_json(out, study_content(study_of(name, checked_settings), checked_settings))
