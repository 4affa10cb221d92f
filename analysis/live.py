"""What Snakemake's process shows: one line of progress, and the first look.

The line listens to Snakemake's log (``workflows/progress.smk`` adds it), which says when a job begins and ends.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console, RenderableType
from rich.file_proxy import FileProxy
from rich.live import Live
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
#: with which it answers Ctrl-C: what it says of each job that it ends then is no error to look into
INTERRUPTED = "Terminating processes on user request"
#: rule -> kind of job, where the two differ; a rule that is in neither of these makes tables and figures
KINDS = {"evaluate_base": "evaluate", "sweep_slot": "sweep"}
RUNS = ("data", "base", "train", "evaluate", "curve", "sweep")


@dataclass(frozen=True)
class Job:
    """A job to do. output: its first file."""

    rule: str
    output: Path

    @property
    def kind(self) -> str:
        kind = KINDS.get(self.rule, self.rule)
        return kind if kind in RUNS else "analysis"


class Jobs:
    """Which jobs, by Snakemake's number, wait, run and are done, and how long those of each kind took."""

    def __init__(self, todo: Mapping[int, Job]) -> None:
        self.todo, self.waiting, self.begun = dict(todo), set(todo), dict[int, float]()
        self._took: dict[str, list[float]] = {}

    def begin(self, number: int) -> None:
        """Note that a job has begun; one that is given again begins anew."""
        self.waiting.discard(number)
        self.begun[number] = time.monotonic()

    def end(self, number: int, failed: bool = False) -> None:
        """Note that a job has ended. failed: its time says nothing about others."""
        seconds, begun, job = self.ran(number), self.begun.pop(number, None), self.todo.get(number)
        if job and begun is not None and not failed:
            self._took.setdefault(job.kind, []).append(seconds)

    def ran(self, number: int) -> float:
        """Return the seconds that a job has run for."""
        return time.monotonic() - self.begun.get(number, time.monotonic())

    def left(self) -> float | None:
        """Return the seconds that the rest takes, with as many jobs at a time as run now; None: not known.

        A job takes the mean of its kind. Tables and figures take seconds: they count once one is done. Another thread
        than that of the log may ask, so this looks at copies.
        """
        usual = {kind: sum(times) / len(times) for kind, times in [*self._took.items()]}
        running = [n for n in [*self.begun] if n in self.todo]
        waiting = [n for n in self.waiting.copy() if self.todo[n].kind != "analysis" or "analysis" in usual]
        if any(self.todo[n].kind not in usual for n in (*running, *waiting)):
            return None
        each = [max(0.0, usual[self.todo[n].kind] - self.ran(n)) for n in (*running, *waiting)]
        return max([*each[: len(running)], sum(each) / max(1, len(running))])


class Line(logging.Handler):
    """Stands in for Snakemake's own ``usual`` handler, which still says what is no progress, errors above all.

    On a terminal the line is drawn again; elsewhere a line is written now and then, without control characters.
    The first look is shown as soon as it is there.
    """

    def __init__(self, usual: logging.StreamHandler[Any], jobs: Jobs) -> None:
        super().__init__()
        self.usual, self.jobs, self.titles = usual, jobs, dict[int, str]()
        self.done, self.total, self.shown, self.interrupted = 0, len(jobs.todo), 0.0, False
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
            self.titles[said.jobid] = said.rule_msg or said.rule_name
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
        self.titles.pop(number, "")
        job = self.jobs.todo.get(number)
        if job and job.rule == FIRST_LOOK:
            page = re.sub(r"^!\[.*\n?", "", job.output.read_text(encoding="utf-8"), flags=re.MULTILINE).rstrip()
            self._say(Markdown(page) if self.live else Text(page))

    def _say(self, words: RenderableType) -> None:
        self.console.print(words, soft_wrap=self.live is None)

    def words(self) -> Text:
        """Return the line of this moment."""
        left = self.jobs.left()
        now = [f"{title} ({text.duration(self.jobs.ran(number))})" for number, title in [*self.titles.items()]]
        shown = "; ".join(now[:2]) + (f"; and {len(now) - 2} more" if len(now) > 2 else "")
        known = "time left not known yet" if left is None else f"about {text.duration(left)} left"
        words = f"{self.done} of {self.total} jobs done, {known}" + (f"; now {shown}" if now else "")
        return Text(words, no_wrap=self.live is not None, overflow="ellipsis", style="cyan" if self.live else "")


def tail(log: Path) -> str:
    """Return the last lines of a failed job's log under its name."""
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return f"{log}: the job wrote no log"
    printable = [re.sub(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", " ", line) for line in lines[-TAIL:]]
    return "\n".join([f"The end of {log}:", *(f"    {line}" for line in printable)])
