"""A published table and the statements about it, read from YAML, numbers kept as they are printed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bapo.errors import UserError


@dataclass(frozen=True)
class Finding:
    """One thing that does not follow. numbers: what it was computed from, by name."""

    check: str
    where: str
    text: str
    numbers: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Cell:
    """One printed number. text: as printed; value: in its unit; digits: behind the point."""

    text: str
    value: float
    digits: int

    @property
    def half_unit(self) -> float:
        """Return how far rounding may have moved the value."""
        return 0.5 * 10.0**-self.digits


@dataclass(frozen=True)
class Row:
    method: str
    title: str
    cells: dict[str, Cell]
    underlined: frozenset[str]
    borrowed: bool  # taken from another paper


@dataclass(frozen=True)
class Block:
    """One model's rows. columns: those with a number, in order."""

    key: str
    title: str
    columns: dict[str, str]
    rows: list[Row]

    def row(self, method: str) -> Row | None:
        return next((r for r in self.rows if r.method == method), None)


@dataclass(frozen=True)
class Published:
    blocks: list[Block]
    setup: dict[str, Any]

    @property
    def average(self) -> str | None:
        return self.setup.get("average")

    def problems(self, column: str) -> int | None:
        return self.setup.get("problems", {}).get(column)

    def pairs(self, of: str, over: str, column: str) -> Iterator[tuple[Block, Cell, Cell]]:
        """(block, cell of one row, cell of the other) for every block that prints both."""
        for block in self.blocks:
            a, b = block.row(of), block.row(over)
            if a and b and column in a.cells and column in b.cells:
                yield block, a.cells[column], b.cells[column]


def parse(text: Any) -> Cell | None:
    """ "62.90" -> 62.90 with two digits; "677k" -> 677000 with -3; what is no number -> None."""
    plain = str(text).strip()
    thousand = plain.endswith("k")
    body = plain[:-1] if thousand else plain
    try:
        value = float(body)
    except ValueError:
        return None
    digits = len(body.partition(".")[2])
    return Cell(plain, value * 1000, digits - 3) if thousand else Cell(plain, value, digits)


def load(setup_file: Path) -> Published:
    """Return the table and the statements that ``setup_file`` names.

    Raises UserError naming the file and the field that is missing or wrong.
    """
    setup = _yaml(setup_file)
    if "table" not in setup:
        raise UserError(f"{setup_file}: table is missing; name the file of the published table beside it")
    table_file = setup_file.parent / str(setup["table"])
    content = _yaml(table_file)
    star = setup.get("borrowed")
    try:
        blocks = [_block(part, model, star) for part in content["parts"] for model in part["models"]]
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"{table_file}: every part needs columns and models, every model key, title and rows, every row method and "
            f"title ({type(error).__name__}: {error})"
        ) from None
    return Published(blocks, setup)


def _block(part: Mapping[str, Any], model: Mapping[str, Any], star: str | None) -> Block:
    rows = []
    for row in model["rows"]:
        parsed = {name: parse(row[name]) for name in part["columns"] if name in row}
        cells = {name: cell for name, cell in parsed.items() if cell}
        borrowed = bool(star) and star in row["title"]
        rows.append(Row(row["method"], row["title"], cells, frozenset(row.get("underlined", ())), borrowed))
    columns = {name: title for name, title in part["columns"].items() if any(name in r.cells for r in rows)}
    return Block(model["key"], model["title"], columns, rows)


def _yaml(path: Path) -> dict[str, Any]:
    import yaml

    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UserError(f"{path}: not readable as YAML: {' '.join(str(error).split())}") from None
    if not isinstance(content, dict):
        raise UserError(f"{path}: must be a mapping")
    return content
