"""``bapo watch``: one table of a scale's runs, a row a method: what is done, what runs, and how far it is.

It reads study files, summaries and the ends of logs, and writes nothing.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from analysis import text
from analysis.study import read_file
from bapo.errors import UserError
from bapo.store.files import SUMMARY, read_json

if TYPE_CHECKING:
    from rich.table import Table

#: a job without a summary counts as running while its log is younger: seconds
FRESH = 600.0
#: bytes of a log that are read, from its end
TAIL = 1 << 12


@dataclass
class Row:
    """All seeds of a method on one task and model. accuracies: means over benchmarks; now: what running jobs log."""

    runs: int = 0
    done: int = 0
    evaluated: int = 0
    accuracies: list[float] = field(default_factory=list)
    now: list[str] = field(default_factory=list)


def rows_of(home: Path) -> dict[tuple[str, str, str], Row]:
    """Return (task, model, method) -> its row, of every run that the studies ask for.

    Raises UserError where the folder is no scale's results.
    """
    files = sorted((home / "studies").glob("*.json"))
    if not files:
        raise UserError(f"{home} has no studies: it is no scale's results; name one, for example results/laptop")
    studies = [*map(read_file, files)]
    places = [b.run.parts[-3:] for s in studies for b in s.bases] + [c.run.parts[-4:] for s in studies for c in s.cells]
    rows: dict[tuple[str, str, str], Row] = {}
    for place in dict.fromkeys(places):
        task, model, method = place[:3]  # the folder of a tuned run says what was chosen, too
        row = rows.setdefault((task, model, method), Row())
        run, log = home.joinpath(*place), Path(*place).with_suffix(".log")
        row.runs += 1
        row.done += (run / SUMMARY).exists()
        row.evaluated += (run / "eval" / SUMMARY).exists()
        found = read_json(run / "eval" / SUMMARY)["benchmarks"] if (run / "eval" / SUMMARY).exists() else {}
        row.accuracies += [sum(b["accuracy"] for b in found.values()) / len(found)] if found else []
        made = home / "logs" / ("train" / log if method != "base" else Path("base", task, f"{model}.log"))
        for kind, folder, said in (("train", run, made), ("evaluate", run / "eval", home / "logs" / "evaluate" / log)):
            if not (folder / SUMMARY).exists() and said.exists() and time.time() - said.stat().st_mtime < FRESH:
                row.now.append(f"{kind} {place[-1]}: {last_line(said)}")
    return rows


def last_line(log: Path) -> str:
    """Return the last line of a log without control characters; "" where it is empty."""
    with open(log, "rb") as handle:
        handle.seek(max(0, log.stat().st_size - TAIL))
        lines = handle.read().decode("utf-8", "replace").splitlines()
    return re.sub(r"[\x00-\x1f\x7f-\x9f]", " ", next((line for line in reversed(lines) if line.strip()), "")).strip()


def table(home: Path) -> Table:
    """Return the table of this moment."""
    from rich.table import Table
    from rich.text import Text

    rows = rows_of(home)
    done, count = sum(row.done + row.evaluated for row in rows.values()), 2 * sum(row.runs for row in rows.values())
    shown = Table(title=Text(f"{home}: {done} of {count} runs and evaluations done"), title_justify="left")
    for name in ("Task", "Model", "Method", "Runs", "Evaluated", "Accuracy %", "Now"):
        shown.add_column(name, justify="right" if name in ("Runs", "Evaluated", "Accuracy %") else "left")
    for names, row in rows.items():
        accuracy = text.number(100 * sum(row.accuracies) / len(row.accuracies)) if row.accuracies else ""
        numbers = [f"{row.done}/{row.runs}", f"{row.evaluated}/{row.runs}", accuracy]
        shown.add_row(*map(Text, [*names, *numbers, "\n".join(row.now)]))
    return shown


def watch(home: Path) -> None:
    """Print the table of a scale's results."""
    from rich.console import Console

    console = Console()
    Console(width=max(console.width, 140) if not console.is_terminal else None).print(table(home))
