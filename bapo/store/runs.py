"""The run directory: the one contract between training and analysis.

Every file is written whole or not at all (temporary file, fsync, rename). ``summary.json`` is written last and holds
the SHA-256 of the tables beside it, so a reader can tell a finished, intact run from anything else.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import platform
import re
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from bapo import __version__
from bapo.errors import UserError

if TYPE_CHECKING:
    import pandas as pd

SUMMARY, MANIFEST, CONFIG = "summary.json", "manifest.json", "config.yaml"
STEPS, GROUPS, PROBE = "steps.parquet", "groups.parquet", "probe.parquet"
TABLES = (STEPS, GROUPS, PROBE)
#: columns that measure time: the only ones that may differ between two runs of the same seed
TIME_COLUMNS = "seconds_"

# ------------------------------------------------------------------------------------------------ writing


@contextlib.contextmanager
def atomic(path: Path) -> Iterator[Path]:
    """A temporary path in the same folder that becomes ``path`` when the block ends without an error."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with explained(path):
            yield temporary
            sync(temporary)
            os.replace(temporary, path)
            sync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def _explained(error: OSError, path: Path) -> Exception:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return UserError(f"{path}: no space left on the device; free some and give the same command again, it resumes")
    if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        return UserError(f"{path}: cannot be written ({error.strerror}); make the folder writable or set paths.results")
    return error


@contextlib.contextmanager
def explained(path: Path) -> Iterator[None]:
    """Errors of writing as sentences; safetensors reports the operating system's only as text."""
    try:
        yield
    except OSError as error:
        raise _explained(error, path) from error
    except Exception as error:
        number = re.search(r"os error (\d+)", str(error))
        if type(error).__name__ != "SafetensorError" or not number:
            raise
        raise _explained(OSError(int(number[1]), str(error)), path) from error


def sync(path: Path) -> None:
    """Flush a file or a folder to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_text(path: Path, text: str) -> None:
    with atomic(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, content: Any) -> None:
    write_text(path, json.dumps(content, indent=2, sort_keys=False, allow_nan=False) + "\n")


def write_parquet(path: Path, frame: pd.DataFrame) -> None:
    with atomic(path) as temporary:
        frame.to_parquet(temporary, index=False)


# ------------------------------------------------------------------------------------------------ reading


def read_json(path: Path) -> Any:
    """Raises UserError naming the file where it is missing or broken."""
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path} does not exist; make it with `snakemake --cores all table1`") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is damaged ({error}); delete it and give the same command again") from None


def read_table(path: Path, columns: list[str] | None = None) -> pd.DataFrame:
    """A parquet table. Raises UserError naming the file where it is missing, truncated or damaged."""
    import pandas as pd
    import pyarrow as pa

    try:
        return pd.read_parquet(path, columns=columns)
    except FileNotFoundError:
        raise UserError(
            f"{path} does not exist; delete summary.json beside it, if there is one, and give the same command again"
        ) from None
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UserError(
            f"{path} is damaged ({reason}); delete summary.json beside it and give the same command again: it is "
            "made again, a run's from the last checkpoint"
        ) from None


def flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """A configuration by dotted keys: {"train": {"steps": 1}} -> {"train.steps": 1}; an empty mapping is a value."""
    found: dict[str, Any] = {}
    for key, value in config.items():
        name = f"{prefix}{key}"
        found |= flat(value, f"{name}.") if isinstance(value, Mapping) and value else {name: value}
    return found


def sha256(path: Path) -> str:
    with open(path, "rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def fingerprints(folder: Path, names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """{name: {"sha256", "bytes"}} of files in a folder."""
    return {n: {"sha256": sha256(folder / n), "bytes": (folder / n).stat().st_size} for n in names}


def damaged_files(folder: Path, files: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """What is wrong with files against their fingerprints: "NAME is missing", "NAME is truncated", "NAME differs"."""
    problems = []
    for name, expected in files.items():
        path = folder / name
        if not path.is_file():
            problems.append(f"{path} is missing")
        elif path.stat().st_size != expected["bytes"]:
            problems.append(f"{path} has {path.stat().st_size} bytes instead of {expected['bytes']}")
        elif sha256(path) != expected["sha256"]:
            problems.append(f"{path} does not have the contents that were written")
    return problems


def verify_files(folder: Path, summary: str = SUMMARY) -> dict[str, Any]:
    """The summary of a finished folder whose files are intact. Raises UserError naming the first broken file."""
    content = read_json(folder / summary)
    problems = damaged_files(folder, content.get("files", {}))
    if problems:
        raise UserError(
            f"{problems[0]}; delete {folder / summary} and give the same command again: the file is rebuilt from the "
            "last checkpoint"
        )
    return content


# ------------------------------------------------------------------------------------------------ provenance


def git_state(folder: Path | None = None) -> dict[str, Any]:
    """{"commit", "dirty"} of the checkout that the package runs from; None outside one."""
    folder = folder or Path(__file__).resolve().parent
    command = ["git", "-C", str(folder)]
    try:
        commit = subprocess.run([*command, "rev-parse", "HEAD"], capture_output=True, text=True, timeout=10, check=True)
        changes = subprocess.run(
            [*command, "status", "--porcelain", "--untracked-files=no"], capture_output=True, text=True, timeout=10
        )
        return {"commit": commit.stdout.strip(), "dirty": bool(changes.stdout.strip())}
    except (OSError, subprocess.SubprocessError):
        return {"commit": None, "dirty": None}


@lru_cache(maxsize=1)
def package_versions() -> dict[str, str]:
    names = ("torch", "transformers", "lm-eval", "numpy", "pandas", "pyarrow", "safetensors", "verl", "vllm", "ray")
    found = {}
    for name in names:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def hardware() -> dict[str, Any]:
    """Processor, memory and accelerators, as far as they can be told without importing torch."""
    model = platform.processor() or platform.machine()
    with contextlib.suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    memory = None
    with contextlib.suppress(ValueError, OSError, AttributeError):
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {"processor": model, "cores": os.cpu_count(), "memory_bytes": memory, "system": platform.platform()}


def peak_memory() -> int:
    """Most resident memory that this process has held, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def timestamp() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def start_manifest(folder: Path, identity: str, **content: Any) -> dict[str, Any]:
    """Write ``manifest.json`` for a run that begins or resumes; returns it."""
    path = folder / MANIFEST
    before: dict[str, Any] = {}
    if path.exists():
        with contextlib.suppress(UserError):
            before = read_json(path)
    same = before.get("identity") == identity
    manifest = {
        "identity": identity,
        **content,
        "code": {"version": __version__, **git_state()},
        "packages": package_versions(),
        "hardware": hardware(),
        "started": before.get("started", timestamp()) if same else timestamp(),
        "ended": None,
        "resumed": before.get("resumed", -1) + 1 if same else 0,
    }
    write_json(path, manifest)
    return manifest


def end_manifest(folder: Path, manifest: dict[str, Any]) -> None:
    write_json(folder / MANIFEST, {**manifest, "ended": timestamp(), "peak_memory_bytes": peak_memory()})


# ------------------------------------------------------------------------------------------------ guarding


@contextlib.contextmanager
def locked(folder: Path, patience: float = 600.0) -> Iterator[None]:
    """Hold the folder for this process, waiting up to ``patience`` seconds for another to finish with it.

    The lock is the kernel's (flock): it ends with its process, also after kill -9. Waiting matters after a kill -9 of
    Snakemake, whose jobs go on without it: the same command again lets them finish. Raises UserError in the end.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = open(folder / ".lock", "a+", encoding="utf-8")  # noqa: SIM115 (held for the whole block)
    except OSError as error:
        raise _explained(error, folder) from error
    with handle:
        try:
            _wait_for_lock(handle, folder, patience)
        except BlockingIOError:
            handle.seek(0)
            raise UserError(
                f"{folder}: another process ({handle.read().strip() or 'unknown'}) is working here; wait for it or "
                "stop it"
            ) from None
        except OSError:  # a file system without locks: go on, the files themselves are still written atomically
            pass
        handle.truncate(0)
        handle.write(f"process {os.getpid()} on {platform.node()}")
        handle.flush()
        yield


@contextlib.contextmanager
def remade(folder: Path, identity: str) -> Iterator[None]:
    """Hold the folder for a block that writes what is in it, ``summary.json`` last; keeps its manifest.

    Until that summary is there nothing in the folder is finished, whatever it held before.
    """
    with locked(folder):
        (folder / SUMMARY).unlink(missing_ok=True)
        manifest = start_manifest(folder, identity)
        yield
        end_manifest(folder, manifest)


def _wait_for_lock(handle: TextIO, folder: Path, patience: float) -> None:
    deadline, told = time.monotonic() + patience, False
    while True:
        try:
            return fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise
            if not told:
                handle.seek(0)
                print(f"{folder}: waiting for {handle.read().strip() or 'another process'}", file=sys.stderr)
                told = True
            time.sleep(0.2)


def require_space(folder: Path, needed: int) -> None:
    """Raises UserError where fewer than ``needed`` bytes are free for the folder."""
    existing = next(p for p in (folder, *folder.absolute().parents) if p.exists())
    free = shutil.disk_usage(existing).free
    if free < needed:
        raise UserError(
            f"{existing}: {free / 1e6:.0f} MB free, but this job may write {needed / 1e6:.0f} MB; free some space or "
            "set paths.results to another disk"
        )


def set_aside(folder: Path, identity: str) -> Path | None:
    """Move a run made under another configuration out of the way and say so; nothing is ever deleted.

    Returns its new place.

    A run of unknown identity (no readable manifest) counts as another one if it holds checkpoints or tables.
    """
    if not any((folder / n).exists() for n in (MANIFEST, "checkpoints", *TABLES)):
        return None
    found = None
    with contextlib.suppress(UserError):
        found = read_json(folder / MANIFEST).get("identity")
    if found == identity:
        return None
    target = folder.with_name(f".{folder.name}.was-{found or 'unknown'}")
    number = 1
    while target.exists():
        number += 1
        target = folder.with_name(f".{folder.name}.was-{found or 'unknown'}-{number}")
    target.mkdir(parents=True)
    for entry in folder.iterdir():
        if entry.name != ".lock":
            os.replace(entry, target / entry.name)
    print(f"{folder}: the run that was here has another configuration; moved to {target.name}", file=sys.stderr)
    return target
