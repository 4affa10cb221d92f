"""``bapo watch``: one table of a scale's runs, a row a method: what is done, what runs, and how far it is.

It reads study files, summaries, locks and the ends of logs. It takes no lock and writes nothing.
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis import text
from analysis.study import read_file
from bapo.errors import UserError
from bapo.experiments.places import base_folder, run_folder
from bapo.store.files import MANIFEST, SUMMARY, read_json

if TYPE_CHECKING:
    from rich.table import Table

#: a job on another machine, whose process cannot be asked, counts as running while its log is younger: seconds
FRESH = 600.0
#: bytes of a log that are read, from its end
TAIL = 1 << 12


# ------------------------------------------------------------------------------------------------ the time left


class Times:
    """The seconds of finished jobs. A group names a job ever more closely: task, model, method."""

    def __init__(self) -> None:
        self._sums: dict[tuple[str, ...], tuple[float, int]] = {}

    def add(self, kind: str, group: Sequence[str], seconds: float) -> None:
        """Count a finished job."""
        for length in range(len(group) + 1):
            total, jobs = self._sums.get((kind, *group[:length]), (0.0, 0))
            self._sums[kind, *group[:length]] = total + seconds, jobs + 1

    def usual(self, kind: str, group: Sequence[str]) -> float | None:
        """Return the mean of the jobs alike: of the method, else of the model, else of the task, else of the kind."""
        for length in range(len(group), -1, -1):
            if found := self._sums.get((kind, *group[:length])):
                return found[0] / found[1]
        return None


@dataclass(frozen=True)
class Left:
    """seconds: until all is done with as many jobs at a time as run now; None: not known. unknown: jobs of a kind
    of which none is done yet, which are not in it."""

    seconds: float | None
    unknown: int

    def __str__(self) -> str:
        known = self.seconds is not None and not self.unknown
        return f"about {text.duration(self.seconds or 0.0)} left" if known else "time left not known yet"


def left(running: Sequence[float | None], waiting: Mapping[tuple[str, tuple[str, ...]], int], times: Times) -> Left:
    """Return the time that is left. running: seconds of each job that runs; waiting: (kind, group) -> jobs."""
    each = [*running]
    for (kind, group), jobs in waiting.items():
        each += [times.usual(kind, group)] * jobs
    known = [seconds for seconds in each if seconds is not None]
    longest = max((s for s in running if s is not None), default=0.0)
    seconds = max(longest, sum(known) / max(1, len(running))) if known or not each else None
    return Left(seconds, len(each) - len(known))


def took(folder: Path) -> float | None:
    """Return the seconds that a finished job took: from start to end, else, where it was resumed, its own count."""
    manifest = content_of(folder / MANIFEST)
    with contextlib.suppress(TypeError, ValueError, KeyError):
        if not manifest.get("resumed"):
            ends = [datetime.fromisoformat(manifest[key]).timestamp() for key in ("started", "ended")]
            return max(1.0, ends[1] - ends[0])
    summary = content_of(folder / SUMMARY)
    seconds = (summary.get("totals") or summary).get("seconds")
    return float(seconds) if isinstance(seconds, int | float) else None


def content_of(path: Path) -> dict[str, Any]:
    """Return a JSON object; {} where there is none, or none yet."""
    with contextlib.suppress(OSError, UserError):
        content = read_json(path)
        if isinstance(content, dict):
            return content
    return {}


# ------------------------------------------------------------------------------------------------ the table


@dataclass
class Row:
    """All seeds of a method on one task and model. accuracies: means over benchmarks; now: running jobs in words."""

    task: str
    model: str
    method: str
    runs: int = 0
    done: int = 0
    evaluated: int = 0
    accuracies: list[float] = field(default_factory=list)
    now: list[str] = field(default_factory=list)


def rows_of(home: Path, times: Times) -> list[Row]:
    """Return the rows of every run that the studies ask for, and count finished runs in ``times``.

    Raises UserError where the folder is no scale's results.
    """
    files = sorted((home / "studies").glob("*.json"))
    if not files:
        raise UserError(f"{home} has no studies: it is no scale's results; name one, for example results/laptop")
    rows: dict[tuple[str, str, str], Row] = {}
    seen: set[Path] = set()
    for study in map(read_file, files):
        runs = [(b.task, b.model, "base", "base", base_folder(home, b.task, b.model)) for b in study.bases]
        for c in study.cells:
            method = c.run.parent.name  # of a tuned run, with what was chosen
            runs.append((c.task, c.model, method, f"seed{c.seed}", run_folder(home, c.task, c.model, method, c.seed)))
        for task, model, method, seed, run in runs:
            if run not in seen:
                seen.add(run)
                row = rows.setdefault((task, model, method), Row(task, model, method))
                log = Path(task, model, f"{seed}.log") if method == "base" else Path(task, model, method, f"{seed}.log")
                _count(row, run, seed, home / "logs", log, times)
    return list(rows.values())


def _count(row: Row, run: Path, seed: str, logs: Path, log: Path, times: Times) -> None:
    group = (row.task, row.model, row.method)
    kinds = ("train" if row.method != "base" else "base", "evaluate")
    row.runs += 1
    row.done += (run / SUMMARY).exists()
    row.evaluated += (run / "eval" / SUMMARY).exists()
    benchmarks = content_of(run / "eval" / SUMMARY).get("benchmarks") or {}
    accuracies = [benchmark["accuracy"] for benchmark in benchmarks.values()]
    row.accuracies += [sum(accuracies) / len(accuracies)] if accuracies else []
    for kind, folder in zip(kinds, (run, run / "eval"), strict=True):
        if (folder / SUMMARY).exists():
            times.add(kind, group, took(folder) or 0.0)
        elif is_running(folder, logs / kind / log):
            row.now.append(f"{kind} {seed}: {last_line(logs / kind / log)}")


def is_running(folder: Path, log: Path) -> bool:
    """Return whether the process that last locked a job's folder is at work, without touching the lock."""
    words = ""
    with contextlib.suppress(OSError):
        words = (folder / ".lock").read_text(encoding="utf-8", errors="replace")
    match = re.fullmatch(r"process (\d+) on (.*)", words.strip())
    if match is None:
        return False
    if match[2] != platform.node():
        return log.exists() and time.time() - log.stat().st_mtime < FRESH
    try:
        os.kill(int(match[1]), 0)  # asks, sends nothing
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def last_line(log: Path) -> str:
    """Return the last line of a log without control characters; "" where there is none."""
    try:
        with open(log, "rb") as handle:
            handle.seek(max(0, log.stat().st_size - TAIL))
            lines = handle.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return ""
    return re.sub(r"[\x00-\x1f\x7f-\x9f]", " ", next((line for line in reversed(lines) if line.strip()), "")).strip()


def table(home: Path) -> Table:
    """Return the table of this moment."""
    from rich.table import Table
    from rich.text import Text

    times = Times()
    rows = rows_of(home, times)
    done, count = sum(row.done + row.evaluated for row in rows), 2 * sum(row.runs for row in rows)
    waiting: dict[tuple[str, tuple[str, ...]], int] = {}
    for row in rows:
        group = (row.task, row.model, row.method)
        waiting["base" if row.method == "base" else "train", group] = row.runs - row.done
        waiting["evaluate", group] = row.runs - row.evaluated
    rest = left([0.0] * sum(len(row.now) for row in rows), waiting, times)
    shown = Table(title=Text(f"{home}: {done} of {count} runs and evaluations done, {rest}"), title_justify="left")
    for name in ("Task", "Model", "Method", "Runs", "Evaluated", "Accuracy %", "Now"):
        shown.add_column(name, justify="right" if name in ("Runs", "Evaluated", "Accuracy %") else "left")
    for row in rows:
        accuracy = text.number(100 * sum(row.accuracies) / len(row.accuracies)) if row.accuracies else ""
        cells = [row.task, row.model, row.method, f"{row.done}/{row.runs}", f"{row.evaluated}/{row.runs}", accuracy]
        shown.add_row(*map(Text, [*cells, "\n".join(row.now)]))
    return shown


def watch(home: Path, once: bool = False, every: float = 5.0) -> None:
    """Show a scale's results, again every ``every`` seconds until Ctrl-C. once: print the table and end."""
    from rich.console import Console
    from rich.live import Live

    if once:
        console = Console()
        Console(width=max(console.width, 140) if not console.is_terminal else None).print(table(home))
        return
    with contextlib.suppress(KeyboardInterrupt), Live(table(home), auto_refresh=False) as live:
        while True:
            time.sleep(max(0.5, every))
            live.update(table(home), refresh=True)
