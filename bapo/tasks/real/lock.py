"""The lock file of the real sets: the revision and SHA-256 of every file, recorded at first use, enforced after it."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from bapo.errors import UserError
from bapo.experiments import places
from bapo.store.files import sha256, write_text

NAME = "data.lock.json"


def _digest(path: Path) -> str:
    """Return a file's SHA-256. Raises UserError where it cannot be read."""
    try:
        return sha256(path)
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error}); check the file's permissions") from None


class SourceLock:
    """``{"hub": {repository: {"revision", "files": {name: sha256}}}, "folder": {name: sha256}}`` in a JSON file.

    Names of ``folder`` are relative to ``paths.data_folder``, so the file may be committed and hold on another machine.
    What is new is recorded by :meth:`save`, once everything that was read has passed its checks. path None: nothing is
    recorded or enforced.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.known = _read(path) if path else _empty()
        self.new = _empty()
        self.own: dict[str, str] = {}  # files of a folder of the user's, which may change: file -> SHA-256
        self.changed: list[str] = []  # those of them that were recorded with other contents
        self.used: dict[str, dict[str, str]] = {}  # what was read, for the cleaning report: set -> file -> SHA-256

    @classmethod
    def of(cls, config: DictConfig) -> SourceLock:
        """Open the lock file of ``paths.lock``: ``auto`` is ``data.lock.json`` in ``experiments/``, null none."""
        value = OmegaConf.select(config, "paths.lock")
        if value == "auto":
            return cls(places.trees()[-1] / NAME)
        return cls(Path(value) if value else None)

    def revision(self, repository: str) -> str | None:
        """Return the commit of ``repository`` that was recorded, in this process or before."""
        for content in (self.known, self.new):
            if repository in content["hub"]:
                return content["hub"][repository]["revision"]
        return None

    def files(self, repository: str) -> list[str]:
        """Return the names of the files of ``repository`` that were recorded before."""
        return sorted(self.known["hub"].get(repository, {}).get("files", {}))

    def check_hub(self, where: str, repository: str, revision: str, name: str, path: Path) -> None:
        """Compare a downloaded file with what is recorded of it, or note it for :meth:`save`. Raises UserError."""
        recorded = self.revision(repository)
        if recorded not in (None, revision):
            raise UserError(
                f"{where}.revision={revision}: {self.path or 'another split'} records {repository} at {recorded}; use "
                f"that revision, or delete the entry of {repository} from the lock file to change it"
            )
        digest = _digest(path)
        expected = self.known["hub"].get(repository, {}).get("files", {}).get(name)
        if expected not in (None, digest):
            raise UserError(
                f"{where}: {name} of {repository} at {revision} has SHA-256 {digest}, but {self.path} records "
                f"{expected}; delete {path} to load it again, or delete its entry from the lock file to accept it"
            )
        self.new["hub"].setdefault(repository, {"revision": revision, "files": {}})["files"][name] = digest
        self.used.setdefault(f"{repository}@{revision}", {})[name] = digest

    def check_folder(self, where: str, name: str, path: Path) -> None:
        """Do the same for a file of ``paths.data_folder``. name: its path in that folder."""
        digest = _digest(path)
        expected = self.known["folder"].get(name)
        if expected not in (None, digest):
            raise UserError(
                f"{where}: {path} has SHA-256 {digest}, but {self.path} records {expected} for {name}; restore the "
                "file, or delete its entry from the lock file to accept the new one"
            )
        self.new["folder"][name] = digest
        self.used.setdefault("paths.data_folder", {})[name] = digest

    def note_folder(self, name: str, path: Path) -> None:
        """Record a file of a user's own folder, whose contents are part of what a run means: it may change."""
        digest = _digest(path)
        if self.known["folder"].get(name) not in (None, digest):
            self.changed.append(name)
        self.own[name] = digest
        self.used.setdefault("folders", {})[name] = digest

    def save(self) -> None:
        """Write what is new. Other data jobs may be doing the same: the file is read again under the folder's lock."""
        if self.path is None:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(self.path.parent, os.O_RDONLY)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            before = _read(self.path)
            content = _read(self.path)
            for repository, entry in self.new["hub"].items():
                self._agree(repository, content["hub"].get(repository, {}), entry)
                place = content["hub"].setdefault(repository, {"revision": entry["revision"], "files": {}})
                place["files"] |= entry["files"]
            self._agree("paths.data_folder", {"files": content["folder"]}, {"files": self.new["folder"]})
            content["folder"] |= self.new["folder"] | self.own
            if content != before:
                text = json.dumps(content, indent=1, sort_keys=True)
                write_text(self.path, text + "\n")
        finally:
            os.close(handle)

    def _agree(self, name: str, recorded: Mapping[str, Any], new: Mapping[str, Any]) -> None:
        """Raise UserError where another job has recorded something else since this one began."""
        moved = recorded.get("revision") not in (None, new.get("revision"))
        files = [f for f, digest in new["files"].items() if recorded.get("files", {}).get(f, digest) != digest]
        if moved or files:
            what = f"{name}: {files[0]}" if files else f"{name} at revision {new.get('revision')}"
            raise UserError(
                f"{self.path}: another job has just recorded other contents for {what}; run this one again, and see "
                "which of the two is right"
            )


def _empty() -> dict[str, Any]:
    return {"hub": {}, "folder": {}}


def _read(path: Path) -> dict[str, Any]:
    if not path.exists():
        return _empty()
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        hub = {name: {"revision": e["revision"], "files": dict(e["files"])} for name, e in content["hub"].items()}
        return {"hub": hub, "folder": dict(content["folder"])}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise UserError(
            f"{path}: not a lock file of the data; restore it (git checkout), or delete it to record anew"
        ) from None
