"""``bapo watch``: one table of a scale's runs, a row a method: what is done, what runs, and how far it is.

It reads study files, summaries and the ends of logs, and writes nothing.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import Console
from rich.table import Table
from rich.text import Text

from analysis.study import load
from analysis.text import number
from bapo.errors import UserError
from bapo.store.files import SUMMARY, read_json

#: a job without a summary counts as running while its log is younger: seconds
FRESH = 600.0
#: bytes of a log that are read, from its end
TAIL = 1 << 12


def rows_of(home: Path) -> pd.DataFrame:
    """Return a row a method on a task and model, of every run that the studies ask for.

    runs, done, evaluated: how many; accuracy: mean over runs of the mean over benchmarks; now: what running jobs log.
    Raises UserError where the folder is no scale's results.
    """
    files = sorted((home / "studies").glob("*.json"))
    if not files:
        raise UserError(f"{home} has no studies: it is no scale's results; name one, for example results/laptop")
    studies = [*map(load, files)]
    places = [b.run.parts[-3:] for s in studies for b in s.bases] + [c.run.parts[-4:] for s in studies for c in s.cells]
    rows = pd.DataFrame([_run(home, place) for place in dict.fromkeys(places)])
    kept = {name: (name, "sum") for name in ("done", "evaluated", "now")} | {"accuracy": ("accuracy", "mean")}
    return rows.groupby(["task", "model", "method"], sort=False).agg(runs=("done", "size"), **kept)


def _run(home: Path, place: Sequence[str]) -> dict[str, Any]:
    """Return what is known of one run. place: task, model, method and seed; the folder of a tuned run says more."""
    names = dict(zip(("task", "model", "method"), place, strict=False))
    run, log, ended = home.joinpath(*place), Path(*place).with_suffix(".log"), home.joinpath(*place, "eval", SUMMARY)
    found = read_json(ended)["benchmarks"] if ended.exists() else {}
    accuracy = sum(b["accuracy"] for b in found.values()) / len(found) if found else math.nan
    made = "train" / log if len(place) > 3 else Path("base", place[0], f"{place[1]}.log")
    jobs = (("train", run / SUMMARY, home / "logs" / made), ("evaluate", ended, home / "logs" / "evaluate" / log))
    running = [(kind, said) for kind, summary, said in jobs if not summary.exists() and said.exists()]
    now = [f"{k} {place[-1]}: {last_line(p)}\n" for k, p in running if time.time() - p.stat().st_mtime < FRESH]
    done = {"done": (run / SUMMARY).exists(), "evaluated": ended.exists()}
    return names | done | {"accuracy": accuracy, "now": "".join(now)}


def last_line(log: Path) -> str:
    """Return the last line of a log without control characters; "" where it is empty."""
    with open(log, "rb") as handle:
        handle.seek(max(0, log.stat().st_size - TAIL))
        lines = handle.read().decode("utf-8", "replace").splitlines()
    return re.sub(r"[\x00-\x1f\x7f-\x9f]", " ", next((line for line in reversed(lines) if line.strip()), "")).strip()


def watch(home: Path) -> None:
    """Print the table of a scale's results."""
    rows = rows_of(home)
    done, count = rows["done"].sum() + rows["evaluated"].sum(), 2 * rows["runs"].sum()
    shown = Table(title=Text(f"{home}: {done} of {count} runs and evaluations done"), title_justify="left")
    for name in ("Task", "Model", "Method", "Runs", "Evaluated", "Accuracy %", "Now"):
        shown.add_column(name, justify="right" if name in ("Runs", "Evaluated", "Accuracy %") else "left")
    for names, row in rows.iterrows():
        numbers = [f"{row['done']}/{row['runs']}", f"{row['evaluated']}/{row['runs']}", number(100 * row["accuracy"])]
        shown.add_row(*map(Text, [*names, *numbers, row["now"].strip()]))
    console = Console()
    Console(width=max(console.width, 140) if not console.is_terminal else None).print(shown)
