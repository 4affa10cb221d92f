"""Locks a run directory for one process, and moves what is of another configuration out of the way.

The lock belongs to the kernel and ends with its process, also after kill -9, so that nothing has to be cleaned up.
"""

from __future__ import annotations

import contextlib
import errno
import os
import platform
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from bapo.errors import UserError
from bapo.store.files import MANIFEST, OF_RUN, SUMMARY, read_json
from bapo.store.provenance import end_manifest, start_manifest


@contextlib.contextmanager
def locked(folder: Path, patience: float = 600.0) -> Iterator[None]:
    """Lock the folder for this process, waiting up to ``patience`` seconds for another process to release it.

    After a kill -9 of Snakemake its jobs continue, and the same command given again waits for them here. Raises
    UserError when the time is up, and where a folder has the name of a file that the job writes.
    """
    file = folder / ".lock"
    lock = FileLock(file, poll_interval=0.2, fallback_to_soft=False)
    folder.mkdir(parents=True, exist_ok=True)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        owner = file.read_text(encoding="utf-8", errors="replace")
        if patience:
            print(f"{folder}: waiting for {owner}", file=sys.stderr)
        try:
            lock.acquire(timeout=patience)
        except Timeout:
            cure = "is working here; wait for it or stop it"
            raise UserError(f"{folder}: another process ({owner}) {cure}") from None
    except OSError as error:
        if error.errno not in (errno.ENOSYS, errno.ENOLCK):  # the file system has no locks
            raise
    try:
        file.write_text(f"process {os.getpid()} on {platform.node()}", encoding="utf-8")
        for path in folder.iterdir():
            if path.suffix in (".json", ".parquet", ".yaml") and path.is_dir():
                raise UserError(f"{path} is a folder where a file of this job belongs; move it away")
        yield
    finally:
        lock.release()


@contextlib.contextmanager
def remade(folder: Path, identity: str) -> Iterator[None]:
    """Lock the folder and write its manifest for a block that makes its files, with ``summary.json`` last.

    The old summary is deleted first, so that the folder is unfinished until the new one is written. Raises UserError as
    :func:`locked` does.
    """
    with locked(folder):
        (folder / SUMMARY).unlink(missing_ok=True)
        manifest = start_manifest(folder, identity)
        yield
        end_manifest(folder, manifest)


@contextlib.contextmanager
def made_aside(folder: Path, identity: str) -> Iterator[Path]:
    """Yield another folder for a block that makes the files of ``folder``, which are moved there when it ends.

    What ``folder`` held with another identity is set aside only then, so that a block that fails leaves all as it was.
    Raises UserError as :func:`locked` does.
    """
    aside = folder.with_name(f".{folder.name}.new")
    with locked(folder):
        shutil.rmtree(aside, ignore_errors=True)  # is left by a process that was killed
        try:
            manifest = start_manifest(aside, identity)
            yield aside
            end_manifest(aside, manifest)
            set_aside(folder, identity)
            (folder / SUMMARY).unlink(missing_ok=True)
            for file in sorted(aside.iterdir(), key=lambda f: f.name == SUMMARY):  # it says that all are there
                os.replace(file, folder / file.name)
        finally:
            shutil.rmtree(aside, ignore_errors=True)


def set_aside(folder: Path, identity: str) -> Path | None:
    """Move a run, a base model or problems of another configuration out of the way, print so, and return their folder.

    Nothing is deleted. What has no known identity is moved as well.
    """
    if not any((folder / n).exists() for n in OF_RUN):
        return None
    old_identity = _identity(folder)
    if old_identity == identity:
        return None
    target = aside = folder.with_name(f".{folder.name}.was-{old_identity or 'unknown'}")
    number = 1
    while target.exists():
        number += 1
        target = aside.with_name(f"{aside.name}-{number}")
    target.mkdir(parents=True)
    for entry in folder.iterdir():
        if entry.name != ".lock":
            os.replace(entry, target / entry.name)
    reason = "was made from other settings, rows or code" if old_identity else "names no configuration"
    print(f"{folder}: what lies in this folder {reason}; moved to {target.name}", file=sys.stderr)
    return target


def _identity(folder: Path) -> str | None:
    """Return the identity of the run in a folder, from its manifest, summary or checkpoints."""
    states = sorted(folder.glob("checkpoints/**/state.json"), reverse=True)
    for path in (folder / MANIFEST, folder / SUMMARY, *states):
        with contextlib.suppress(UserError):
            if re.fullmatch(r"[\w:-]+", identity := str(read_json(path).get("identity", ""))):
                return identity
    return None
