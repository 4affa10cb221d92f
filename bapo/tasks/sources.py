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
from itertools import islice
from pathlib import Path
from typing import Annotated, NamedTuple

from pydantic import Field

from bapo.errors import UserError
from bapo.experiments.schema import Node
from bapo.store.files import Json, sha256
from bapo.validate import plain, read, wrong

Count = Annotated[int, Field(ge=0)]
#: of files that hold a set
SUFFIXES = (".parquet", ".jsonl", ".jsonl.gz", ".json", ".csv")


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


class Row(NamedTuple):
    """One row of a set.

    where: file and place, for messages; number: its place in the set, from 0; place: its file, in a folder of the
    user's, and its number there, by which the splits of the folder know it; "" for a row of the hub.
    """

    where: str
    number: int
    values: Json  # by our names of the columns
    file: Path
    place: str = ""


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
    columns, home = entry.columns, Path(entry.repository)
    if data_folder:
        folder = Path(data_folder)
        if entry.file and (folder / entry.file).is_file():
            rows = entry.rows if entry.file_rows is None else entry.file_rows
            return Opened([folder / entry.file], rows, {**columns, **entry.file_columns}, "paths.data_folder", folder)
        named = [path for suffix in SUFFIXES if (path := folder / f"{entry.name}{suffix}").is_file()]
        found = named[:1] or _files(entry, folder / entry.name)
        opened = Opened(found, entry.rows, columns, "paths.data_folder", folder)
    elif home.is_dir():  # a repository that somebody has downloaded
        opened = Opened(_files(entry, home), entry.rows, columns, entry.name, home, own=True)
    else:
        home = _fetched(entry)
        opened = Opened(_files(entry, home), entry.rows, columns, f"{entry.repository}@{home.name}", home)
    if not opened.files:
        there = ", ".join(sorted(p.relative_to(opened.root).as_posix() for p in opened.root.rglob("*") if p.is_file()))
        local = [entry.file or f"{entry.name}{SUFFIXES[0]}"] if data_folder else []
        wanted = " or ".join([*local, *_patterns(entry)])
        cure = f"no file {wanted} in {opened.root}, which has {there[:500] or 'no file'}; correct files or repository"
        raise wrong(None, entry.where, None, cure)
    return opened


def _patterns(entry: Source) -> list[str]:
    return entry.files or [f"{entry.split}*.parquet", f"*/{entry.split}*.parquet"]


def _files(entry: Source, folder: Path) -> list[Path]:
    return sorted({path for pattern in _patterns(entry) for path in folder.glob(pattern)})


def _fetched(entry: Source) -> Path:
    """Download what the hub client's cache lacks. Returns the folder of the commit."""
    from huggingface_hub import snapshot_download

    try:
        found = snapshot_download(
            entry.repository, repo_type="dataset", revision=entry.revision, allow_patterns=_patterns(entry)
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


def rows(entry: Source, opened: Opened, columns: Sequence[str]) -> Iterator[Row]:
    """Read the rows from ``start`` on, with our names for the columns. Raises UserError naming file, row and cure.

    The number of all rows is checked first where the source gives it.
    """
    if opened.rows is not None and (there := sum(map(count, opened.files))) != opened.rows:
        raise UserError(
            f"{opened.files[0]}: {there} rows, expected {opened.rows} ({entry.where}); get the whole set, or correct "
            f"{entry.where}.rows or file_rows if this one is meant"
        )
    names = {name: opened.columns.get(name, name) for name in columns}

    def all_rows() -> Iterator[Row]:
        index = 0
        for path in opened.files:
            inside = path.relative_to(opened.root).as_posix()
            for number, (where, values) in enumerate(rows_of(path)):
                if missing := [column for column in names.values() if column not in values]:
                    there = ", ".join(map(str, values))
                    raise UserError(
                        f"{where}: no column '{missing[0]}' (it has {there}); correct {entry.where}.columns or the file"
                    )
                named = {name: values[column] for name, column in names.items()}
                yield Row(where, index, named, path, f"{inside}:{number}" if opened.own else "")
                index += 1

    return islice(all_rows(), entry.start, None)


# ------------------------------------------------------------------------------------------------ files


def count(path: Path) -> int:
    """Return the number of a file's rows."""
    if path.suffix != ".parquet":
        return sum(1 for _ in rows_of(path))
    import pyarrow.parquet as pq

    try:
        return pq.read_metadata(path).num_rows
    except (ValueError, OSError) as error:
        raise UserError(f"{path}: no parquet file ({error}); get it again") from None


def rows_of(path: Path) -> Iterator[tuple[str, Json]]:
    """Read the rows of a parquet, CSV, JSON or JSON lines file, each with its place.

    JSON is not read through ``datasets``, which makes the number 25 of the text "025" where a column also holds lists.
    Raises UserError naming the file and the place.
    """
    where = str(path)
    try:
        for place, row in _parquet(path) if path.suffix == ".parquet" else _text(path):
            where = f"{path} {place}"
            if not isinstance(row, dict) or None in row or (path.suffix == ".csv" and None in row.values()):
                raise ValueError("not a value for each column")
            yield where, row
    except (ValueError, OSError, EOFError, zlib.error, csv.Error, RecursionError) as error:  # pyarrow's are ValueErrors
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
        raise UserError(
            f"{where}: it or what follows cannot be read ({reason}); correct the file or get it again"
        ) from None


def _parquet(path: Path) -> Iterator[tuple[str, object]]:
    import pyarrow.parquet as pq

    batches = pq.ParquetFile(path).iter_batches(batch_size=1024)
    for number, row in enumerate(row for batch in batches for row in batch.to_pylist()):
        yield f"row {number}", row


def _text(path: Path) -> Iterator[tuple[str, object]]:
    with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8-sig", newline="") as file:
        if path.suffix == ".csv":
            reader = csv.DictReader(file, strict=True)
            for row in reader:
                yield f"line {reader.line_num}", row
        elif path.suffix == ".json":
            content = json.load(file)
            yield from (
                (f"row {number}", row) for number, row in enumerate(content if isinstance(content, list) else [0])
            )
        else:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield f"line {number}", json.loads(line)
