"""What Snakemake's process shows: one line of progress, and the first look.

The handler listens to Snakemake's log (``workflows/progress.smk`` adds it), which says when a job begins and ends.
"""

from __future__ import annotations

import logging
import re
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.file_proxy import FileProxy
from rich.live import Live
from rich.text import Text
from snakemake.logging import LogEvent

from analysis import text
from analysis.products import FIRST_LOOK
from analysis.watch import Left, Times, content_of, left, took

#: seconds between two lines where a line cannot be drawn again
INTERVAL = 60.0
#: lines of a failed job's log
TAIL = 15
#: what Snakemake says of every job, and its announcement of a choice
HIDDEN = {LogEvent.JOB_INFO, LogEvent.JOB_STARTED, LogEvent.JOB_FINISHED, LogEvent.PROGRESS, LogEvent.GROUP_INFO}
CHOICE = "Select jobs to execute..."
#: with which it answers Ctrl-C: what it says of each job that it ends then is no error to look into
INTERRUPTED = "Terminating processes on user request"
#: rule -> kind of job, where the two differ; a rule that is in neither of these makes tables and figures
KINDS = {"evaluate_base": "evaluate", "sweep_slot": "sweep"}
RUNS = ("data", "base", "train", "evaluate", "curve", "sweep")


@dataclass(frozen=True)
class Job:
    """A job to do. outputs: its files, the first of which stands for all."""

    rule: str
    group: tuple[str, ...]
    outputs: tuple[Path, ...]

    @property
    def kind(self) -> str:
        kind = KINDS.get(self.rule, self.rule)
        return kind if kind in RUNS else "analysis"


class Jobs:
    """Which jobs, by Snakemake's number, wait, run and are done. earlier: jobs that earlier commands have finished."""

    def __init__(self, todo: Mapping[int, Job], earlier: Iterable[Job]) -> None:
        self.todo, self.times = dict(todo), Times()
        self.waiting = Counter((job.kind, job.group) for job in todo.values())
        self.begun: dict[int, float] = {}
        for job in earlier:
            if job.outputs and (seconds := took(job.outputs[0].parent)):
                self.times.add(job.kind, job.group, seconds)

    def begin(self, number: int) -> None:
        """Note that a job has begun; one that is given again begins anew."""
        if number in self.todo and number not in self.begun:
            self.waiting[self.todo[number].kind, self.todo[number].group] -= 1
        self.begun[number] = time.monotonic()

    def end(self, number: int, failed: bool = False) -> None:
        """Note that a job has ended. failed: its time says nothing about others."""
        seconds, begun, job = self.ran(number), self.begun.pop(number, None), self.todo.get(number)
        if job and begun is not None and not failed:
            self.times.add(job.kind, job.group, seconds)

    def ran(self, number: int) -> float:
        """Return the seconds that a job has run for."""
        return time.monotonic() - self.begun.get(number, time.monotonic())

    def left(self) -> Left:
        """Return the time that the rest takes. Tables and figures take seconds: they count once one is done.

        Another thread than that of the log may ask, so this looks at copies.
        """
        drawn = self.times.usual("analysis", ()) is not None
        waiting = {job: count for job, count in self.waiting.copy().items() if drawn or job[0] != "analysis"}
        return left([*map(self._left, [*self.begun])], waiting, self.times)

    def _left(self, number: int) -> float | None:
        job = self.todo.get(number)
        usual = self.times.usual(job.kind, job.group) if job else 0.0
        return None if usual is None else max(0.0, usual - self.ran(number))


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
            self.live = Live(console=self.console, get_renderable=self.words, refresh_per_second=1, transient=True)
            self.live.start()
            usual.setStream(FileProxy(self.console, usual.stream))  # above the line

    def emit(self, record: logging.LogRecord) -> None:
        """Count what Snakemake says, and hand on the rest."""
        said: Any = record
        event = getattr(record, "event", None)
        if event == LogEvent.JOB_INFO:
            self.jobs.begin(said.jobid)
            job = self.jobs.todo.get(said.jobid)  # without its model, the names of two jobs fit a line
            model = f", {job.group[1]}" if job and len(job.group) > 1 else ""
            self.titles[said.jobid] = (said.rule_msg or said.rule_name).replace(model, "")
        elif event == LogEvent.JOB_FINISHED:
            self._ended(said.job_id)
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
            self.jobs.end(said.jobid, failed=True)
            self.titles.pop(said.jobid, None)
            for log in said.log:
                self._say(Text(tail(Path(log))))

    def end(self) -> None:
        """Take the line away; what comes after it is handed on as before."""
        if self.live is not None:
            self.live.stop()

    def _ended(self, number: int) -> None:
        from rich.markdown import Markdown

        self.jobs.end(number)
        title, job = self.titles.pop(number, ""), self.jobs.todo.get(number)
        if number in self.first and job:
            benchmarks = content_of(job.outputs[0]).get("benchmarks") or {}
            numbers = [f"{name} {100 * result['accuracy']:.1f}%" for name, result in benchmarks.items()]
            self._say(Text(f"{title}: {', '.join(numbers)}"))
        elif job and job.rule == FIRST_LOOK:
            page = re.sub(r"^!\[.*\n?", "", job.outputs[0].read_text(encoding="utf-8"), flags=re.MULTILINE).rstrip()
            self._say(Markdown(page) if self.live else Text(page))

    def _say(self, words: Any) -> None:
        self.console.print(words, soft_wrap=self.live is None)

    def words(self) -> Text:
        """Return the line of this moment."""
        now = [f"{title} ({text.duration(self.jobs.ran(number))})" for number, title in [*self.titles.items()]]
        shown = "; ".join(now[:2]) + (f"; and {len(now) - 2} more" if len(now) > 2 else "")
        words = f"{self.done} of {self.total} jobs done, {self.jobs.left()}" + (f"; now {shown}" if now else "")
        return Text(words, no_wrap=self.live is not None, overflow="ellipsis", style="cyan" if self.live else "")


def tail(log: Path) -> str:
    """Return the last lines of a failed job's log under its name."""
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return f"{log}: the job wrote no log"
    printable = [re.sub(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", " ", line) for line in lines[-TAIL:]]
    return "\n".join([f"The end of {log}:", *(f"    {line}" for line in printable)])
