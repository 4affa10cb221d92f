"""The real sets: their files, from the hub or a folder of the user's, read as rows.

An entry of ``config.data.hub`` describes one split: which files of which repository at which commit, how many rows they
hold, and which column is what. ``docs/data.md`` has the whole list.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from bapo.errors import UserError
from bapo.store.files import sha256
from bapo.tasks.real import readers

#: files of a folder that a message names
_NAMED = 10


class Row(NamedTuple):
    """One row of a set.

    where: file and place, for messages; number: its place in the set, from 0; place: its file, in a folder of the
    user's, and its number there, by which the splits of the folder know it; "" for a row of the hub.
    """

    where: str
    number: int
    values: dict[str, Any]  # by our names of the columns
    file: Path
    place: str = ""


@dataclass(frozen=True)
class Source:
    """An entry of ``config.data.hub``. The last three say how the file in ``paths.data_folder`` differs."""

    where: str  # data.hub.<split>
    repository: str
    revision: str | None = None  # a commit; None: the newest
    split: str = "train"  # begins the names of the repository's files, where ``files`` does not name them
    files: tuple[str, ...] = ()  # names or patterns in the repository
    rows: int | None = None  # how many there must be
    columns: Mapping[str, str] = field(default_factory=dict)  # our name -> the column's
    start: int = 0
    set: str | None = None  # its name, where a repository holds several
    answer_after: str | None = None  # the gold is what follows the last of these, as "####" in GSM8K
    file: str | None = None
    file_rows: int | None = None
    file_columns: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.set or self.repository.rstrip("/").rpartition("/")[2]


KEYS = tuple(name for name in Source.__dataclass_fields__ if name != "where")


def source(hub: Mapping[str, Any], split: str) -> Source:
    """Return the entry of ``split``. Raises UserError naming the key and the cure."""
    where, entry = f"data.hub.{split}", hub.get(split)
    if not isinstance(entry, Mapping) or not entry.get("repository"):
        raise UserError(f"{where}.repository has no value: name the set that split '{split}' is taken from")
    unknown = sorted(set(entry) - set(KEYS))
    if unknown:
        raise UserError(f"{where}.{unknown[0]}: no such key; allowed: {', '.join(KEYS)}")
    values: dict[str, Any] = {key: value for key, value in entry.items() if value is not None}
    for key in ("start", "rows", "file_rows"):
        if not isinstance(values.get(key, 0), int) or values.get(key, 0) < 0:
            raise UserError(f"{where}.{key}={values[key]}: must be a row number, 0 or more")
    if isinstance(values.get("files", ()), str):
        raise UserError(f"{where}.files={values['files']}: must be a list of file names")
    return Source(where, **values | {"files": tuple(values.get("files", ()))})


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


def find(entry: Source, data_folder: str | None) -> Opened:
    """Find the files of a source: in ``data_folder`` where it is set, else on the hub (through its cache)."""
    if data_folder:
        return _in_folder(entry, Path(data_folder))
    home = Path(entry.repository)
    if home.is_dir():  # a repository that somebody has downloaded
        files = _parts(entry, home)
        _require_files(entry, home, files)
        return Opened(files, entry.rows, entry.columns, entry.name, home, own=True)
    return _from_hub(entry)


def digests(opened: Iterable[Opened]) -> dict[str, dict[str, str]]:
    """Return the SHA-256 of every file that was read: origin -> the file's name there -> digest."""
    read: dict[str, dict[str, str]] = {}
    for source in opened:
        names = read.setdefault(source.origin, {})
        names |= {path.relative_to(source.root).as_posix(): sha256(path) for path in source.files}
    return read


def rows(entry: Source, opened: Opened, columns: Sequence[str]) -> Iterator[Row]:
    """Read the rows from ``start`` on, with our names for the columns. Raises UserError naming file, row and cure.

    The number of all rows is checked first where the source gives it.
    """
    if opened.rows is not None:
        count = sum(map(readers.count, opened.files))
        if count != opened.rows:
            raise UserError(
                f"{opened.files[0]}: {count} rows, expected {opened.rows} ({entry.where}); get the whole set, or "
                f"correct {entry.where}.{'rows' if entry.file is None else 'rows or file_rows'} if this one is meant"
            )
    source_columns = {name: opened.columns.get(name, name) for name in columns}

    def all_rows() -> Iterator[Row]:
        index = 0
        for path in opened.files:
            inside = path.relative_to(opened.root).as_posix() if opened.own else ""
            for number, (where, values) in enumerate(readers.rows_of(path)):
                missing = [name for name in source_columns.values() if name not in values]
                if missing:
                    raise UserError(
                        f"{readers.where_columns_are(path, where)}: no column '{missing[0]}' (it has "
                        f"{', '.join(map(str, values))}); set {entry.where}.columns"
                    )
                named = {name: values[column] for name, column in source_columns.items()}
                yield Row(where, index, named, path, f"{inside}:{number}" if inside else "")
                index += 1

    return islice(all_rows(), entry.start, None)


# ------------------------------------------------------------------------------------------------ finding


def _in_folder(entry: Source, folder: Path) -> Opened:
    """Find ``file``, else the set's name with a suffix or as a folder laid out as on the hub."""
    rows, columns = entry.rows, entry.columns
    files: list[Path] = []
    tried = [entry.file] if entry.file else []
    if entry.file and (folder / entry.file).is_file():
        files = [folder / entry.file]
        rows = entry.file_rows if entry.file_rows is not None else entry.rows
        columns = {**entry.columns, **entry.file_columns}
    for suffix in (".parquet", *readers.LINES, ".json", ""):
        path = folder / f"{entry.name}{suffix}"
        tried.append(path.name)
        if not files:
            files = [path] if path.is_file() else _parts(entry, path)
    if not files:
        raise UserError(
            f"{folder}: holds none of {', '.join(tried)} for {entry.where}, but {_named(folder)}; put the set there, "
            f"set {entry.where}.file or correct paths.data_folder"
        )
    return Opened(files, rows, columns, "paths.data_folder", folder)


def _require_files(entry: Source, home: Path, files: Sequence[Path]) -> None:
    """Raise UserError where a folder of the user's has none of an entry's files."""
    if files:
        return
    key = "file is for paths.data_folder; name it under files: " if entry.file else "correct files or repository: "
    wanted = ", ".join(_patterns(entry))
    raise UserError(f"{entry.where}: no file of the folder {home} is {wanted}; {key}the folder has {_named(home)}")


def _named(folder: Path) -> str:
    """List the files of a folder, the first of them where there are many."""
    names = sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())
    more = [f"{len(names) - _NAMED} more"] if len(names) > _NAMED else []
    return ", ".join([*names[:_NAMED], *more]) or "no file"


def _parts(entry: Source, folder: Path) -> list[Path]:
    """Return the entry's files in a folder laid out as the repository is; [] where there are none."""
    if not folder.is_dir():
        return []
    names = sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())
    return [folder / name for name in names if any(fnmatch.fnmatchcase(name, p) for p in _patterns(entry))]


def _patterns(entry: Source) -> tuple[str, ...]:
    return entry.files or (f"{entry.split}*.parquet", f"*/{entry.split}*.parquet")


def _from_hub(entry: Source) -> Opened:
    """Download what the hub client's cache lacks."""
    from huggingface_hub import snapshot_download

    patterns = list(_patterns(entry))
    try:
        home = Path(
            snapshot_download(entry.repository, repo_type="dataset", revision=entry.revision, allow_patterns=patterns)
        )
        files = _parts(entry, home)
        if not files:
            raise ValueError(f"it has no file that matches {', '.join(patterns)}")
    except Exception as error:  # the client raises many kinds, and those of the libraries below it
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise UserError(
            f"{entry.where}: {entry.repository} cannot be loaded ({reason[0]}); try again with a network, name a "
            f"mirror in HF_ENDPOINT, or set paths.data_folder to a folder with "
            f"{entry.file or entry.name + '.parquet or .jsonl'}"
        ) from None
    return Opened(files, entry.rows, entry.columns, f"{entry.repository}@{home.name}", home)


def local_files(hub: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the SHA-256 of every file of the entries whose repository is a folder of this machine, by split."""
    found = {}
    for split in hub:
        entry = source(hub, split)
        if files := _parts(entry, Path(entry.repository)):
            found[split] = [_digest(path, path.stat().st_mtime_ns) for path in files]
    return found


@lru_cache(maxsize=256)
def _digest(path: Path, changed: int) -> str:
    """Return a file's SHA-256. changed: when the file was, so that a later state of it is read again."""
    return sha256(path)
