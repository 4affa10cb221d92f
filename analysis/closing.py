"""What a target of the workflow ends with: its rows, and how many of its numbers are those of the published run."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

from analysis import text
from analysis.exchange import compare
from analysis.products import MAIN, compared_file
from analysis.results import AVERAGE
from bapo.errors import UserError
from bapo.experiments.places import suite_folder


def closing(home: Path, studies: Sequence[str]) -> str:
    """Return the end of studies whose tables are in ``home``, a scale's folder; "" where there is none."""
    tables = {study: table_of(home, study) for study in studies}
    parts = [(rows(table), published(home, study)) for study, table in tables.items() if table.exists()]
    return "\n".join(part for pair in parts for part in pair if part)


def table_of(home: Path, study: str) -> Path:
    """Return the file with a study's rows."""
    return home / "tables" / f"{MAIN if study == MAIN else compared_file(study)}.csv"


def rows(table: Path) -> str:
    """Return a line for each average of a table's CSV: task, method, percent and difference; "" if there is none.

    Where a difference is pooled over base models, only the pooled rows, which have no percent. Rows over tasks, which
    have neither, are left out.
    """
    if not table.exists():
        return ""
    with table.open(encoding="utf-8", newline="") as file:
        averages = [r for r in csv.DictReader(file) if r.get("benchmark") == AVERAGE and (r["mean"] or r["difference"])]
    # write_csv quotes a sign; a base model has another title in each task
    titles = {(r["task"], r["method"]): (r.get("title") or r["method_title"]).lstrip("'+") for r in averages}
    pooled = [row for row in averages if not row["mean"]]
    cells = []
    for row in pooled or averages:
        low, mean, high, lead = (float(row.get(key) or "nan") for key in ("low", "mean", "high", "difference"))
        accuracy = "" if row in pooled else text.percent(mean, low, high)
        against = ""
        if lead == lead:
            other = titles.get((row["task"], row["reference"]), row["reference"])
            against = f"{text.signed(lead)} against {other}, {row['verdict']}"
        cells.append((row["task"], titles[row["task"], row["method"]], accuracy, against))
    if not cells:
        return ""
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ["  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True) if w).rstrip() for line in cells]
    alone = "Accuracy in percent, averaged over benchmarks, with 95% interval"
    kind = "Points, pooled over base models" if pooled else alone
    return "\n".join([f"{kind} ({table}):", *lines])


def published(home: Path, study: str) -> str:
    """Compare with the published run of a study; "" where none is published, or nothing in it is in ``home``."""
    file = suite_folder() / "evidence" / home.name / f"{study}.zip"
    if not file.exists():
        return ""
    try:
        return f"Beside the published run, {compare.counted(compare.compare(file, home))}."
    except UserError:
        return ""
