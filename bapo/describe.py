"""``bapo describe STUDY --out FILE``: describe a study for ``python -m analysis``, which reads the file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from bapo.experiments import places
from bapo.experiments.order import Cell
from bapo.experiments.schema import Config
from bapo.experiments.settings import Settings, read_settings
from bapo.experiments.studies import Study, study_file, study_of
from bapo.store.files import Json, write_json

#: the study whose tuned rows the candidates of a study without evaluations are for
TUNED = "table1"


def study_content(study: Study, settings: Settings, titles: bool = True) -> Json:
    """Describe a study for the analysis: every run with its titles and its folder.

    A tuned run goes by the name and title of the method that it stands for; "tuned" says what was chosen for it. Of a
    study that chooses, "chosen" holds what Table 1 has: task -> method -> variants. titles: of the benchmarks,
    too, which their tasks know; a dry run does without, as it imports no task. Raises UserError where the
    configuration of a run cannot be composed.
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
        **({} if file.evaluated else {"chosen": _chosen(study)}),
    }


def _benchmarks(config: Config, titles: bool) -> list[list[str]]:
    """Return name, title and role of each benchmark; without titles the name alone."""
    names = config.evaluation.benchmarks
    if not titles:
        return [[name] for name in names]
    from bapo import tasks

    task = tasks.get(config.task.name)
    return [[name, task.benchmarks.get(name, name), task.roles.get(name, name)] for name in names]


def _method(study: Study, cell: Cell, config: Config, settings: Settings) -> Json:
    """Describe a run's method; a tuned run's as the one that it stands for."""
    method = study.method_of(cell)
    shown = config.method if method == cell.method else settings.run(replace(cell, method=method)).method
    own = study.file.name in places.own("study")  # the plus is of the paper's rows
    title = shown.title.removeprefix("+") if own else shown.title
    content: Json = {"method": method, "method_title": title, "kind": shown.kind}
    if cell in study.tuned:
        chosen = (name for name in cell.method.split("+") if name not in method.split("+"))
        content["tuned"] = [places.variants()[name][1]["title"] for name in chosen]
    return content


def _chosen(study: Study) -> dict[str, dict[str, list[str]]]:
    """Return task -> method -> the variants that its row of Table 1 has at this scale."""
    blocks = study_file(TUNED).scales.get(study.scale, [])
    rows = {block.task: {method: variants.split("+") for method, variants in block.tuned.items()} for block in blocks}
    return {task: rows.get(task, {}) for task in dict.fromkeys(cell.task for cell in study.cells)}


def main(name: str, settings: Json, out: Path) -> None:
    """Write the description of study ``name`` to ``out``. settings: ``--config``. Raises UserError for a wrong one."""
    known = read_settings(settings, "--settings")
    write_json(out, study_content(study_of(name, known), known))
