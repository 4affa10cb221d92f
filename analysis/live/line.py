"""The line of progress: how many jobs are done, how long the rest takes, and what runs now."""

from __future__ import annotations

import logging
import re
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.file_proxy import FileProxy
from rich.live import Live
from rich.text import Text
from snakemake.logging import LogEvent

from analysis.left import duration
from analysis.live.jobs import Jobs
from analysis.products import FIRST_LOOK
from analysis.watch.folder import content_of

#: seconds between two lines where a line cannot be drawn again
INTERVAL = 60.0
#: lines of a failed job's log
TAIL = 15
#: what Snakemake says of every job, and its announcement of a choice
HIDDEN = {LogEvent.JOB_INFO, LogEvent.JOB_STARTED, LogEvent.JOB_FINISHED, LogEvent.PROGRESS, LogEvent.GROUP_INFO}
CHOICE = "Select jobs to execute..."
#: with which it answers Ctrl-C: what it says of each job that it ends then is no error to look into
INTERRUPTED = "Terminating processes on user request"


class Line(logging.Handler):
    """Stands in for Snakemake's own ``usual`` handler, which still says what is no progress, errors above all.

    On a terminal the line is drawn again; elsewhere a line is written now and then, without control characters.
    first: the evaluations that the first look shows, whose numbers are said as soon as they are there.
    """

    def __init__(self, usual: logging.StreamHandler[Any], jobs: Jobs, first: set[int]) -> None:
        super().__init__()
        self.usual, self.jobs, self.first = usual, jobs, first
        self.done, self.total, self.titles = 0, len(jobs.todo), dict[int, str]()
        self.shown, self.interrupted = 0.0, False
        self.console = Console(file=usual.stream, force_terminal=usual.stream.isatty(), highlight=False)
        self.live = None
        if usual.stream.isatty() and not self.console.is_dumb_terminal:
            self.live = Live(console=self.console, get_renderable=self._text, refresh_per_second=1, transient=True)
            self.live.start()
            usual.setStream(FileProxy(self.console, usual.stream))  # above the line

    def emit(self, record: logging.LogRecord) -> None:
        """Count what Snakemake says, and hand on the rest."""
        event = getattr(record, "event", None)
        if event == LogEvent.JOB_INFO:
            self.jobs.begin(record.jobid)
            self.titles[record.jobid] = self._title(record.jobid, record.rule_msg or record.rule_name)
        elif event == LogEvent.JOB_FINISHED:
            self._ended(record.job_id)
        elif event == LogEvent.PROGRESS:
            self.done, self.total = record.done, record.total
            if self.live is None and time.monotonic() - self.shown >= INTERVAL:
                self._say(self._text())
                self.shown = time.monotonic()
        if event in HIDDEN or record.msg == CHOICE or self.interrupted:
            return
        self.interrupted = str(record.msg).startswith(INTERRUPTED)
        self.usual.handle(record)
        if event == LogEvent.JOB_ERROR:
            self.jobs.end(record.jobid, failed=True)
            self.titles.pop(record.jobid, None)
            for log in record.log:
                self._say(Text(tail(Path(log))))

    def end(self) -> None:
        """Take the line away; what comes after it is handed on as before."""
        if self.live is not None:
            self.live.stop()

    def _title(self, number: int, message: str) -> str:
        """Return a job's message without its model: two of them fit a line."""
        group = self.jobs.todo[number].group if number in self.jobs.todo else ()
        return message.replace(f", {group[1]}", "") if len(group) > 1 else message

    def _ended(self, number: int) -> None:
        self.jobs.end(number)
        title = self.titles.pop(number, "")
        job = self.jobs.todo.get(number)
        if number in self.first and job:
            self._say(Text(f"{title}: {numbers(job.outputs[0])}"))
        elif job and job.rule == FIRST_LOOK:
            page = job.outputs[0].read_text(encoding="utf-8")
            self._say(_rendered(page) if self.live else Text(without_pictures(page)))

    def _say(self, words: Any) -> None:
        self.console.print(words, soft_wrap=self.live is None)

    def _text(self) -> Text:
        rest = self.jobs.left()
        known = rest.seconds is not None and not rest.unknown
        left = f"about {duration(rest.seconds or 0.0)} left" if known else "time left not known yet"
        now = [f"{title} ({duration(self.jobs.ran(number))})" for number, title in [*self.titles.items()]]
        shown = "; ".join(now[:2]) + (f"; and {len(now) - 2} more" if len(now) > 2 else "")
        words = f"{self.done} of {self.total} jobs done, {left}" + (f"; now {shown}" if now else "")
        return Text(words, no_wrap=self.live is not None, overflow="ellipsis", style="cyan" if self.live else "")


def numbers(summary: Path) -> str:
    """Return the accuracy on each benchmark that an evaluation's summary names."""
    benchmarks = content_of(summary).get("benchmarks") or {}
    return ", ".join(f"{name} {100 * result['accuracy']:.1f}%" for name, result in benchmarks.items())


def tail(log: Path) -> str:
    """Return the last lines of a failed job's log under its name."""
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return f"{log}: the job wrote no log"
    printable = [re.sub(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", " ", line) for line in lines[-TAIL:]]
    return "\n".join([f"The end of {log}:", *(f"    {line}" for line in printable)])


def _rendered(page: str) -> Any:
    from rich.markdown import Markdown

    return Markdown(without_pictures(page))


def without_pictures(page: str) -> str:
    """Return Markdown as a terminal can show it."""
    return re.sub(r"^!\[.*\n?", "", page, flags=re.MULTILINE).rstrip()
