"""What the paper prints, as data: the reader of its tables, for Table 1 and for the audit. Numbers stay as printed.

``table1.yaml`` is Table 1, ``setup.yaml`` what the paper states about its numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from analysis import study
from bapo import validate

FOLDER = Path(__file__).resolve().parent
#: the paper's method, the one that it is compared with, and where both start
PROPOSED, REFERENCE, BASE = "bapo", "grpo", "base"
#: the column that is the mean of the benchmarks; columns where less is better
AVERAGE, COSTS = "avg", ("rollouts",)
#: what the table prints where it has no number, and in the title of a row that another paper measured
NOTHING, BORROWED = "-", "*"


@dataclass(frozen=True)
class PrintedCell:
    """One printed number. text: as printed; value: in its unit; digits: behind the point."""

    text: str
    value: float
    digits: int

    @property
    def half_unit(self) -> float:
        """Return how far rounding may have moved the value."""
        return 0.5 * 10.0**-self.digits


def parse(text: str) -> PrintedCell | None:
    """Read a printed number: "62.90" is 62.90 with two digits, "677k" 677000 with -3; None for what is no number."""
    body = text.removesuffix("k")
    try:
        value = float(body)
    except ValueError:
        return None
    digits = len(body.partition(".")[2])
    return PrintedCell(text, value * 1000, digits - 3) if body != text else PrintedCell(text, value, digits)


# ------------------------------------------------------------------------------------------------ tables


class PrintedRow(BaseModel):
    """One method's row; every other field is a column's printed text. underlined: columns with a line under them."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, str | None]

    method: str
    title: str
    underlined: list[str] = []

    @property
    def printed(self) -> dict[str, str]:
        """Return the text of each column that has one."""
        return {name: text for name, text in (self.model_extra or {}).items() if text and text != NOTHING}

    @property
    def cells(self) -> dict[str, PrintedCell]:
        """Return the number of each column that has one."""
        return {name: cell for name, text in self.printed.items() if (cell := parse(text))}


class PrintedBlock(BaseModel):
    """One model's rows. columns: name -> printed title."""

    model_config = ConfigDict(extra="forbid")

    key: str
    title: str
    task: str
    columns: dict[str, str]
    rows: list[PrintedRow]

    @property
    def numbered(self) -> dict[str, str]:
        """Return the columns with a number here, in order."""
        return {name: title for name, title in self.columns.items() if any(name in row.cells for row in self.rows)}

    def row(self, method: str) -> PrintedRow | None:
        """Return a method's row, or None where the paper has none."""
        return next((row for row in self.rows if row.method == method), None)

    def printed(self, method: str, column: str) -> str | None:
        """Return the number as printed, or None where the paper has none."""
        row = self.row(method)
        return row.printed.get(column) if row else None

    def value(self, method: str, column: str) -> float | None:
        """Return the same as a number; "677k" is 677000."""
        cell = parse(self.printed(method, column) or "")
        return cell.value if cell else None

    def share_of_gain(self, method: str, column: str) -> float | None:
        """Return the method's lead over GRPO as a share of what GRPO gains over the base; None without a number."""
        of, reference, base = (self.value(m, column) for m in (method, REFERENCE, BASE))
        if of is None or reference is None or base is None or method in (REFERENCE, BASE):
            return None
        return (of - reference) / (reference - base)


@dataclass(frozen=True)
class Published:
    """The blocks of Table 1, and ``setup.yaml``, which says itself what stands in it."""

    blocks: list[PrintedBlock]
    setup: Mapping[str, Any]

    @property
    def rows(self) -> list[tuple[PrintedBlock, PrintedRow]]:
        """Return every row with its block."""
        return [(block, row) for block in self.blocks for row in block.rows]

    def pairs(self, of: str, over: str, column: str) -> Iterator[tuple[PrintedBlock, PrintedCell, PrintedCell]]:
        """Yield (block, cell of ``of``, cell of ``over``) for every block that prints both methods in a column."""
        for block in self.blocks:
            a, b = (row.cells.get(column) if (row := block.row(name)) else None for name in (of, over))
            if a and b:
                yield block, a, b


# ------------------------------------------------------------------------------------------------ reading


def read(name: str) -> dict[str, Any]:
    """Return the content of ``analysis/paper/<name>.yaml``."""
    return validate.parse_yaml(FOLDER / f"{name}.yaml")


@lru_cache
def table1(folder: Path = FOLDER) -> dict[str, PrintedBlock]:
    """Return every model of Table 1 by its key, in the paper's order. Raises UserError naming file and field."""
    path = folder / "table1.yaml"
    blocks: list[PrintedBlock] = validate.read(list[PrintedBlock], validate.parse_yaml(path)["models"], path)
    return {block.key: block for block in blocks}


def match(task: str, model: str, named: str | None = None) -> PrintedBlock | None:
    """Return the paper's block for a task and model: the one named, else the same key, else the task's first."""
    models = table1()
    return models.get(named or "") or models.get(model) or next((b for b in models.values() if b.task == task), None)


def of_block(block: study.Block) -> PrintedBlock | None:
    """Return the paper's block whose part one of ours plays."""
    return match(block.task, block.model, block.paper_model)


def stands_for(block: study.Block, benchmark: str) -> str:
    """Return the paper's title of the benchmark whose part one of ours plays; "" where ours has the same title."""
    printed = of_block(block)
    role = printed.columns.get(block.roles.get(benchmark, benchmark), "") if printed else ""
    return "" if dict(block.benchmarks)[benchmark].rstrip(".") == role.rstrip(".") else role


def load(folder: Path = FOLDER) -> Published:
    """Return the table and the statements of a folder. Raises UserError naming file and field."""
    return Published([*table1(folder).values()], validate.parse_yaml(folder / "setup.yaml"))
