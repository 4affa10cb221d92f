"""The real sets: their files, from the hub or a folder of the user's, read as rows.

An entry of ``config.data.hub`` describes one split: which files of which repository at which commit, how many rows they
hold, and which column is what. ``docs/data.md`` has the whole list.
"""

from __future__ import annotations

import csv
import gzip
import json
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

from pydantic import Field

from bapo.errors import UserError, first_line
from bapo.experiments.places import files_of_rows, patterns_of_rows
from bapo.experiments.schema import Node
from bapo.store.files import Json, sha256
from bapo.validate import each_once, plain, read, wrong

Count = Annotated[int, Field(ge=0)]


class Source(Node):
    """Holds an entry of ``config.data.hub``. The last three say how a file in ``paths.data_folder`` differs."""

    where: str  # data.hub.<split>
    repository: str
    revision: str | None = None  # a commit; None: the newest
    split: str = "train"  # begins the names of the repository's files, where ``files`` does not name them
    files: list[str] = Field(default_factory=list)  # names or patterns in the repository
    rows: Count | None = None  # how many there must be
    columns: dict[str, str] = Field(default_factory=dict)  # our name -> the column's
    start: Count = 0
    set: str | None = None  # its name, where a repository holds several
    answer_after: str | None = None  # the gold is what follows the last of these, as "####" in GSM8K
    file: str | None = None
    file_rows: Count | None = None
    file_columns: dict[str, str] = Field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.set or self.repository.rstrip("/").rpartition("/")[2]

    @property
    def patterns(self) -> list[str]:
        return patterns_of_rows(self.files, self.split)


class Row(NamedTuple):
    """Holds a row. id: its set and number, and its file in a folder of the user's; where: its place in a file."""

    id: str
    number: int
    where: str
    values: Json  # by our names of the columns
    file: Path


def source(hub: Json, split: str) -> Source:
    """Return the entry of ``split``. Raises UserError naming the key and the cure."""
    where, entry = f"data.hub.{split}", plain(hub.get(split) or {})
    if not entry.get("repository"):
        raise wrong(None, f"{where}.repository", None, f"has no value; name the set that split '{split}' is taken from")
    return read(Source, {**{key: v for key, v in entry.items() if v is not None}, "where": where}, None, where)


def read_rows(entry: Source, data_folder: str | None, columns: Sequence[str]) -> tuple[list[Row], dict[str, str]]:
    """Read a source from ``data_folder`` where it is set, else from the hub (through its cache), from ``start`` on.

    columns: our names, which the rows' values have. Returns the rows, and the SHA-256 of each file, whose name begins
    with the repository and its commit. Raises UserError naming entry, file, row and cure.
    """
    folder, in_place, origin = Path(entry.repository), not data_folder, entry.name
    expected, column_names, files = entry.rows, entry.columns, list[Path]()
    if data_folder:
        origin, local = "paths.data_folder", Path(data_folder)
        folder = local / entry.name
        if entry.file and (local / entry.file).is_file():
            files, column_names = [local / entry.file], {**entry.columns, **entry.file_columns}
            expected = entry.rows if entry.file_rows is None else entry.file_rows
        else:
            files = sorted(local.glob(f"{entry.name}.*"))[:1]
    elif not folder.is_dir():
        folder, in_place = _download(entry), False
        origin = f"{entry.repository}@{folder.name}"
    root = Path(data_folder) if data_folder else folder
    files = files or files_of_rows(folder, entry.patterns, entry.where)
    if not files:
        patterns = " or ".join([*([entry.file or f"{entry.name}.*"] if data_folder else []), *entry.patterns])
        raise wrong(None, entry.where, None, f"no file {patterns} in {root}; correct files or repository")
    rows: list[Row] = []
    for path in files:
        prefix = f"{entry.name}/{path.relative_to(root).as_posix()}" if in_place else entry.name
        for number, (where, values) in enumerate(_rows_of(path), 0 if in_place else len(rows)):
            if missing := [c for name in columns if (c := column_names.get(name, name)) not in values]:
                raise UserError(f"{where}: no column '{missing[0]}'; correct {entry.where}.columns or the file")
            ours = {name: values[column_names.get(name, name)] for name in columns}
            rows.append(Row(f"{prefix}:{number}", len(rows), where, ours, path))
    if expected is not None and len(rows) != expected:
        cure = "get the whole set, or correct its rows or file_rows"
        raise UserError(f"{files[0]}: {len(rows)} rows, expected {expected} ({entry.where}); {cure}")
    return rows[entry.start :], {f"{origin}/{path.relative_to(root).as_posix()}": sha256(path) for path in files}


def _download(entry: Source) -> Path:
    """Download what the hub client's cache lacks. Returns the folder of the commit."""
    from huggingface_hub import snapshot_download

    try:
        folder = snapshot_download(
            entry.repository, repo_type="dataset", revision=entry.revision, allow_patterns=entry.patterns
        )
    except Exception as error:  # the client raises many kinds, and those of the libraries below it
        cure = "try again with a network, name a mirror in HF_ENDPOINT, or set paths.data_folder"
        raise UserError(f"{entry.where}: {entry.repository} cannot be loaded ({first_line(error)}); {cure}") from None
    return Path(folder)


def _rows_of(path: Path) -> Iterator[tuple[str, Json]]:
    """Read the rows of a parquet, CSV, JSON or JSON lines file, each with its place.

    JSON is not read through ``datasets``, which makes the number 25 of the text "025" where a column also holds lists.
    Raises UserError naming the file and the place.
    """
    where = str(path)
    try:
        for position, row in _read(path):
            where = f"{path} {position}"
            if isinstance(row, Exception):
                raise row
            if not isinstance(row, dict) or None in row or (_format(path) == ".csv" and None in row.values()):
                raise ValueError("not a value for each column")
            if _format(path) != ".parquet":
                json.dumps(row, ensure_ascii=False).encode()  # half of a character, which JSON may escape, is no text
            yield where, row
    except (ValueError, TypeError, OSError, EOFError, zlib.error, csv.Error, RecursionError) as error:
        # pyarrow's are ValueErrors
        cure = "correct it, or get the file again"
        raise UserError(f"{where}: it or what follows cannot be read ({first_line(error):.200}); {cure}") from None


def _format(path: Path) -> str:
    """Return the suffix that says how a file is written, whether it is compressed or not."""
    return Path(path.stem).suffix if path.suffix == ".gz" else path.suffix


def _read(path: Path) -> Iterator[tuple[str, object]]:
    """Read the rows, each with its place; in place of a line that is no JSON comes the error."""
    if _format(path) == ".parquet":
        import pyarrow.parquet as pq

        yield from ((f"row {number}", row) for number, row in enumerate(pq.ParquetFile(path).read().to_pylist()))
        return
    with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8-sig", newline="") as file:
        if _format(path) == ".csv":
            reader = csv.DictReader(file, strict=True)
            each_once([(name, None) for name in reader.fieldnames or () if name])
            yield from ((f"line {reader.line_num}", row) for row in reader)
        elif _format(path) == ".json":
            yield from (
                (f"row {number}", row) for number, row in enumerate(json.load(file, object_pairs_hook=each_once))
            )
        else:
            yield from (
                (f"line {number}", _parsed(line.rstrip("\r\n"))) for number, line in enumerate(file, 1) if line.strip()
            )


def _parsed(line: str) -> object:
    try:
        return json.loads(line, object_pairs_hook=each_once)
    except json.JSONDecodeError as error:  # its text has a line number, of this line alone
        return ValueError(f"{error.msg}, column {error.colno}")
    except (ValueError, RecursionError) as error:
        return error
