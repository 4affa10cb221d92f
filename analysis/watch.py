"""What runs: ``bapo watch``, a table of a scale's runs, and the line that Snakemake's process shows while it works.

The table has a row a method: what is done, what runs, and how far it is. It is made of study files, summaries and the
ends of logs. The line listens to Snakemake's log (``workflows/progress.smk`` adds it), which says when jobs begin and
end.
"""

from __future__ import annotations

import logging
import math
import re
import time
from collections.abc import Callable, Sequence
from logging import LogRecord
from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import Console, RenderableType
from rich.file_proxy import FileProxy
from rich.live import Live
from rich.markdown import Markdown
from rich.table import Table
from rich.text import Text
from snakemake.logging import LogEvent

from analysis.products import FIRST_LOOK
from analysis.study import load
from analysis.text import duration, minutes, number
from bapo.errors import UserError
from bapo.store.files import SUMMARY, read_json

#: a job without a summary counts as running while its log is younger than this: seconds
FRESH = 600.0
#: bytes that are read of the end of a log, and lines of it that are shown of a failed job
TAIL, SHOWN = 1 << 14, 15
#: seconds between two lines of progress where a line cannot be drawn again
INTERVAL = 60.0
#: events that Snakemake logs of every job, and its announcement of a choice
HIDDEN = {LogEvent.JOB_INFO, LogEvent.JOB_STARTED, LogEvent.JOB_FINISHED, LogEvent.PROGRESS, LogEvent.GROUP_INFO}
CHOICE = "Select jobs to execute..."
#: how its answers to Ctrl-C and SIGTERM begin; the errors of the jobs that end then are not shown
INTERRUPTED = ("Terminating processes on user request", "Will exit after finishing currently running jobs")


def log_end(log: Path, count: int) -> list[str]:
    """Return the last lines of a log that are not blank, without control characters. Raises OSError without one."""
    with open(log, "rb") as handle:
        handle.seek(max(0, log.stat().st_size - TAIL))
        lines = [line for line in handle.read().decode("utf-8", "replace").splitlines() if line.strip()]
    return [re.sub(r"[\x00-\x1f\x7f-\x9f]", " ", line).rstrip() for line in lines[-count:]]


# ------------------------------------------------------------------------------------------------ bapo watch


def rows_of(home: Path) -> pd.DataFrame:
    """Return a row a method on a task and model, of every run that the studies ask for.

    runs, evaluations: how many are asked for; done, evaluated: how many of these are done; accuracy: mean over runs of
    the mean over benchmarks; now: what running jobs log.
    Raises UserError where no study has begun in the folder.
    """
    files = sorted((home / "studies").glob("*.json"))
    if not files:
        cure = "run one, or name another folder, for example results/laptop"
        raise UserError(f"{home}: no study has begun here, whose runs would be shown; {cure}")
    studies = [*map(load, files)]
    asked = [(b.run.parts[-3:], s.is_evaluated) for s in studies for b in s.bases]
    asked += [(c.run.parts[-4:], s.is_evaluated) for s in studies for c in s.cells]
    evaluated = {place for place, is_evaluated in asked if is_evaluated}
    rows = pd.DataFrame([_run(home, p) | {"evaluations": p in evaluated} for p in dict.fromkeys(p for p, _ in asked)])
    sums = {name: (name, "sum") for name in ("evaluations", "done", "evaluated", "now")}
    rows_of_method = rows.groupby(["task", "model", "method"], sort=False)
    return rows_of_method.agg(runs=("done", "size"), **sums, accuracy=("accuracy", "mean"))


def _run(home: Path, place: Sequence[str]) -> dict[str, Any]:
    """Return what is known of one run. place: task, model, method and seed; the folder of a tuned run says more."""
    names = dict(zip(("task", "model", "method"), place, strict=False))
    run, log, ended = home.joinpath(*place), Path(*place).with_suffix(".log"), home.joinpath(*place, "eval", SUMMARY)
    benchmarks = read_json(ended)["benchmarks"] if ended.exists() else {}
    accuracy = sum(b["accuracy"] for b in benchmarks.values()) / len(benchmarks) if benchmarks else math.nan
    made = "train" / log if len(place) > 3 else Path("base", place[0], f"{place[1]}.log")
    jobs = (("train", run / SUMMARY, home / "logs" / made), ("evaluate", ended, home / "logs" / "evaluate" / log))
    running = [(kind, file) for kind, summary, file in jobs if not summary.exists() and file.exists()]
    fresh = [(kind, file) for kind, file in running if time.time() - file.stat().st_mtime < FRESH]
    now = [f"{kind} {place[-1]}: {''.join(log_end(file, 1)).strip()}\n" for kind, file in fresh]
    done = {"done": (run / SUMMARY).exists(), "evaluated": ended.exists()}
    return names | done | {"accuracy": accuracy, "now": "".join(now)}


def watch(home: Path) -> None:
    """Print the table of a scale's results. Raises UserError as :func:`rows_of`."""
    rows = rows_of(home)
    done, count = (rows[names].sum(axis=None) for names in (["done", "evaluated"], ["runs", "evaluations"]))
    table = Table(title=Text(f"{home}: {done} of {count} runs and evaluations done"), title_justify="left")
    for name in ("Task", "Model", "Method", "Runs", "Evaluated", "Accuracy %", "Now"):
        table.add_column(name, justify="right" if name in ("Runs", "Evaluated", "Accuracy %") else "left")
    for names, row in rows.iterrows():
        numbers = [
            f"{row['done']}/{row['runs']}",
            f"{row['evaluated']}/{row['evaluations']}",
            number(100 * row["accuracy"]),
        ]
        table.add_row(*map(Text, [*names, *numbers, row["now"].strip()]))
    console = Console()
    Console(width=max(console.width, 140) if not console.is_terminal else None).print(table)


# ------------------------------------------------------------------------------------------------ Snakemake's line


class ProgressLine(logging.Handler):
    """A handler in place of Snakemake's own ``usual``, which still says what is no progress, errors above all.

    On a terminal the line is drawn again; elsewhere a line is written now and then, without control characters.
    The first look is shown as soon as it is there.

    Args:
        usual: Snakemake's handler
        total: the jobs that will run
        title: gives the title of a method in a path, for example of ``grpo+rate_1e-4``
    """

    def __init__(self, usual: logging.StreamHandler[Any], total: int, title: Callable[[str], str]) -> None:
        super().__init__()
        self.usual, self.done, self.total, self.title = usual, 0, total, title
        self.last_line, self.interrupted = 0.0, False
        self.start, self.running = time.monotonic(), dict[int, LogRecord]()
        self.console = Console(file=usual.stream, force_terminal=usual.stream.isatty(), highlight=False)
        self.live = None
        if usual.stream.isatty() and not self.console.is_dumb_terminal:
            self.live = Live(console=self.console, get_renderable=self.words, refresh_per_second=1, transient=True)
            self.live.start()
            usual.setStream(FileProxy(self.console, usual.stream))  # what it says stands above the line

    def emit(self, record: LogRecord) -> None:
        """Count what Snakemake says, and hand on the rest."""
        fields: Any = record
        event = getattr(record, "event", None)
        if event == LogEvent.JOB_INFO:
            self.running[fields.jobid] = record
        elif event == LogEvent.JOB_FINISHED:
            self._ended(self.running.pop(fields.job_id, None))
        elif event == LogEvent.PROGRESS:
            self.done, self.total = fields.done, fields.total
            if self.live is None and time.monotonic() - self.last_line >= INTERVAL:
                self._say(self.words())
                self.last_line = time.monotonic()
        if event in HIDDEN or record.msg == CHOICE or self.interrupted:
            return
        self.interrupted = str(record.msg).startswith(INTERRUPTED)
        self.usual.handle(record)
        if event == LogEvent.JOB_ERROR:
            self.running.pop(fields.jobid, None)
            for log in map(Path, fields.log):
                lines = log_end(log, SHOWN) if log.exists() else ["the job wrote no log"]
                self._say(Text("\n".join([f"The end of {log}:", *(f"    {line}" for line in lines)])))

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
        words = f"{self.done} of {self.total} jobs done"
        if self.done:
            seconds = (time.monotonic() - self.start) / self.done * (self.total - self.done)
            words += f", about {minutes(seconds)} left"
        now = [f"{self._of(job)} ({duration(time.time() - job.created)})" for job in list(self.running.values())]
        words += f"; now {'; '.join(now[:2])}" if now else ""
        words += f"; and {len(now) - 2} more" if len(now) > 2 else ""
        return Text(words, no_wrap=self.live is not None, overflow="ellipsis", style="cyan" if self.live else "")

    def _of(self, job: Any) -> str:
        """Return what a job does, with its method's title."""
        words, method = job.rule_msg or job.rule_name, (job.wildcards or {}).get("method")
        return words.replace(f": {method},", f": {self.title(method)},") if method else words
