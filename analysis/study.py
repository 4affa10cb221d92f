"""A study file: which runs a table or a figure is made of. Written by the workflow, read here."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated

from pydantic import ConfigDict, Field

from bapo import validate
from bapo.errors import UserError
from bapo.experiments import order
from bapo.store.files import AGAIN, SUMMARY, read_json
from bapo.validate import wrong

#: the paper's row order; a method that it does not name comes before BAPO's own variants
ORDER = ("base", "grpo", "dapo", "mopps", "grpo_v5", "repo", "remix")
LAST = ("bapo_without_x2", "bapo_without_x3", "bapo")
STRICT = ConfigDict(extra="forbid")  # a field that does not exist is a mistake
#: a name that begins the names of files, or ""
FileName = Annotated[str, Field(pattern=f"{validate.NAME}|^$")]
#: a benchmark: its name, title and maybe the paper's name
Titles = Annotated[tuple[str, ...], Field(min_length=2, max_length=3)]


@dataclass(frozen=True)
class StudyRun(order.Cell):
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
    methods: Mapping[str, tuple[StudyRun, ...]]  # in the paper's row order; the cells of each by seed
    benchmarks: tuple[tuple[str, str], ...]  # (name, title)
    roles: Mapping[str, str]  # benchmark -> the paper's column whose part it plays
    paper_model: str | None  # as in StudyRun

    @property
    def title(self) -> str:
        return f"{self.task_title}, {self.model_title}"

    def keys(self, method: str) -> dict[str, str]:
        """Return the columns that say whose row it is: task, model and method."""
        return {"task": self.task, "model": self.model, "method": method}

    def method_title(self, method: str) -> str:
        """Return a method's title, with its name where another method of the block has the same title."""
        titles = {name: runs[0].method_title or f"+{name}" for name, runs in self.methods.items()}
        shared = [*titles.values()].count(titles[method]) > 1
        return f"{titles[method]} ({method})" if shared else titles[method]

    def plain_title(self, method: str) -> str:
        """Return a method's title without the table's decoration."""
        return plain(self.method_title(method))


@dataclass(frozen=True, eq=False, kw_only=True)
class StudyFile:
    """The fields of a study file, which the workflow writes as JSON, and its runs by task and model."""

    __pydantic_config__ = STRICT
    cells: Annotated[tuple[StudyRun, ...], Field(min_length=1)]
    bases: tuple[Base, ...] = ()
    #: task -> name, title[, the paper's name] of each
    benchmarks: Mapping[str, tuple[Titles, ...]] = field(default_factory=dict)
    scale: FileName = ""
    note: str = ""
    #: of experiments/study/, several where studies were laid over each other; "": of another program
    name: FileName = ""
    title: str = ""
    reference: str = "grpo"  # the method that the others are compared with
    config: tuple[str, ...] = ()  # what the workflow was given after --config
    curves: tuple[str, ...] = ()  # methods whose kept checkpoints were all evaluated
    #: task -> method -> the variants that the setting names for it, in a study without evaluations; {} in another
    chosen: Mapping[str, Mapping[str, tuple[str, ...]]] = field(default_factory=dict)
    #: runs that the study asks for beside these, TASK/MODEL/METHOD/SEED
    missing: tuple[str, ...] = ()

    @cached_property
    def blocks(self) -> tuple[Block, ...]:
        """Return the runs by task and model."""
        return tuple(_block(self, *place) for place in dict.fromkeys((s.task, s.model) for s in self.starts))

    @property
    def is_evaluated(self) -> bool:
        """Return whether the study asks for evaluations: other studies show what training itself has recorded."""
        return not self.chosen

    @property
    def starts(self) -> tuple[StudyRun | Base, ...]:
        """Return all runs and base models."""
        return (*self.cells, *self.bases)

    def of(self, blocks: Sequence[Block]) -> StudyFile:
        """Return the study with the runs of these blocks alone."""
        cells = tuple(cell for block in blocks for runs in block.methods.values() for cell in runs)
        return replace(self, cells=cells, bases=tuple(block.base for block in blocks if block.base))

    @property
    def notes(self) -> list[str]:
        """Return the study's note, and before it how many of its runs are here where some are missing."""
        share = f"{self.share_of_runs}; the others are missing." if self.missing else ""
        return [note for note in (share, self.note) if note]

    @property
    def share_of_runs(self) -> str:
        """Return how many of its runs are here, in words: 210 of 504 runs."""
        return f"{len(self.cells)} of {len(self.cells) + len(self.missing)} runs"

    @property
    def command(self) -> str:
        """Return what a user types to make a missing or broken run. Runs of another program have no name."""
        targets = [f"runs_{name}" for name in self.name.split()]
        return workflow_command(targets, self.config) if targets else "bapo import"


def load(path: Path) -> StudyFile:
    """Read a study file. Raises UserError naming file, field and cure."""
    file: StudyFile = validate.read(StudyFile, read_json(path), path)
    for task in (start.task for start in file.starts):
        if not file.benchmarks.get(task):
            raise wrong(path, f"benchmarks.{task}", None, "is missing; list its [name, title, paper's name]")
    names = Counter((f"{cell.task}/{cell.model}/{cell.method}", cell.seed) for cell in file.cells)
    [((place, _), times)] = names.most_common(1)
    if times > 1:
        raise wrong(path, place, None, "names a seed twice; every cell needs a seed of its own")
    cells = tuple(replace(cell, run=_placed(path, cell.run, 4)) for cell in file.cells)  # TASK/MODEL/METHOD/SEED
    _require_own_runs(cells)
    return replace(file, cells=cells, bases=tuple(replace(b, run=_placed(path, b.run, 3)) for b in file.bases))


def _placed(file: Path, run: Path, depth: int) -> Path:
    """Return where a run of a study file lies: in HOME for HOME/studies/NAME.json, though HOME may have been moved.

    depth: of the run below HOME.
    """
    return file.parent.parent.joinpath(*run.parts[-depth:]) if file.parent.name == "studies" else run


def _block(study: StudyFile, task: str, model: str) -> Block:
    cells = [c for c in study.cells if (c.task, c.model) == (task, model)]
    base = next((b for b in study.bases if (b.task, b.model) == (task, model)), None)
    first = next(s for s in study.starts if (s.task, s.model) == (task, model))
    in_order = sorted(cells, key=lambda c: c.seed)
    return Block(
        task=task,
        model=model,
        task_title=first.task_title or task,
        model_title=first.model_title or model,
        base=base,
        methods={m: tuple(c for c in in_order if c.method == m) for m in row_order(c.method for c in cells)},
        benchmarks=tuple((name, title) for name, title, *_ in study.benchmarks[task]),
        roles={name: role[0] for name, _, *role in study.benchmarks[task] if role},
        paper_model=cells[0].paper_model if cells else None,
    )


def replicates(blocks: Sequence[Block]) -> Sequence[Block]:
    """Return blocks of one kind of base, merged if each base has a single run, which then takes the place of a seed.

    Bases with several seeds are returned as they are, as each has replicates of its own.
    """
    seeds = [{cell.seed for cells in block.methods.values() for cell in cells} for block in blocks]
    if len(blocks) < 2 or any(len(of_block) > 1 for of_block in seeds) or len(set.union(*seeds)) < len(blocks):
        return blocks
    shared = [m for m in blocks[0].methods if all(m in block.methods for block in blocks)]
    in_order = [block for _, block in sorted(zip(map(min, seeds), blocks, strict=True), key=lambda pair: pair[0])]
    methods = {m: tuple(cell for block in in_order for cell in block.methods[m]) for m in shared}
    title = f"{len(blocks)} base models"
    return [replace(blocks[0], model=model_of(blocks), model_title=title, base=None, methods=methods)]


def model_of(blocks: Sequence[Block]) -> str:
    """Return what stands in the column ``model`` of a row over blocks of one task and kind of base."""
    return f"{blocks[0].model} over {len(blocks)} bases" if len(blocks) > 1 else blocks[0].model


def finished(start: StudyRun | Base, evaluated: bool) -> bool:
    """Return whether a run is finished; evaluated: whether its evaluation is."""
    return (start.run / ("eval" if evaluated else "") / SUMMARY).exists()


def pruned(block: Block, evaluated: bool = True) -> Block:
    """Return the finished or evaluated part of a block: methods with such seeds, and the base if it is evaluated."""
    base = block.base if block.base and finished(block.base, True) else None
    methods = {m: tuple(c for c in cells if finished(c, evaluated)) for m, cells in block.methods.items()}
    return replace(block, base=base, methods={m: cells for m, cells in methods.items() if cells})


def evaluated(study: StudyFile) -> StudyFile:
    """Return the evaluated part of a study."""
    return study.of([pruned(block) for block in study.blocks])


def _require_own_runs(cells: Sequence[StudyRun]) -> None:
    """Raise UserError naming two folders that hold one run under two seeds, as a copied folder does."""
    runs: dict[str, StudyRun] = {}
    for cell in cells:
        first = cell
        with suppress(UserError, KeyError):  # whoever reads the run reports a summary that is missing or damaged
            first = runs.setdefault(read_json(cell.run / SUMMARY)["identity"], cell)
        if first.seed != cell.seed:
            raise wrong(cell.run, "seed", cell.seed, f"is a copy of {first.run}; {AGAIN}")


def load_studies(files: Sequence[Path]) -> dict[str, StudyFile]:
    """Read studies by their name, or their file's. Raises UserError as :func:`load`, and for a name given twice."""
    studies: dict[str, StudyFile] = {}
    for path, study in zip(files, map(load, files), strict=True):
        name = study.name or path.stem
        if name in studies:
            raise wrong(path, "name", name, "two files have it; name one of them")
        studies[name] = study
    return studies


def merged(studies: Sequence[StudyFile]) -> StudyFile:
    """Return one study with the runs of all: a block a task and model, each run once.

    A method that is tuned in one study and not in another is two methods: the runs of the first study count.
    """
    cells: dict[tuple[str, str, str, int], StudyRun] = {}
    tuned: dict[tuple[str, str, str], tuple[str, ...]] = {}
    for cell in (cell for study in studies for cell in study.cells):
        method = (cell.task, cell.model, cell.method)
        if tuned.setdefault(method, cell.tuned) == cell.tuned:
            cells[*method, cell.seed] = cell
    bases = {(base.task, base.model): base for study in reversed(studies) for base in study.bases}
    benchmarks = {task: names for study in reversed(studies) for task, names in study.benchmarks.items()}
    name, runs = " ".join(study.name for study in studies), tuple(cells.values())
    missing = tuple(dict.fromkeys(place for study in studies for place in study.missing))
    shared = replace(studies[0], name=name, cells=runs, bases=tuple(bases.values()), benchmarks=benchmarks)
    return replace(shared, missing=missing)


def workflow_command(targets: Sequence[str], config: Sequence[str]) -> str:
    """Return the line that makes targets of the workflow. config: its settings."""
    return shlex.join(["bapo", "run", *targets, *config])


def row_order(methods: Iterable[str]) -> list[str]:
    """Return the methods of a block, each once, as the paper orders its rows."""
    distinct = dict.fromkeys(methods)
    others = [m for m in distinct if m not in ORDER and m not in LAST]
    return [m for m in (*ORDER, *others, *LAST) if m in distinct]
