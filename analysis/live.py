"""What Snakemake's process shows: one line of progress, and the first look.

The line listens to Snakemake's log (``workflows/progress.smk`` adds it), which says when a job begins and ends.
"""

from __future__ import annotations

import logging
import re
import time
from logging import LogRecord
from pathlib import Path
from typing import Any

from rich.console import Console, RenderableType
from rich.file_proxy import FileProxy
from rich.live import Live
from rich.markdown import Markdown
from rich.text import Text
from snakemake.logging import LogEvent

from analysis import text
from analysis.products import FIRST_LOOK

#: seconds between two lines where a line cannot be drawn again
INTERVAL = 60.0
#: lines of a failed job's log
TAIL = 15
#: what Snakemake says of every job, and its announcement of a choice
HIDDEN = {LogEvent.JOB_INFO, LogEvent.JOB_STARTED, LogEvent.JOB_FINISHED, LogEvent.PROGRESS, LogEvent.GROUP_INFO}
CHOICE = "Select jobs to execute..."
#: with which it answers Ctrl-C and SIGTERM: what it says of each job that ends then is no error to look into
INTERRUPTED = ("Terminating processes on user request", "Will exit after finishing currently running jobs")


class Line(logging.Handler):
    """Stands in for Snakemake's own ``usual`` handler, which still says what is no progress, errors above all.

    On a terminal the line is drawn again; elsewhere a line is written now and then, without control characters.
    The first look is shown as soon as it is there.
    """

    def __init__(self, usual: logging.StreamHandler[Any], total: int) -> None:
        super().__init__()
        self.usual, self.done, self.total, self.shown, self.interrupted = usual, 0, total, 0.0, False
        self.begun, self.running = time.monotonic(), dict[int, LogRecord]()
        self.console = Console(file=usual.stream, force_terminal=usual.stream.isatty(), highlight=False)
        self.live = None
        if usual.stream.isatty() and not self.console.is_dumb_terminal:
            self.live = Live(console=self.console, get_renderable=self.words, refresh_per_second=1, transient=True)
            self.live.start()
            usual.setStream(FileProxy(self.console, usual.stream))  # above the line

    def emit(self, record: LogRecord) -> None:
        """Count what Snakemake says, and hand on the rest."""
        said: Any = record
        event = getattr(record, "event", None)
        if event == LogEvent.JOB_INFO:
            self.running[said.jobid] = record
        elif event == LogEvent.JOB_FINISHED:
            self._ended(self.running.pop(said.job_id, None))
        elif event == LogEvent.PROGRESS:
            self.done, self.total = said.done, said.total
            if self.live is None and time.monotonic() - self.shown >= INTERVAL:
                self._say(self.words())
                self.shown = time.monotonic()
        if event in HIDDEN or record.msg == CHOICE or self.interrupted:
            return
        self.interrupted = str(record.msg).startswith(INTERRUPTED)
        self.usual.handle(record)
        if event == LogEvent.JOB_ERROR:
            self.running.pop(said.jobid, None)
            for log in said.log:
                self._say(Text(tail(Path(log))))

    def end(self) -> None:
        """Take the line away; what comes after it is handed on as before."""
        if self.live is not None:
            self.live.stop()

    def _ended(self, job: Any) -> None:
        if job and job.rule_name == FIRST_LOOK:
            look = Path(job.output[0]).read_text(encoding="utf-8")
            page = re.sub(r"^!\[.*\n?", "", look, flags=re.MULTILINE).rstrip()
            self._say(Markdown(page) if self.live else Text(page))

    def _say(self, words: RenderableType) -> None:
        self.console.print(words, soft_wrap=self.live is None)

    def words(self) -> Text:
        """Return the line of this moment. The time left assumes the pace so far."""
        jobs: list[Any] = [*self.running.values()]
        now = [f"{j.rule_msg or j.rule_name} ({text.duration(time.time() - j.created)})" for j in jobs]
        shown = "; ".join(now[:2]) + (f"; and {len(now) - 2} more" if len(now) > 2 else "")
        words = f"{self.done} of {self.total} jobs done"
        if self.done:
            seconds = (time.monotonic() - self.begun) / self.done * (self.total - self.done)
            words += f", at this pace {text.duration(seconds)} left"
        words += f"; now {shown}" if now else ""
        return Text(words, no_wrap=self.live is not None, overflow="ellipsis", style="cyan" if self.live else "")


def tail(log: Path) -> str:
    """Return the last lines of a failed job's log under its name."""
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return f"{log}: the job wrote no log"
    printable = [re.sub(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", " ", line) for line in lines[-TAIL:]]
    return "\n".join([f"The end of {log}:", *(f"    {line}" for line in printable)])
