"""The real sets: their files, from the hub or a folder of the user's, checked against the lock file and read as rows.

An entry of ``config.data.hub`` describes one split: which files of which repository at which commit, how many rows they
hold, and which column is what. ``docs/data.md`` has the whole list.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from bapo.errors import UserError
from bapo.store.files import sha256
from bapo.tasks.real import readers
from bapo.tasks.real.lock import SourceLock

_COMMIT = re.compile(r"[0-9a-f]{40}")
#: files of a folder that a message names
_NAMED = 10


class Row(NamedTuple):
    """One row of a set.

    where: file and place, for messages; index: its number in the set, from 0; place: its file, in a folder of the
    user's, and its number there, by which the splits of the folder know it; "" for a row of the hub.
    """

    where: str
    index: int
    values: dict[str, Any]  # by our names of the columns
    file: Path
    place: str = ""


@dataclass(frozen=True)
class Source:
    """An entry of ``config.data.hub``. The last three say how the file in ``paths.data_folder`` differs."""

    where: str  # data.hub.<split>
    repository: str
    revision: str | None = None  # a commit; None: what the lock file records, else the newest
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
    """The files of a source, found and checked, and what they should hold. home: the user's folder that has them."""

    files: list[Path]
    rows: int | None
    columns: Mapping[str, str]
    home: Path | None = None


def find(entry: Source, data_folder: str | None, lock: SourceLock) -> Opened:
    """Find the files of a source: in ``data_folder`` where it is set, else on the hub (through its cache)."""
    if data_folder:
        return _in_folder(entry, Path(data_folder), lock)
    home = Path(entry.repository)
    files = _parts(entry, home)  # a repository that somebody has downloaded
    if home.is_dir():
        _require_files(entry, home, files)
        for path in files:
            lock.note_folder(f"{entry.name}/{path.relative_to(home).as_posix()}", path)
        return Opened(files, entry.rows, entry.columns, home)
    return Opened(_from_hub(entry, lock), entry.rows, entry.columns)


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
            inside = path.relative_to(opened.home).as_posix() if opened.home else ""
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


def _in_folder(entry: Source, folder: Path, lock: SourceLock) -> Opened:
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
    for path in files:
        lock.check_folder(entry.where, path.relative_to(folder).as_posix(), path)
    return Opened(files, rows, columns)


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
    return [folder / name for name in _matching(entry, names)]


def _matching(entry: Source, names: Sequence[str]) -> list[str]:
    return [name for name in names if any(fnmatch.fnmatchcase(name, p) for p in _patterns(entry))]


def _patterns(entry: Source) -> tuple[str, ...]:
    return entry.files or (f"{entry.split}*.parquet", f"*/{entry.split}*.parquet")


def _from_hub(entry: Source, lock: SourceLock) -> list[Path]:
    """Download what the hub client's cache lacks. Files that the lock file records are not looked up on the hub."""
    from huggingface_hub import HfApi

    api, repository = HfApi(), entry.repository
    try:
        pinned = bool(_COMMIT.fullmatch(entry.revision or ""))
        revision = entry.revision if pinned else lock.revision(repository)
        revision = revision or api.dataset_info(repository, revision=entry.revision).sha
        names = [name for name in entry.files if not set(name) & set("*?[")]
        if len(names) != len(entry.files) or not names:
            known = lock.files(repository) if revision == lock.revision(repository) else []
            names = _matching(entry, known) or _matching(
                entry, sorted(api.list_repo_files(repository, repo_type="dataset", revision=revision))
            )
        if not names:
            raise ValueError(f"it has no file that matches {entry.files or entry.split}")
        paths = [Path(api.hf_hub_download(repository, name, repo_type="dataset", revision=revision)) for name in names]
    except Exception as error:  # the client raises many kinds, and those of the libraries below it
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise UserError(
            f"{entry.where}: {repository} cannot be loaded ({reason[0]}); try again with a network, name a mirror in "
            f"HF_ENDPOINT, or set paths.data_folder to a folder with {entry.file or entry.name + '.parquet or .jsonl'}"
        ) from None
    for name, path in zip(names, paths, strict=True):
        lock.check_hub(entry.where, repository, str(revision), name, path)
    return paths


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
