"""What a target of the workflow ends with: its rows, and how many of its numbers are those of the published run."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from analysis import text
from analysis.exchange import compare, evidence
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

    Where a task has several models, a line names its own, too. Of a task with differences that are pooled over base
    models only the pooled rows are shown, which have no percent. Rows over tasks, which have neither, are left out.
    """
    if not table.exists():
        return ""
    with table.open(encoding="utf-8", newline="") as file:
        averages = [r for r in csv.DictReader(file) if r.get("benchmark") == AVERAGE and (r["mean"] or r["difference"])]
    pooled = [row for row in averages if not row["mean"]]
    pooled_tasks = {row["task"] for row in pooled}
    shown = [row for row in averages if row in pooled or row["task"] not in pooled_tasks]
    models = Counter(task for task, _ in {(row["task"], row.get("model")) for row in shown})
    # a base model has another title for each task and model; a pooled row has the reference of all its models
    titles = {key: _title(row) for row in averages for key in (_key(row, row["method"]), (row["task"], row["method"]))}
    cells = []
    for row in shown:
        low, mean, high, lead = (float(row.get(key) or "nan") for key in ("low", "mean", "high", "difference"))
        accuracy = "" if row in pooled else text.percent(mean, low, high)
        against = ""
        if lead == lead:
            of_all = titles.get((row["task"], row["reference"]), row["reference"])
            other = titles.get(_key(row, row["reference"]), of_all)
            against = f"{text.signed(lead)} against {other}, {row['verdict']}"
        model = row["model"] if models[row["task"]] > 1 else ""
        cells.append((row["task"], model, _title(row), accuracy, against))
    if not cells:
        return ""
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ["  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True) if w).rstrip() for line in cells]
    kinds = ["Accuracy in percent, averaged over benchmarks, with 95% interval"] * (len(shown) > len(pooled))
    kinds += ["points, pooled over base models"] * bool(pooled)
    kind = "; without it ".join(kinds)
    return "\n".join([f"{kind[0].upper()}{kind[1:]} ({table}):", *lines])


def _title(row: Mapping[str, str]) -> str:
    return (row.get("title") or row["method_title"]).lstrip("'+")  # write_csv quotes a sign


def _key(row: Mapping[str, str], method: str) -> tuple[str, str, str]:
    return row["task"], row.get("model", ""), method


def published(home: Path, study: str) -> str:
    """Compare with the published run of a study; "" without one, or where ``home`` has none of its numbers."""
    folder = suite_folder() / "evidence" / home.name
    files = [file for file in folder.glob(f"{study}*.zip") if evidence.holds(file.stem, study)]
    if not (files and (home / "studies" / f"{study}.json").exists()):
        return ""
    with TemporaryDirectory() as unpacked, suppress(UserError):
        for file in files:
            evidence.unpack(file, Path(unpacked))
        return f"Beside the published run, {compare.counted(compare.compare(Path(unpacked), home))}."
    return ""
