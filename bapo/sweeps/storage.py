"""The storage of a sweep's study: a journal file that survives kill -9, or any storage URL that Optuna knows."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bapo.errors import UserError

if TYPE_CHECKING:
    from optuna.storages import BaseStorage

JOURNAL = "journal.log"


def torn_bytes(path: Path) -> int:
    """Count the bytes after the last newline, left by a process that was killed while writing."""
    size, block, tail = path.stat().st_size, 65536, 0
    with open(path, "rb") as handle:
        while tail < size:
            start = max(0, size - tail - block)
            handle.seek(start)
            newline = handle.read(size - tail - start).rfind(b"\n")
            if newline >= 0:
                return size - (start + newline + 1)
            tail = size - start
    return tail


def open_journal(path: Path) -> BaseStorage:
    """Open a journal file, creating it if missing; a torn last line is cut off first.

    Raises UserError if an earlier line is damaged.
    """
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend
    from optuna.storages.journal._file import get_lock_file

    class Journal(JournalFileBackend):
        """Optuna's backend, which never writes behind a torn line: that would damage the whole file.

        The holder of the lock is the only writer, so bytes after the last newline have no owner any more.
        """

        def repair(self) -> None:
            torn = torn_bytes(path)
            if torn:
                os.truncate(path, path.stat().st_size - torn)

        def append_logs(self, logs: list[dict[str, Any]]) -> None:
            lines = "".join(json.dumps(log, separators=(",", ":")) + "\n" for log in logs)
            with get_lock_file(self._lock):
                self.repair()
                with open(path, "ab") as handle:
                    handle.write(lines.encode("utf-8"))
                    handle.flush()
                    os.fsync(handle.fileno())

    path.parent.mkdir(parents=True, exist_ok=True)
    backend = Journal(str(path))
    with get_lock_file(backend._lock):
        backend.repair()
    try:
        return JournalStorage(backend)
    except (ValueError, KeyError) as error:
        raise UserError(f"{path} is damaged ({error}); put a copy of it back, or move it away to begin anew") from None


def open_storage(url: str | None, folder: Path) -> BaseStorage:
    """Open the journal in ``folder`` or the database at ``url``. Raises UserError if it cannot be reached.

    The message never shows the address, which may hold a password.
    """
    if not url:
        return open_journal(folder / JOURNAL)
    import optuna

    try:
        return optuna.storages.get_storage(url)
    except Exception as error:  # each database driver raises different errors
        kind = url.partition(":")[0]
        reason = type(error).__name__
        cause = error.__cause__ or error
        if isinstance(cause, ImportError) or reason == "NoSuchModuleError":
            reason += ": its driver is not installed"
        raise UserError(f"storage {kind}:...: cannot be opened ({reason}); check the address and the server") from None
