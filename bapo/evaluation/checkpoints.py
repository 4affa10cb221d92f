"""What is evaluated: a checkpoint's folder, or a name on the hub, and what identifies its contents."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from bapo.errors import UserError
from bapo.store.files import CHECKSUMS, SUMMARY, Json, damaged_files, read_json, sha256

_HUB_NAME = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")


def locate(checkpoint: Path | str) -> Path | str:
    """Return a checkpoint's folder, or its name on the hub: text like ``owner/name`` that is no folder here."""
    if isinstance(checkpoint, str) and not Path(checkpoint).is_dir() and _HUB_NAME.fullmatch(checkpoint):
        return checkpoint
    return Path(checkpoint)


def checkpoint_digest(checkpoint: Path | str, revision: str | None = None) -> str:
    """Return the SHA-256 of the names and contents of a checkpoint's own files (not of ``trainer/`` inside it).

    For a name on the hub it is ``name@revision``, which is as good if the revision is a commit. Raises UserError if
    there is no checkpoint, if it differs from the checksums that were written with it, or without a revision.
    """
    if isinstance(checkpoint, str):
        if not revision:
            raise UserError(
                f"{checkpoint}: no such folder, and on the hub a model may change: set model.revision to a commit of "
                "it, or name a local folder"
            )
        return f"{checkpoint}@{revision}"
    if not (checkpoint / "config.json").is_file():
        raise UserError(f"{checkpoint}: no checkpoint here (no config.json); train it first or correct the path")
    problems = damaged_files(checkpoint, _written(checkpoint))
    if problems:
        raise UserError(f"{problems[0]}; delete {checkpoint} and give the command that trained it again")
    files = sorted(p for p in checkpoint.iterdir() if p.is_file() and p.name != CHECKSUMS and p.name[0] != ".")
    return hashlib.sha256("".join(f"{p.name} {sha256(p)}\n" for p in files).encode()).hexdigest()


def _written(checkpoint: Path) -> Json:
    """Return the fingerprints that were written with a checkpoint, in itself or in the base model's summary."""
    if (checkpoint / CHECKSUMS).is_file():
        return {n: f for n, f in read_json(checkpoint / CHECKSUMS).items() if "/" not in n}
    beside = checkpoint.parent / SUMMARY
    files = read_json(beside).get("files", {}) if beside.is_file() else {}
    prefix = f"{checkpoint.name}/"
    return {n.removeprefix(prefix): f for n, f in files.items() if n.startswith(prefix)}
