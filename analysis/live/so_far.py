"""table1_so_far.md is written again after evaluations, by a process beside the jobs."""

from __future__ import annotations

import logging
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from snakemake.logging import LogEvent

#: seconds between two pages, each of which takes about one
INTERVAL = 30.0


class SoFar(logging.Handler):
    """Calls ``command`` after each of the ``evaluations`` and removes ``page`` after the ``table``: numbers of jobs."""

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        page: Path,
        log: Path,
        evaluations: set[int],
        table: int,
    ) -> None:
        super().__init__()
        self.command, self.environment, self.page, self.log_file = command, environment, page, log
        self.evaluations, self.table = evaluations, table
        self._wanted, self._ended = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._write_until_the_end, daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        """Ask for the page when an evaluation has ended."""
        if getattr(record, "event", None) != LogEvent.JOB_FINISHED:
            return
        if record.job_id in self.evaluations:
            self._wanted.set()
        elif record.job_id == self.table:
            self.end()
            self.page.unlink(missing_ok=True)

    def end(self) -> None:
        """Write what has not been written yet, for example after Ctrl-C."""
        self._ended.set()
        self._thread.join()

    def _write_until_the_end(self) -> None:
        while not self._ended.is_set():
            if self._wanted.wait(timeout=0.5):
                self._write()
                self._ended.wait(INTERVAL)
        if self._wanted.is_set():
            self._write()

    def _write(self) -> None:
        self._wanted.clear()
        self.log_file.parent.mkdir(parents=True, exist_ok=True)
        with open(self.log_file, "wb") as log:
            # a group of its own: Ctrl-C ends the jobs, not this
            subprocess.run(
                self.command,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                process_group=0,
                check=False,
            )
