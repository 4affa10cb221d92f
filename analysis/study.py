"""A study file: which runs a table or a figure is made of. Written by the workflow, read here."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bapo.errors import UserError
from bapo.store.files import read_json

#: the paper's row order; a method that it does not name comes before BAPO's own variants
ORDER = ("grpo", "dapo", "mopps", "grpo_v5", "repo", "remix")
LAST = ("bapo_without_x2", "bapo_without_x3", "bapo")


@dataclass(frozen=True)
class Cell:
    """One training run."""

    task: str
    model: str
    method: str
    seed: int
    run: Path
    task_title: str = ""
    model_title: str = ""
    method_title: str = ""
    kind: str = ""  # "on" or "off", the paper's Type column


@dataclass(frozen=True)
class Base:
    """The model that a block's methods start from. run: the folder that holds its eval/."""

    task: str
    model: str
    run: Path
    task_title: str = ""
    model_title: str = ""


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
    paper_model: str | None  # key in analysis/paper/table1.yaml; None: chosen by the task

    @property
    def title(self) -> str:
        return f"{self.task_title}, {self.model_title}"

    def method_title(self, method: str) -> str:
        return self.methods[method][0].method_title

    def plain_title(self, method: str) -> str:
        """Return a method's name without the table's decoration."""
        return self.method_title(method).lstrip("+").replace(" (Ours)", "").replace("w/o", "without")


@dataclass(frozen=True)
class Study:
    scale: str
    note: str
    blocks: tuple[Block, ...]
    target: str  # the Snakemake target that makes what is missing; several where studies were laid over each other
    config: tuple[str, ...] = ()  # what the workflow was given after --config
    curves: tuple[str, ...] = ()  # methods whose kept checkpoints were all evaluated
    name: str = ""  # of experiments/study/; "" where another program wrote the file
    reference: str = "grpo"  # the method that the others are compared with
    title: str = ""

    @property
    def command(self) -> str:
        """What a user types to make a missing or broken run."""
        words = ["snakemake", "--cores", "all", *self.target.split()]
        return shlex.join([*words, "--config", *self.config] if self.config else words)

    def having(self, method: str) -> tuple[Block, ...]:
        """The blocks that hold runs of a method. Raises UserError listing the methods there are."""
        found = tuple(b for b in self.blocks if method in b.methods)
        if not found:
            known = sorted({m for b in self.blocks for m in b.methods})
            raise UserError(f"method {method}: the study has no run of it; it has {', '.join(known)}")
        return found


def row_order(methods: Mapping[str, Any]) -> list[str]:
    """The methods of a block as the paper orders its rows."""
    others = [m for m in methods if m not in ORDER and m not in LAST]
    return [m for m in (*ORDER, *others, *LAST) if m in methods]


def load(path: Path, target: str | None = None) -> Study:
    """Read a study file (its format: ``python -m analysis --help``). Raises UserError naming file, field and cure.

    target: the Snakemake target that makes what is missing; by default the runs of the study that the file names.
    """
    content = read_json(path)
    if not isinstance(content, dict):
        raise UserError(f"{path}: must be a JSON object with scale, note, cells, bases and benchmarks")

    def entries(key: str, kind: type, required: tuple[str, ...]) -> Iterator[Any]:
        for i, entry in enumerate(content.get(key) or []):
            missing = [f for f in required if f not in entry]
            if missing:
                raise UserError(f"{path}: {key}[{i}] has no '{missing[0]}'; add it to the study file")
            known = {k: v for k, v in entry.items() if k in kind.__dataclass_fields__}
            yield kind(**{**known, "run": Path(entry["run"])}), entry

    cells = list(entries("cells", Cell, ("task", "model", "method", "seed", "run")))
    if not cells:
        raise UserError(f"{path}: 'cells' is empty; a study needs at least one run")
    bases = {(b.task, b.model): b for b, _ in entries("bases", Base, ("task", "model", "run"))}
    benchmarks = content.get("benchmarks") or {}
    paper_models = {(c.task, c.model): entry.get("paper_model") for c, entry in reversed(cells)}

    blocks = []
    for task, model in dict.fromkeys((c.task, c.model) for c, _ in cells):
        if not benchmarks.get(task):
            raise UserError(f"{path}: benchmarks.{task} is missing; list its [name, title, paper's name]")
        mine = [c for c, _ in cells if (c.task, c.model) == (task, model)]
        methods: dict[str, list[Cell]] = {}
        for cell in mine:
            methods.setdefault(cell.method, []).append(cell)
        for method, runs in methods.items():
            seeds = [c.seed for c in runs]
            if len(set(seeds)) != len(seeds):
                raise UserError(
                    f"{path}: {task}/{model}/{method} names a seed twice; every cell needs a seed of its own"
                )
        base = bases.get((task, model))
        named = {m: tuple(_titled(c) for c in sorted(methods[m], key=lambda c: c.seed)) for m in row_order(methods)}
        blocks.append(
            Block(
                task=task,
                model=model,
                task_title=mine[0].task_title or (base.task_title if base else "") or task,
                model_title=mine[0].model_title or (base.model_title if base else "") or model,
                base=base,
                methods=named,
                benchmarks=tuple((name, title) for name, title, *_ in benchmarks[task]),
                roles={name: role[0] for name, _, *role in benchmarks[task] if role},
                paper_model=paper_models[(task, model)],
            )
        )
    scale = str(content.get("scale", ""))
    config = content.get("config", [f"scale={scale}"] if scale not in ("", "laptop") else [])
    name = str(content.get("name", ""))
    target = target or (f"runs_{name}" if name else "figures")
    return Study(
        scale=scale,
        note=str(content.get("note", "")),
        blocks=tuple(blocks),
        target=target,
        config=tuple(map(str, config)),
        curves=tuple(content.get("curves", ())),
        name=name,
        reference=str(content.get("reference", "grpo")),
        title=str(content.get("title", "")),
    )


def _titled(cell: Cell) -> Cell:
    return cell if cell.method_title else Cell(**{**cell.__dict__, "method_title": f"+{cell.method}"})
