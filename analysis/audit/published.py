"""A published table and the statements about it, read from YAML, numbers kept as they are printed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bapo import validate
from bapo.errors import UserError, unknown
from bapo.validate import REQUIRED, Rule, setting


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
    task: str = ""
    declared: tuple[str, ...] = ()  # the columns of its part, with a number here or not

    def row(self, method: str) -> Row | None:
        return next((r for r in self.rows if r.method == method), None)


@dataclass(frozen=True)
class Gain:
    """A stated average relative gain of one row over another in the average column, in percent."""

    stated: float
    of: str
    over: str
    where: str


@dataclass(frozen=True)
class GainRange:
    """The smallest and the largest stated gain of one row over another in a column, in points, over all blocks.

    stated: the two numbers; column: default the average.
    """

    stated: tuple[float, ...] = setting(REQUIRED, Rule(lambda v: len(v) == 2 and v[0] < v[1], "must be low, high"))
    of: str
    over: str
    where: str
    column: str = ""


@dataclass(frozen=True)
class Ratio:
    """A stated quotient of two rows in one column."""

    stated: float
    of: str
    over: str
    column: str
    where: str


@dataclass(frozen=True)
class Budget:
    """Printed rollouts of rows, and the steps and sizes that should give them."""

    model: str
    rows: tuple[str, ...]
    column: str
    train: int
    epochs: float
    batch: int
    group: int
    steps: int
    where: str


@dataclass(frozen=True)
class Same:
    """One quantity, and the number that each place gives for it."""

    quantity: str
    places: Mapping[str, float]


@dataclass(frozen=True)
class Sum:
    """A stated total and its parts."""

    stated: float
    parts: tuple[float, ...]
    where: str


@dataclass(frozen=True)
class Theorem:
    """The constants of a policy-improvement bound with binary rewards; c2 and c3: the ends of their ranges."""

    group: int
    c1: float
    c2: tuple[float, ...]
    c3: tuple[float, ...]
    where: str


@dataclass(frozen=True)
class Setup:
    """What the audit needs beside a table; every part but the table is optional.

    table: its file, beside this one. title, source: of the paper, for headings. runs: behind every cell, one number or
    one for each column. problems: of each benchmark, by column. average: the column that is the mean of ``averaged``
    (default: every column with problems). lower_is_better: columns of costs. proposed: the paper's own row. borrowed:
    what in a row's title marks numbers of another paper. claims: the file of its claims, for ``bapo claims``.
    """

    table: str
    title: str = ""
    source: str = ""
    claims: str = ""
    runs: Mapping[str, int] | int = 0
    problems: Mapping[str, int] = setting({})
    average: str | None = None
    averaged: tuple[str, ...] = ()
    lower_is_better: tuple[str, ...] = ()
    proposed: str | None = None
    borrowed: str | None = None
    gains: tuple[Gain, ...] = ()
    gain_ranges: tuple[GainRange, ...] = ()
    ratios: tuple[Ratio, ...] = ()
    budgets: tuple[Budget, ...] = ()
    same: tuple[Same, ...] = ()
    sums: tuple[Sum, ...] = ()
    theorem: Theorem | None = None

    def runs_of(self, column: str) -> int:
        """Return how many runs are behind the cells of a column; 0 where that is not said."""
        return self.runs.get(column, 0) if isinstance(self.runs, Mapping) else self.runs


@dataclass(frozen=True)
class Published:
    blocks: list[Block]
    setup: Setup

    def problems(self, column: str) -> int | None:
        return self.setup.problems.get(column)

    def is_averaged(self, column: str) -> bool:
        """Return whether a column is part of the printed average."""
        return column in self.setup.averaged if self.setup.averaged else bool(self.problems(column))

    def pairs(self, of: str, over: str, column: str) -> Iterator[tuple[Block, Cell, Cell]]:
        """(block, cell of one row, cell of the other) for every block that prints both."""
        for block in self.blocks:
            a, b = block.row(of), block.row(over)
            if a and b and column in a.cells and column in b.cells:
                yield block, a.cells[column], b.cells[column]


#: what a table prints where it has no number
NOTHING = ("", "-", "--", "\u2013", "\u2014")


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
    content = _yaml(setup_file)
    if "table" not in content:
        raise UserError(f"{setup_file}: table is missing; name the file of the published table beside it")
    setup = validate.read(Setup, content, setup_file)
    table_file = setup_file.parent / setup.table
    if not table_file.is_file():
        raise UserError(f"{setup_file}: table={setup.table}: no file {table_file}")
    parts = _yaml(table_file).get("parts")
    if not isinstance(parts, list) or not parts:
        raise UserError(f"{table_file}: parts must be a list; each part has task, columns and models")
    blocks = [block for i, part in enumerate(parts) for block in _blocks(part, f"{table_file}: parts[{i}]", setup)]
    published = Published(blocks, setup)
    _check_names(published, setup_file)
    return published


def _check_names(published: Published, file: Path) -> None:
    """Raise UserError for a column, row or model that the setup names and the table lacks."""
    setup, blocks = published.setup, published.blocks
    columns = {c for b in blocks for c in b.declared}
    methods = {r.method for b in blocks for r in b.rows}
    runs = setup.runs if isinstance(setup.runs, Mapping) else {}
    average = [setup.average] if setup.average else []
    named = [("runs", runs), ("problems", setup.problems), ("average", average), ("averaged", setup.averaged)]
    named += [("lower_is_better", setup.lower_is_better), ("ratios", [e.column for e in setup.ratios])]
    named += [("gain_ranges", [e.column for e in setup.gain_ranges if e.column])]
    named += [("budgets", [e.column for e in setup.budgets])]
    _require(file, "no column of the table", columns, named)
    stated = {"gains": setup.gains, "gain_ranges": setup.gain_ranges, "ratios": setup.ratios}
    rows = [(key, [name for e in entries for name in (e.of, e.over)]) for key, entries in stated.items()]
    rows += [("budgets", [name for e in setup.budgets for name in e.rows])]
    rows += [("proposed", [setup.proposed] if setup.proposed else [])]
    _require(file, "no row of the table has the method", methods, rows)
    _require(file, "no model of the table", {b.key for b in blocks}, [("budgets", [e.model for e in setup.budgets])])


def _require(file: Path, what: str, known: set[str], named: Iterable[tuple[str, Iterable[str]]]) -> None:
    for key, names in named:
        for name in names:
            if name not in known:
                raise UserError(unknown(f"{file}: {key}", f"{what} '{name}'", name, sorted(known)))


def _blocks(part: Any, where: str, setup: Setup) -> list[Block]:
    """Return the models of a part of the table. Raises UserError naming part, model, row and field."""
    _require_fields(part, where, columns=dict, models=list)
    for i, model in enumerate(part["models"]):
        named = _named(model, f"{where}.models[{i}]")
        _require_fields(model, named, key=str, title=str, rows=list)
        for j, row in enumerate(model["rows"]):
            _require_fields(row, _named(row, f"{named}: rows[{j}]"), method=str, title=str)
    rows = [row for model in part["models"] for row in model["rows"]]
    counted = {*setup.problems, *setup.averaged, *setup.lower_is_better, setup.average}
    words = {c for c in part["columns"] if c not in counted and not any(parse(row.get(c)) for row in rows)}
    return [_block(part, model, setup, where, words) for model in part["models"]]


def _named(entry: Any, where: str) -> str:
    """Add the title of a model or a row to its place, where it has one."""
    title = entry.get("title") if isinstance(entry, Mapping) else None
    return f"{where} ('{title}')" if title else where


def _require_fields(entry: Any, where: str, **kinds: type) -> None:
    names = {dict: "a mapping", list: "a list", str: "text"}
    for key, kind in kinds.items():
        if not isinstance(entry, Mapping):
            raise UserError(f"{where}: must be a mapping with {', '.join(kinds)}")
        if key not in entry:
            raise UserError(f"{where}: {key} is missing; give it {names[kind]}")
        if not isinstance(entry[key], kind):
            raise UserError(f"{where}: {key}={entry[key]}: must be {names[kind]}")


def _block(part: Mapping[str, Any], model: Mapping[str, Any], setup: Setup, place: str, words: set[str]) -> Block:
    """Return one model's rows. words: the columns that hold no numbers at all."""
    rows = []
    allowed = {"method", "title", "underlined", *part["columns"]}
    for row in model["rows"]:
        where = f"{place}: {model['title']}: row '{row['title']}'"
        for name in (*row, *row.get("underlined", ())):
            if name not in allowed:
                raise UserError(unknown(where, f"no column '{name}' in its part", str(name), sorted(allowed)))
        for name in part["columns"]:
            if isinstance(row.get(name), float):
                cure = f'write it as printed, in quotation marks: "{row[name]}"'
                raise UserError(f"{where}: {name}: a number loses its last zeros; {cure}")
        parsed = {name: parse(row[name]) for name in part["columns"] if name in row}
        cells = {name: cell for name, cell in parsed.items() if cell}
        for name in parsed.keys() - cells.keys() - words:
            if row[name] is not None and str(row[name]).strip() not in NOTHING:
                cure = "must be a number as it is printed, or - where there is none"
                raise UserError(f"{where}: {name}={row[name]}: {cure}")
        borrowed = bool(setup.borrowed) and setup.borrowed in row["title"]
        rows.append(Row(row["method"], row["title"], cells, frozenset(row.get("underlined", ())), borrowed))
    columns = {name: title for name, title in part["columns"].items() if any(name in r.cells for r in rows)}
    return Block(model["key"], model["title"], columns, rows, part.get("task", ""), tuple(part["columns"]))


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
