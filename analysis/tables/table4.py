"""Table 4 of the paper, data sets: what the runs trained and were tested on, counted in the problem files."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from itertools import combinations
from pathlib import Path
from typing import Any

import pandas as pd

from analysis import paper, reading, text
from analysis.page import Page, Table
from analysis.study import Block, StudyFile
from bapo.errors import UserError
from bapo.store.files import SUMMARY, read_json, read_table, verify_files

#: the data job's report beside real sets: the rows that it read of each split, and the problems that it kept
REPORT = "cleaning.json"
#: header of the Markdown table -> a cell, from a row of the CSV file
COLUMNS = {
    "Split": "{split}",
    "Rows": "{rows:,}",
    "Repeated ids": "{repeated_ids:,}",
    "Repeated contents": "{repeated_contents:,}",
    "Prompt, characters": "{shortest_prompt} to {longest_prompt}",
    "Removed": "{removed}",
    "Kinds": "{kinds}",
    "Source": "{source}",
    "Paper's set": "{paper_set}",
    "Paper": "{paper}",
}
#: the split whose overlap with any other one is shown, even where there is none
TRAINED_ON = "train"
#: columns of table4_overlap.csv, and what the page calls them; same_form is empty where problems have no form
OVERLAP = {
    "first": "In",
    "second": "Also in",
    "rows_of_second": "Rows of the second",
    "same_id": "With an id of the first",
    "same_content": "With a content of it",
    "same_form": "With a form of it",
}


def data_folder(block: Block, study: StudyFile) -> Path:
    """Return the folder of the problems of a block's runs: the task's, or that of a model whose variant changes them.

    Raises UserError where it is not finished.
    """
    run = next(iter(block.methods.values()))[0].run
    places = [parent / "data" for parent in run.parents[1:3]] if len(run.parts) > 3 else [run / "data"]
    folder = next((place for place in places if (place / SUMMARY).exists()), places[-1])
    if not (folder / SUMMARY).exists():
        raise UserError(f"{folder}: no problems of {block.task_title} ({SUMMARY} is missing); `{study.command}`")
    return folder


def splits(folder: Path) -> dict[str, pd.DataFrame]:
    """Return every problem file of a data folder. Raises UserError where one is not what its summary sealed.

    Columns: id; prompt: the users' messages; content: a prompt and its diagrams, to compare; form: what is asked,
    whatever it looks like, of a task that distinguishes these.
    """
    files = verify_files(folder)["files"]
    return {Path(name).stem: _split(folder / name) for name in files if name.endswith(".parquet")}


def _split(path: Path) -> pd.DataFrame:
    """Read a file in verl's schema."""
    frame = read_table(path)
    users = frame["prompt"].map(lambda messages: "\n".join(m["content"] for m in messages if m["role"] == "user"))
    form_columns = frame[["form"]] if "form" in frame else frame[[]]
    content = users + frame["images"].map(_digest) if "images" in frame else users
    return form_columns.assign(id=frame["extra_info"].map(lambda info: str(info["id"])), prompt=users, content=content)


def _digest(images: Any) -> str:
    """Return the digest of a row's diagrams; "" for none."""
    content = b"".join(i.get("bytes") or str(i.get("path")).encode() for i in images)
    return hashlib.sha256(content).hexdigest() if content else ""


def source(data: dict[str, Any], split: str) -> str:
    """Return where a split's problems come from: the hub's set and its commit, or our generator and its seed."""
    if split not in data.get("split_sizes", {}):
        return text.MISSING
    if data.get("source") != "hub":
        return f"generated (seed {data.get('seed', text.MISSING)})"
    hub = data.get("hub", {})
    entry = hub.get(split) or hub.get(TRAINED_ON) or {}
    commit = str(entry["revision"])[:12] if entry.get("revision") else "newest at first use"
    return f"{entry.get('repository', text.MISSING)} @ {commit}"


def removed(folder: Path) -> dict[str, str]:
    """Return how many rows of each split the cleaning of a real set has left out; {} for generated data."""
    report = read_json(folder / REPORT) if (folder / REPORT).exists() else {"rows": {}, "problems": {}}
    problems = report["problems"]
    return {s: f"{n - problems[s]} of {n} rows" if s in problems else text.MISSING for s, n in report["rows"].items()}


def rows(block: Block, every: Mapping[str, pd.DataFrame], study: StudyFile) -> Iterator[dict[str, Any]]:
    """Yield one row a split: what is there, beside the paper's set whose part it plays."""
    folder = data_folder(block, study)
    data = reading.config(next(iter(block.methods.values()))[0]).get("data", {})
    counts, dropped = read_json(folder / SUMMARY).get("problems", {}), removed(folder)
    printed = {e["split"]: e for e in paper.read("table4")["sets"] if e["task"] == block.task}
    order = [name for name in data.get("split_sizes", {}) if name in every]
    for name in dict.fromkeys([*order, *every]):
        split, entry = every[name], printed.get(block.roles.get(name, name), {})
        sizes = split["prompt"].str.len()
        inside = counts[name] if isinstance(counts.get(name), dict) else {}
        yield {
            "task": block.task,
            "split": name,
            "rows": len(split),
            "repeated_ids": split["id"].duplicated().sum(),
            "repeated_contents": split["content"].duplicated().sum(),
            "shortest_prompt": min(sizes, default=0),
            "longest_prompt": max(sizes, default=0),
            "kinds": ", ".join(f"{k}: {v}" for k, v in inside.items()),
            "removed": dropped.get(name, ""),
            "source": source(data, name),
            "paper_set": entry.get("title", ""),
            "paper": entry.get("printed", ""),
            "paper_count": entry.get("count"),
            "remark": entry.get("remark", ""),
        }


def overlaps(block: Block, every: Mapping[str, pd.DataFrame]) -> Iterator[dict[str, Any]]:
    """Yield every pair of splits that share an id, a content or a form, and every split against training."""
    for pair in combinations(every, 2):
        first, second = sorted(pair, key=lambda name: name != TRAINED_ON)
        a, b = every[first], every[second]
        same = {f"same_{c}": b[c].isin(a[c]).sum() if c in a and c in b else None for c in ("id", "content", "form")}
        if any(same.values()) or first == TRAINED_ON:
            yield {"task": block.task, "first": first, "second": second, "rows_of_second": len(b), **same}


def write(study: StudyFile, out: Path) -> list[Path]:
    """Write table4.csv, table4_overlap.csv, table4.md and .tex, with a task once, whichever models trained on it.

    Raises UserError as :func:`data_folder` and :func:`splits`.
    """
    tables, every, pairs = [], list[dict[str, Any]](), list[dict[str, Any]]()
    for block in list({b.task: b for b in reversed(study.blocks)}.values())[::-1]:
        read = splits(data_folder(block, study))
        numbers, both = list(rows(block, read, study)), list(overlaps(block, read))
        below = [f"{r['split']}, {r['paper_set']}: {r['remark']}." for r in numbers if r["remark"]]
        cells = [[form.format(**r) for form in COLUMNS.values()] for r in numbers]
        tables.append(Table(f"{block.task_title}: splits", list(COLUMNS), cells, "lrrrrlllll", below))
        cells = [
            [p["first"], p["second"], *(text.MISSING if p[k] is None else f"{p[k]:,}" for k in list(OVERLAP)[2:])]
            for p in both
        ]
        tables.append(Table(f"{block.task_title}: overlap between splits", list(OVERLAP.values()), cells, "llrrrr"))
        every, pairs = every + numbers, pairs + both
    notes = text.words("table4", source=paper.read("table4")["source"])
    page = Page.of(study, "Table 4: data sets as loaded", tables, notes)
    return page.write(out, "table4", every, overlap=pd.DataFrame(pairs, columns=["task", *OVERLAP]))
