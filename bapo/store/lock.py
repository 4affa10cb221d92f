"""Keep a run directory to one process at a time, and move another configuration's run out of the way.

The lock is the kernel's (flock): it ends with its process, also after kill -9, so nothing is left to clean up.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import platform
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from bapo.errors import UserError
from bapo.store.files import MANIFEST, SUMMARY, TABLES, explained_error, read_json
from bapo.store.manifest import end_manifest, start_manifest


@contextlib.contextmanager
def locked(folder: Path, patience: float = 600.0) -> Iterator[None]:
    """Hold the folder for this process, waiting up to ``patience`` seconds for another to finish with it.

    Waiting matters after a kill -9 of Snakemake, whose jobs continue without it: running the same command again lets
    them finish. Raises UserError when the time is up.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = open(folder / ".lock", "a+", encoding="utf-8")  # noqa: SIM115 (held for the whole block)
    except OSError as error:
        raise explained_error(error, folder) from error
    with handle:
        try:
            _wait_for_lock(handle, folder, patience)
        except BlockingIOError:
            handle.seek(0)
            raise UserError(
                f"{folder}: another process ({handle.read().strip() or 'unknown'}) is working here; wait for it or "
                "stop it"
            ) from None
        except OSError:  # a file system without locks: each file is still written atomically
            pass
        handle.truncate(0)
        handle.write(f"process {os.getpid()} on {platform.node()}")
        handle.flush()
        yield


@contextlib.contextmanager
def remade(folder: Path, identity: str) -> Iterator[None]:
    """Hold the folder and write its manifest for a block that makes its files, ``summary.json`` last.

    The old summary is deleted first, so the folder counts as unfinished until the new one is written.
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


def set_aside(folder: Path, identity: str) -> Path | None:
    """Move a run made under another configuration out of the way and say so; return its new place.

    Nothing is deleted. A run of unknown identity (no readable manifest) is moved if it holds checkpoints or tables.
    """
    if not any((folder / n).exists() for n in (MANIFEST, "checkpoints", *TABLES)):
        return None
    other = None
    with contextlib.suppress(UserError):
        other = read_json(folder / MANIFEST).get("identity")
    if other == identity:
        return None
    target = aside = folder.with_name(f".{folder.name}.was-{other or 'unknown'}")
    number = 1
    while target.exists():
        number += 1
        target = aside.with_name(f"{aside.name}-{number}")
    target.mkdir(parents=True)
    for entry in folder.iterdir():
        if entry.name != ".lock":
            os.replace(entry, target / entry.name)
    print(f"{folder}: the run in this folder has another configuration; moved to {target.name}", file=sys.stderr)
    return target
