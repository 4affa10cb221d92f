"""Writes the files of a run directory whole or not at all, and reads them with errors that name the cure.

Every file is written under a temporary name, flushed and renamed. ``summary.json`` comes last and holds the SHA-256 of
the tables beside it, by which a finished and intact run is recognised.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bapo.errors import UserError
from bapo.validate import each_once

if TYPE_CHECKING:
    import pandas as pd

#: an object of JSON, a row of a table or an open part of the configuration: name -> number, text, list or object
Json = dict[str, Any]
SUMMARY, MANIFEST, CONFIG = "summary.json", "manifest.json", "config.yaml"
CHECKSUMS = "checksums.json"  # beside a checkpoint's weights
STEPS, GROUPS, PROBE = "steps.parquet", "groups.parquet", "probe.parquet"
TABLES = (STEPS, GROUPS, PROBE)
#: files and folders, any of which shows that a folder holds a run, finished or not
OF_RUN = (MANIFEST, SUMMARY, "checkpoints", *TABLES)
#: the beginning of columns of times, the only ones that may differ between two runs of the same seed
TIME_COLUMNS = "seconds_"
#: how to mend a finished folder. Snakemake would not make a missing run again for a table that is finished
AGAIN = (
    "delete its job's summary.json and run its command or `bapo run runs_STUDY` again: a run continues from its last "
    "checkpoint"
)

# ------------------------------------------------------------------------------------------------ writing


@contextlib.contextmanager
def atomic(path: Path, durable: bool = True) -> Iterator[Path]:
    """Yield a temporary path in the same folder, which is renamed to ``path`` if the block ends without an error.

    durable: whether the file is flushed to the disk first; not needed in a folder that the caller flushes and renames.
    Raises UserError where ``path`` is a folder, a device or anything else but a regular file.
    """
    path = Path(path)
    if path.exists() and not path.is_file():
        raise UserError(f"{path}: not a regular file; name another place")
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        if durable:
            sync(temporary)
        os.replace(temporary, path)
        if durable:
            sync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Flush a file or a folder to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_text(path: Path, text: str, durable: bool = True) -> None:
    with atomic(path, durable) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, content: object, durable: bool = True) -> None:
    write_text(path, json.dumps(content, indent=2, allow_nan=False) + "\n", durable)


def write_parquet(path: Path, frame: pd.DataFrame, durable: bool = True) -> None:
    with atomic(path, durable) as temporary:
        frame.to_parquet(temporary, index=False, compression="zstd")


# ------------------------------------------------------------------------------------------------ reading


def read_json(path: Path) -> Json:
    """Read the object of a JSON file. Raises UserError naming the file if it is missing or holds something else."""
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"), object_pairs_hook=each_once)
        if not isinstance(content, dict):
            raise ValueError("it must hold an object")
        return content
    except FileNotFoundError:
        raise UserError(f"{path} does not exist; run the command that makes it") from None
    except (IsADirectoryError, ValueError, RecursionError) as error:
        raise UserError(
            f"{path} is damaged, or another kind of file ({error}); if a command made it, delete it and run it again"
        ) from None


def read_table(path: Path, columns: list[str] | None = None) -> pd.DataFrame:
    """Read a parquet table. Raises UserError naming the file if it is missing, truncated or damaged."""
    import pandas as pd
    import pyarrow as pa

    try:
        return pd.read_parquet(path, columns=columns)
    except FileNotFoundError:
        raise UserError(f"{path} does not exist; {AGAIN}") from None
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} is damaged ({str(error).partition(chr(10))[0]}); {AGAIN}") from None


def sha256(path: Path) -> str:
    with open(path, "rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def fingerprints(folder: Path, names: Iterable[str]) -> dict[str, Json]:
    """Return {name: {"sha256", "bytes"}} of the named files in a folder."""
    return {n: {"sha256": sha256(folder / n), "bytes": (folder / n).stat().st_size} for n in names}


def write_checksums(folder: Path, durable: bool = True) -> None:
    """Write the fingerprints of all files below a checkpoint's folder, which completes it. durable: as in atomic."""
    names = sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file() and p.name != CHECKSUMS)
    write_json(folder / CHECKSUMS, fingerprints(folder, names), durable)


def damaged_files(folder: Path, files: Mapping[str, Json]) -> list[str]:
    """Compare files with their fingerprints. Returns a sentence for each that is missing, truncated or different."""
    paths = {folder / name: fingerprint for name, fingerprint in files.items()}
    return [
        f"{path} is missing or damaged"
        for path, fingerprint in paths.items()
        if not path.is_file() or fingerprint != {"sha256": sha256(path), "bytes": path.stat().st_size}
    ]


def damaged_checkpoint(folder: Path, state: bool = True) -> str | None:
    """Return what is wrong with a checkpoint by its checksums, or None.

    state: whether files in its folders are checked too, from which only training resumes.
    """
    problems = [f"{folder / CHECKSUMS} is missing or damaged"]
    with contextlib.suppress(UserError):
        checksums = {n: f for n, f in read_json(folder / CHECKSUMS).items() if state or "/" not in n}
        problems = damaged_files(folder, checksums) if checksums else problems
    return next(iter(problems), None)


def newest_intact(folders: Iterable[Path]) -> Path | None:
    """Return the first checkpoint whose files agree with their checksums, and name those before it on stderr.

    folders: of the checkpoints, newest first.
    """
    for folder in folders:
        problem = damaged_checkpoint(folder)
        if problem is None:
            return folder
        print(f"warning: {problem}; this checkpoint is not used, going back to the one before", file=sys.stderr)
    return None


def verify_files(folder: Path) -> Json:
    """Return a finished folder's summary after checking its files. Raises UserError naming the first broken one."""
    content = read_json(folder / SUMMARY)
    files = content.get("files", {})
    complete = "identity" in content and isinstance(files, dict)
    for problem in damaged_files(folder, files) if complete else [f"{folder / SUMMARY} is damaged"]:
        raise UserError(f"{problem}; {AGAIN}")
    return content
