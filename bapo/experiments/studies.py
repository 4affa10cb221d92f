"""Studies: which runs a table or a figure is made of (``experiments/study/``).

The Snakefile gets all that it knows about runs from here. Nothing here imports torch or pandas.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from bapo.errors import UserError, unknown
from bapo.experiments import order, places
from bapo.experiments.order import Cell
from bapo.experiments.settings import Settings
from bapo.project import file_and_name, is_place
from bapo.store.files import SUMMARY, Json
from bapo.validate import Kind, Part, Seed, parse_yaml, read, wrong

Some = Annotated[list[Kind], Field(min_length=1)]


class Runs(Part):
    """Names runs: every method, alone and with each variant, with every seed from every model of one task.

    paired: whether the first model only has the first seed, the second the second, and so on; seeds that are asked for
    then choose among these pairs.
    """

    task: str
    models: Some[str]
    methods: Some[str]
    variants: list[str] = []
    seeds: Some[Seed]
    paired: bool = False
    tuned: dict[str, str] = {}  # method -> the variants, joined by +, that tuning chose for it: docs/sweeps.md

    @model_validator(mode="after")
    def _a_seed_for_each_model(self) -> Self:
        if self.paired and len(self.models) != len(self.seeds):
            raise ValueError(f"paired needs a seed for each model, not {len(self.seeds)} for {len(self.models)}")
        return self

    def run_of(self, method: str) -> str:
        """Return the method with the variants that tuning chose."""
        return "+".join((method, *filter(None, [self.tuned.get(method)])))

    def seeds_of(self, model: str, requested: Sequence[int] = ()) -> Sequence[int]:
        """Return the seeds of the runs from a model. requested: replace the file's; () keeps those."""
        if not self.paired:
            return requested or self.seeds
        seed = self.seeds[self.models.index(model)]
        return [seed] if seed in requested or not requested else []


class StudyDefinition(Part):
    """Holds the fields of ``experiments/study/<name>.yaml``."""

    name: str
    title: str
    scales: Annotated[dict[str, Some[Runs]], Field(min_length=1)]
    reference: str = "grpo"  # the method that the others are compared with
    tables: list[str] = ["comparison"]  # of analysis/products.py, made of these runs
    figures: list[str] = []  # of analysis/products.py, drawn from these runs, or a project's own, FILE.py:NAME
    curves: list[str] = []  # methods whose kept checkpoints are all evaluated
    evaluated: bool = True  # on the test benchmarks; else it shows what training itself has recorded
    #: the fields below are written before the first run, in the form of analysis/beyond/gates.py
    claim: str = ""
    unit: Literal["seed", "base", "data"] = "seed"
    gates: list[Json] = []
    decisions: list[Json] = []


@dataclass(frozen=True)
class Study:
    """Holds a study's runs at one scale. tuned: tuned run -> the method under whose name it is shown."""

    file: StudyDefinition
    scale: str
    cells: tuple[Cell, ...]
    tuned: Mapping[Cell, str]

    def method_of(self, cell: Cell) -> str:
        """Return the method that a run stands for."""
        return self.tuned.get(cell, cell.method)

    @property
    def curves(self) -> list[str]:
        """Return the methods with runs here whose kept checkpoints are all evaluated."""
        methods = {self.method_of(cell) for cell in self.cells}
        return [method for method in self.file.curves if method in methods]

    @property
    def curved(self) -> list[Cell]:
        """Return the runs whose kept checkpoints are all evaluated."""
        return [cell for cell in self.cells if self.method_of(cell) in self.file.curves]

    def first_look(self, home: Path) -> list[str]:
        """Return the evaluations in ``home`` that the first look shows, of its runs and their base model."""
        cells = order.first_look(self.cells, self.method_of)
        folders = [places.base_folder(home, cells[0].task, cells[0].model)]
        folders += [places.run_folder(home, **vars(cell)) for cell in cells]
        return [f"{folder}/eval/{SUMMARY}" for folder in folders]

    def summaries(self, home: Path, curves: bool) -> list[str]:
        """Return the summaries of all runs and base models in ``home`` and of their evaluations.

        A study that evaluates nothing only has those of its runs. curves: whether those of curves are returned, too.
        """
        runs = [places.run_folder(home, **vars(cell)) for cell in self.cells]
        if not self.file.evaluated:
            return [f"{run}/{SUMMARY}" for run in runs]
        bases = dict.fromkeys(places.base_folder(home, cell.task, cell.model) for cell in self.cells)
        files = [f"{folder}/{name}" for folder in (*runs, *bases) for name in (SUMMARY, f"eval/{SUMMARY}")]
        curved = self.curved if curves else []
        return [*files, *(f"{places.run_folder(home, **vars(cell))}/curve/{SUMMARY}" for cell in curved)]


def load_study(name: str, scale: str, methods: Sequence[str] = (), seeds: Sequence[int] = ()) -> Study:
    """Load the study ``name`` at ``scale``. methods, seeds: replace those of the file unless they are empty; of a
    block with one seed a model, seeds only choose.

    Raises UserError naming the file, the field and what is allowed.
    """
    content, path = study_file(name), places.file_of("study", name)
    if scale not in content.scales:
        cure = f"has no '{scale}'; it has {', '.join(content.scales)}: add the runs of this scale"
        raise UserError(f"{path}: scales {cure}")
    blocks = content.scales[scale]
    if unpaired := [seed for seed in seeds if all(block.paired and seed not in block.seeds for block in blocks)]:
        own = " ".join(f"{block.seeds[0]} to {block.seeds[-1]}" for block in blocks)
        raise UserError(f"seeds={unpaired[0]}: each model of {name} has its own seed; choose from {own}")
    rows = [
        (Cell(block.task, model, "+".join((block.run_of(method), *variant)), seed), method)
        for block in blocks
        for model in block.models
        for method in (methods or block.methods)
        for variant in ((), *((v,) for v in block.variants))
        for seed in block.seeds_of(model, seeds)
    ]
    rows = list(dict.fromkeys(rows)) if methods or seeds else rows  # several blocks may then have the same runs
    for cell, count in Counter(cell for cell, _ in rows).items():
        if count > 1:
            raise UserError(f"{path}: scales.{scale} names {cell.method} seed {cell.seed} of {cell.model} twice")
    runs = {block.run_of(method) for block in content.scales[scale] for method in block.tuned}
    tuned = {cell: method for cell, method in rows if cell.method in runs and method != cell.method}
    study = Study(content, scale, tuple(cell for cell, _ in rows), tuned)
    names = {study.method_of(cell) for cell in study.cells}
    if "reference" in content.model_fields_set and not methods and content.reference not in names:
        raise UserError(
            f"{path}: {unknown('reference', f'no row {content.reference}', content.reference, sorted(names))}"
        )
    return study


def study_of(name: str, settings: Settings) -> Study:
    """Load the study ``name`` at the settings' scale, with their methods and seeds. Raises UserError."""
    return load_study(name, settings.scale, settings.methods, settings.seeds)


def study_file(name: str) -> StudyDefinition:
    """Read and check ``experiments/study/<name>.yaml``. Raises UserError."""
    places.require_name(f"study={name}", "study", name)
    path = places.file_of("study", name)
    return _read_study(name, path, path.read_text(encoding="utf-8"))


@lru_cache(maxsize=64)  # Snakemake calls it many times
def _read_study(name: str, path: Path, text: str) -> StudyDefinition:
    content: StudyDefinition = read(StudyDefinition, parse_yaml(path, text), path)
    if content.name != name:
        raise wrong(path, "name", content.name, f"must be {name}, as the file is called")
    for scale, blocks in content.scales.items():
        places.require_name(f"{path}: scales.{scale}", "scale", scale)
        for number, block in enumerate(blocks):
            methods = [*block.methods, *map(block.run_of, block.tuned)]
            names = {"task": [block.task], "model": block.models, "method": methods, "variant": block.variants}
            for group, values in names.items():
                for value in values:
                    places.require_name(f"{path}: scales.{scale}.{number}", group, value)
    for method in content.curves:
        places.require_name(f"{path}: curves", "method", method)
    for figure in filter(is_place, content.figures):
        file_and_name(figure, f"{path}: figures")
    return content
