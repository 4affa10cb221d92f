"""The real sets: their files, from the hub or a folder of the user's, read as rows.

An entry of ``config.data.hub`` describes one split: which files of which repository at which commit, how many rows they
hold, and which column is what. ``docs/data.md`` has the whole list.
"""

from __future__ import annotations

import csv
import gzip
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

from pydantic import Field

from bapo.errors import UserError
from bapo.experiments.schema import Node
from bapo.store.files import Json, sha256
from bapo.validate import plain, read, wrong

Count = Annotated[int, Field(ge=0)]


class Source(Node):
    """An entry of ``config.data.hub``. The last three say how the file in ``paths.data_folder`` differs."""

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
        return self.files or [f"{self.split}*.parquet", f"*/{self.split}*.parquet"]


class Row(NamedTuple):
    """One row of a set. id: its set and number, and its file in a folder of the user's; where: its place in a file."""

    id: str
    number: int
    where: str
    values: Json  # by our names of the columns
    file: Path


class Opened(NamedTuple):
    """The files of a source and what they should hold.

    origin: the repository with its commit, or whose folder it is; root: the folder that the files' names begin at;
    own: whether rows are named by file, as those of a folder of the user's.
    """

    files: list[Path]
    rows: int | None
    columns: Mapping[str, str]
    origin: str
    root: Path
    own: bool = False


def source(hub: Json, split: str) -> Source:
    """Return the entry of ``split``. Raises UserError naming the key and the cure."""
    where, entry = f"data.hub.{split}", plain(hub.get(split) or {})
    if not entry.get("repository"):
        raise wrong(None, f"{where}.repository", None, f"has no value; name the set that split '{split}' is taken from")
    return read(Source, {**{key: v for key, v in entry.items() if v is not None}, "where": where}, None, where)


def find(entry: Source, data_folder: str | None) -> Opened:
    """Find the files of a source: in ``data_folder`` where it is set, else on the hub (through its cache).

    Raises UserError naming the entry, what is there and the cure.
    """
    folder, own, origin = Path(entry.repository), not data_folder, entry.name
    if data_folder:
        origin, local = "paths.data_folder", Path(data_folder)
        if entry.file and (local / entry.file).is_file():
            rows = entry.rows if entry.file_rows is None else entry.file_rows
            return Opened([local / entry.file], rows, {**entry.columns, **entry.file_columns}, origin, local)
        folder = local / entry.name
    elif not folder.is_dir():
        folder, own = _fetched(entry), False
        origin = f"{entry.repository}@{folder.name}"
    root = Path(data_folder) if data_folder else folder
    found = sorted({path for pattern in entry.patterns for path in folder.glob(pattern)})
    if not found:
        there = ", ".join(sorted(p.relative_to(root).as_posix() for p in root.rglob("*") if p.is_file()))
        wanted = " or ".join([*([entry.file] if data_folder and entry.file else []), *entry.patterns])
        cure = f"no file {wanted} in {root}, which has {there[:500] or 'no file'}; correct files or repository"
        raise wrong(None, entry.where, None, cure)
    return Opened(found, entry.rows, entry.columns, origin, root, own)


def _fetched(entry: Source) -> Path:
    """Download what the hub client's cache lacks. Returns the folder of the commit."""
    from huggingface_hub import snapshot_download

    try:
        found = snapshot_download(
            entry.repository, repo_type="dataset", revision=entry.revision, allow_patterns=entry.patterns
        )
    except Exception as error:  # the client raises many kinds, and those of the libraries below it
        reason = str(error).strip().splitlines() or [type(error).__name__]
        cure = (
            "try again with a network, name a mirror in HF_ENDPOINT, or set paths.data_folder to a folder with a copy"
        )
        raise UserError(f"{entry.where}: {entry.repository} cannot be loaded ({reason[0]}); {cure}") from None
    return Path(found)


def digests(opened: Iterable[Opened]) -> dict[str, dict[str, str]]:
    """Return the SHA-256 of every file that was read: origin -> the file's name there -> digest."""
    found: dict[str, dict[str, str]] = {}
    for one in opened:
        names = found.setdefault(one.origin, {})
        names |= {path.relative_to(one.root).as_posix(): sha256(path) for path in one.files}
    return found


def rows(entry: Source, opened: Opened, columns: Sequence[str]) -> list[Row]:
    """Read the rows from ``start`` on, with our names for the columns. Raises UserError naming file, row and cure."""
    names = {name: opened.columns.get(name, name) for name in columns}
    found: list[Row] = []
    for path in opened.files:
        begin = f"{entry.name}/{path.relative_to(opened.root).as_posix()}" if opened.own else entry.name
        for number, (where, values) in enumerate(_rows_of(path), 0 if opened.own else len(found)):
            if missing := [column for column in names.values() if column not in values]:
                there = ", ".join(map(str, values))
                raise UserError(
                    f"{where}: no column '{missing[0]}' (it has {there}); correct {entry.where}.columns or the file"
                )
            named = {name: values[column] for name, column in names.items()}
            found.append(Row(f"{begin}:{number}", len(found), where, named, path))
    if opened.rows is not None and len(found) != opened.rows:
        raise UserError(
            f"{opened.files[0]}: {len(found)} rows, expected {opened.rows} ({entry.where}); get the whole set, or "
            f"correct {entry.where}.rows or file_rows if this one is meant"
        )
    return found[entry.start :]


def _rows_of(path: Path) -> Iterator[tuple[str, Json]]:
    """Read the rows of a parquet, CSV, JSON or JSON lines file, each with its place.

    JSON is not read through ``datasets``, which makes the number 25 of the text "025" where a column also holds lists.
    Raises UserError naming the file and the place.
    """
    where = str(path)
    try:
        for place, row in _read(path):
            where = f"{path} {place}"
            if not isinstance(row, dict) or None in row or (path.suffix == ".csv" and None in row.values()):
                raise ValueError("not a value for each column")
            yield where, row
    except (ValueError, OSError, EOFError, zlib.error, csv.Error, RecursionError) as error:  # pyarrow's are ValueErrors
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
        raise UserError(
            f"{where}: it or what follows cannot be read ({reason}); correct the file or get it again"
        ) from None


def _read(path: Path) -> Iterator[tuple[str, object]]:
    if path.suffix == ".parquet":
        import pyarrow.parquet as pq

        yield from ((f"row {number}", row) for number, row in enumerate(pq.ParquetFile(path).read().to_pylist()))
        return
    with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8-sig", newline="") as file:
        if path.suffix == ".csv":
            reader = csv.DictReader(file, strict=True)
            yield from ((f"line {reader.line_num}", row) for row in reader)
        elif path.suffix == ".json":
            content = json.load(file)
            yield from (
                (f"row {number}", row) for number, row in enumerate(content if isinstance(content, list) else [0])
            )
        else:
            yield from ((f"line {number}", json.loads(line)) for number, line in enumerate(file, 1) if line.strip())
