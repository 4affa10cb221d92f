"""A study file: which runs a table or a figure is made of. Written by the workflow, read here."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import ConfigDict, Field

from bapo import validate
from bapo.experiments import order
from bapo.store.files import SUMMARY, read_json
from bapo.validate import wrong

#: the paper's row order; a method that it does not name comes before BAPO's own variants
ORDER = ("base", "grpo", "dapo", "mopps", "grpo_v5", "repo", "remix")
LAST = ("bapo_without_x2", "bapo_without_x3", "bapo")
STRICT = ConfigDict(extra="forbid")  # a field that does not exist is a mistake


@dataclass(frozen=True)
class Cell(order.Cell):
    """One training run with its folder."""

    __pydantic_config__ = STRICT
    run: Path
    task_title: str = ""
    model_title: str = ""
    method_title: str = ""
    kind: str = ""  # "on" or "off", the paper's Type column
    tuned: tuple[str, ...] = ()  # what was chosen on held-out problems for this run, in words; (): nothing
    paper_model: str | None = None  # key in analysis/paper/table1.yaml; None: chosen by the task


@dataclass(frozen=True)
class Base:
    """The model that a block's methods start from. run: the folder that holds its eval/."""

    __pydantic_config__ = STRICT
    task: str
    model: str
    run: Path
    task_title: str = ""
    model_title: str = ""


@dataclass(frozen=True, kw_only=True)
class About:
    """What a study file says of the study itself."""

    scale: str = ""
    note: str = ""
    name: str = ""  # of experiments/study/; "" where another program wrote the file
    title: str = ""
    reference: str = "grpo"  # the method that the others are compared with
    config: tuple[str, ...] = ()  # what the workflow was given after --config
    curves: tuple[str, ...] = ()  # methods whose kept checkpoints were all evaluated
    #: of a study that chooses: task -> method -> the variants that the setting names for it
    chosen: Mapping[str, Mapping[str, tuple[str, ...]]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class StudyFile(About):
    """The fields of a study file, which the workflow writes as JSON."""

    __pydantic_config__ = STRICT
    cells: Annotated[tuple[Cell, ...], Field(min_length=1)]
    bases: tuple[Base, ...] = ()
    #: task -> name, title[, the paper's name] of each
    benchmarks: Mapping[str, tuple[tuple[str, ...], ...]] = field(default_factory=dict)


def read_file(path: Path) -> StudyFile:
    """Read a study file as it is. Raises UserError naming file, field and cure."""
    return validate.read(StudyFile, read_json(path), path)


def plain(title: str) -> str:
    """Return a method's title without the table's decoration: "+BAPO (Ours)" -> "BAPO"."""
    return title.lstrip("+").replace(" (Ours)", "").replace("w/o", "without")


@dataclass(frozen=True, eq=False)
class Block:
    """All runs of one task and model: what one section of Table 1, or one row of a figure, compares."""

    task: str
    model: str
    task_title: str
    model_title: str
    base: Base | None
    methods: Mapping[str, tuple[Cell, ...]]  # in the paper's row order; the cells of each by seed
    benchmarks: tuple[tuple[str, str], ...]  # (name, title)
    roles: Mapping[str, str]  # benchmark -> the paper's column whose part it plays
    paper_model: str | None  # as in Cell

    @property
    def title(self) -> str:
        return f"{self.task_title}, {self.model_title}"

    def keys(self, method: str) -> dict[str, str]:
        """Return the columns that say whose row it is: task, model and method."""
        return {"task": self.task, "model": self.model, "method": method}

    def method_title(self, method: str) -> str:
        return self.methods[method][0].method_title

    def plain_title(self, method: str) -> str:
        """Return a method's title without the table's decoration."""
        return plain(self.method_title(method))


@dataclass(frozen=True, kw_only=True)
class Study(About):
    """The runs of a study file by task and model."""

    blocks: tuple[Block, ...]
    target: str  # the Snakemake target that makes what is missing; several where studies were laid over each other

    @property
    def notes(self) -> list[str]:
        """Return the study's note as a list, empty where there is none."""
        return [self.note] if self.note else []

    @property
    def command(self) -> str:
        """Return what a user types to make a missing or broken run."""
        return workflow_command(self.target.split(), self.config)


def evaluated(study: Study) -> Study:
    """Return what is evaluated of a study already: a method with the seeds that it has, the base if it has one."""

    def of_block(block: Block) -> Block:
        base = block.base if block.base and _evaluated(block.base) else None
        methods = {m: tuple(c for c in cells if _evaluated(c)) for m, cells in block.methods.items()}
        return replace(block, base=base, methods={m: cells for m, cells in methods.items() if cells})

    blocks = [of_block(block) for block in study.blocks]
    return replace(study, blocks=tuple(b for b in blocks if b.base or b.methods))


def _evaluated(start: Cell | Base) -> bool:
    return (start.run / "eval" / SUMMARY).exists()


def workflow_command(targets: Sequence[str], config: Sequence[str]) -> str:
    """Return the line that makes Snakemake targets. config: what follows --config."""
    return shlex.join(["snakemake", "--cores", "all", *targets, *(["--config", *config] if config else [])])


def row_order(methods: Mapping[str, Any]) -> list[str]:
    """Return the methods of a block as the paper orders its rows."""
    others = [m for m in methods if m not in ORDER and m not in LAST]
    return [m for m in (*ORDER, *others, *LAST) if m in methods]


def load(path: Path, target: str | None = None) -> Study:
    """Read a study file's runs by task and model. Raises UserError naming file, field and cure.

    target: the Snakemake target that makes what is missing; by default the runs of the study that the file names.
    """
    file = read_file(path)
    places = dict.fromkeys((c.task, c.model) for c in file.cells)
    return Study(
        **{f.name: getattr(file, f.name) for f in fields(About)},
        blocks=tuple(_block(file, task, model, path) for task, model in places),
        target=target or (f"runs_{file.name}" if file.name else "figures"),
    )


def _block(file: StudyFile, task: str, model: str, path: Path) -> Block:
    if not file.benchmarks.get(task):
        raise wrong(path, f"benchmarks.{task}", None, "is missing; list its [name, title, paper's name]")
    cells = [c for c in file.cells if (c.task, c.model) == (task, model)]
    methods: dict[str, list[Cell]] = {}
    for cell in sorted(cells, key=lambda c: c.seed):
        titled = cell if cell.method_title else replace(cell, method_title=f"+{cell.method}")
        methods.setdefault(cell.method, []).append(titled)
    for method, runs in methods.items():
        if len({c.seed for c in runs}) < len(runs):
            place = f"{task}/{model}/{method}"
            raise wrong(path, place, None, "names a seed twice; every cell needs a seed of its own")
    base = next((b for b in reversed(file.bases) if (b.task, b.model) == (task, model)), None)
    return Block(
        task=task,
        model=model,
        task_title=cells[0].task_title or (base.task_title if base else "") or task,
        model_title=cells[0].model_title or (base.model_title if base else "") or model,
        base=base,
        methods={m: tuple(methods[m]) for m in row_order({c.method: None for c in cells})},
        benchmarks=tuple((name, title) for name, title, *_ in file.benchmarks[task]),
        roles={name: role[0] for name, _, *role in file.benchmarks[task] if role},
        paper_model=cells[0].paper_model,
    )
