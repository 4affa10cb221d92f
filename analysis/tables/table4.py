"""Table 4 of the paper, data sets: what the runs trained and were tested on, counted in the problem files."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analysis import paper, reading, text
from analysis.page import Page, Table, at_scale
from analysis.study import Block, Study
from bapo.errors import UserError
from bapo.store.files import SUMMARY, read_json, read_table, verify_files

#: written beside real sets by the data job: sources, rows read, rows removed
CLEANING = "cleaning.json"
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
#: columns of table4_overlap.csv; same_form is empty where problems have no form
OVERLAP = ["task", "first", "second", "rows_of_second", "same_id", "same_content", "same_form"]


@dataclass(frozen=True)
class Split:
    """One problem file, in its order. prompts: the users' messages; contents: a prompt and its diagrams, to compare;
    forms: what is asked, whatever it looks like, of a task that tells these apart; else ().
    """

    name: str
    ids: tuple[str, ...]
    prompts: tuple[str, ...]
    contents: tuple[str, ...]
    forms: tuple[str, ...] = ()

    @property
    def repeated(self) -> tuple[int, int]:
        """Return rows whose id, and rows whose content, stood in the file before."""
        return len(self.ids) - len(set(self.ids)), len(self.contents) - len(set(self.contents))

    @property
    def lengths(self) -> tuple[int, int]:
        """Return the shortest and the longest prompt in characters."""
        sizes = [len(p) for p in self.prompts]
        return (min(sizes), max(sizes)) if sizes else (0, 0)


def data_folder(block: Block, study: Study) -> Path:
    """``results/<scale>/<task>/data`` of the block's runs. Raises UserError where it is not finished."""
    run = next(iter(block.methods.values()))[0].run
    folder = run.parents[2] / "data" if len(run.parts) > 3 else run / "data"
    if not (folder / SUMMARY).exists():
        raise UserError(f"{folder}: no problems of {block.task_title} ({SUMMARY} is missing); `{study.command}`")
    return folder


def splits(folder: Path) -> dict[str, Split]:
    """Return every problem file of a data folder, checked against its summary's fingerprints."""
    files = verify_files(folder)["files"]
    return {Path(name).stem: _split(folder / name) for name in files if name.endswith(".parquet")}


def _split(path: Path) -> Split:
    """Read prompts and persistent ids from a file in verl's schema."""
    from pyarrow import parquet

    names = parquet.read_schema(path).names
    more = [name for name in ("images", "form") if name in names]
    frame = read_table(path, columns=["prompt", "extra_info", *more])
    prompts = ["\n".join(m["content"] for m in messages if m["role"] == "user") for messages in frame["prompt"]]
    ids = [str(info["id"]) for info in frame["extra_info"]]
    marks = [_digest(row) for row in frame["images"]] if "images" in more else [""] * len(frame)
    contents = tuple(p + m for p, m in zip(prompts, marks, strict=True))
    return Split(path.stem, tuple(ids), tuple(prompts), contents, tuple(frame["form"]) if "form" in more else ())


def _digest(images: Any) -> str:
    """Return the digest of a row's diagrams; "" for none."""
    content = b"".join(i.get("bytes") or str(i.get("path")).encode() for i in images)
    return hashlib.sha256(content).hexdigest() if content else ""


def _shared(first: Sequence[str], second: Sequence[str]) -> int:
    """Return how many entries of the second stand in the first one too."""
    known = set(first)
    return sum(entry in known for entry in second)


# ------------------------------------------------------------------------------------------------ one task


def sources(config: dict[str, Any]) -> dict[str, str]:
    """Split -> where its problems come from: the hub's set and its commit, or our generator and its seed."""
    data = config.get("data", {})
    sizes = data.get("split_sizes", {})
    if data.get("source") != "hub":
        return dict.fromkeys(sizes, f"generated (seed {data.get('seed', text.MISSING)})")
    hub, origins = data.get("hub", {}), {}
    for split in sizes:
        entry = hub.get(split) or hub.get("train") or {}
        commit = str(entry["revision"])[:12] if entry.get("revision") else "newest at first use"
        origins[split] = f"{entry.get('repository', text.MISSING)} @ {commit}"
    return origins


def removed(folder: Path) -> tuple[dict[str, str], list[str]]:
    """Return what the cleaning report says: rows removed of each split, and its decisions; empty for generated data."""
    path = folder / CLEANING
    if not path.exists():
        return {}, []
    content = json.loads(path.read_text(encoding="utf-8"))
    dropped = {}
    for split, counts in (content.get("splits") or {}).items():
        dropped[split] = f"{counts['duplicates_dropped']} duplicates, {counts['overlaps_dropped']} in another split"
    for split, read in (content.get("rows") or {}).items():
        kept = content.get("problems", {}).get(split)
        dropped[split] = text.MISSING if kept is None else f"{read - kept} of {read} rows"
    decisions = [f"{key}: {value}" for key, value in (content.get("decisions") or {}).items()]
    return dropped, decisions


def rows(block: Block, study: Study) -> list[dict[str, Any]]:
    """Return one row a split: what is there, beside the paper's set whose part it plays."""
    folder = data_folder(block, study)
    first = next(iter(block.methods.values()))[0]
    config = reading.config(first, study)
    counts = read_json(folder / SUMMARY).get("problems", {})
    wanted, dropped = sources(config), removed(folder)[0]
    printed = {e["split"]: e for e in paper.read("table4")["sets"] if e["task"] == block.task}
    order = list(config.get("data", {}).get("split_sizes", {})) or None
    every = splits(folder)
    result = []
    for name in sorted(every, key=lambda n: order.index(n) if order and n in order else 99):
        split = every[name]
        entry = printed.get(block.roles.get(name, name))
        low, high = split.lengths
        inside = counts[name] if isinstance(counts.get(name), dict) else {}
        result.append(
            {
                "task": block.task,
                "split": name,
                "rows": len(split.ids),
                "repeated_ids": split.repeated[0],
                "repeated_contents": split.repeated[1],
                "shortest_prompt": low,
                "longest_prompt": high,
                "kinds": ", ".join(f"{k}: {v}" for k, v in inside.items()),
                "removed": dropped.get(name, ""),
                "source": wanted.get(name, text.MISSING),
                "paper_set": entry["title"] if entry else "",
                "paper": entry["printed"] if entry else "",
                "paper_count": entry["count"] if entry else None,
                "remark": entry.get("remark", "") if entry else "",
            }
        )
    return result


def overlaps(block: Block, study: Study) -> list[dict[str, Any]]:
    """Return every ordered pair of splits that share an id, a content or a form, and every split against training."""
    every = list(splits(data_folder(block, study)).values())
    result = []
    for i, first in enumerate(every):
        for second in every[i + 1 :]:
            a, b = (second, first) if second.name == TRAINED_ON else (first, second)
            same_form = _shared(a.forms, b.forms) if a.forms and b.forms else None
            counts = (_shared(a.ids, b.ids), _shared(a.contents, b.contents), same_form)
            if any(counts) or a.name == TRAINED_ON:
                values = (block.task, a.name, b.name, len(b.ids), *counts)
                result.append(dict(zip(OVERLAP, values, strict=True)))
    return result


# ------------------------------------------------------------------------------------------------ files


def _tables(block: Block, study: Study, splits_of: list[dict[str, Any]], pairs: list[dict[str, Any]]) -> list[Table]:
    cells = [[form.format(**r) for form in COLUMNS.values()] for r in splits_of]
    below = [f"{r['split']}, {r['paper_set']}: {r['remark']}." for r in splits_of if r["remark"]]
    decisions = removed(data_folder(block, study))[1]
    below += [f"Decisions on the rows of the real sets: {', '.join(decisions)}."] if decisions else []
    tables = [Table(f"{block.task_title}: splits", list(COLUMNS), cells, "lrrrrlllll", below)]
    shared = [
        [p["first"], p["second"], *(text.MISSING if p[k] is None else f"{p[k]:,}" for k in OVERLAP[3:])] for p in pairs
    ]
    header = [
        "In",
        "Also in",
        "Rows of the second",
        "With an id of the first",
        "With a content of it",
        "With a form of it",
    ]
    return [*tables, Table(f"{block.task_title}: overlap between splits", header, shared, "llrrrr")]


def notes(study: Study) -> list[str]:
    return [
        "Counted in the parquet files that the runs read. Repeated: rows whose id, or whose content (the prompt with "
        "its diagrams), stood in the file before.",
        "Overlap: rows of the second split whose id, content or form (of a diagram: kind, angles and question) is in "
        "the first; pairs without any are left out, but for train. Of real sets cleaning.json counts it.",
        f"The paper's counts: {paper.read('table4')['source']}; a stand-in stands beside the set whose part it plays.",
        *([study.note] if study.note else []),
    ]


def write(study: Study, out: Path) -> list[Path]:
    """table4.csv, table4_overlap.csv, table4.md and table4.tex; one block a task, whichever models trained on it."""
    import pandas as pd

    blocks = list({b.task: b for b in reversed(study.blocks)}.values())[::-1]
    splits_of, pairs = [rows(b, study) for b in blocks], [overlaps(b, study) for b in blocks]
    tables = [t for b, r, p in zip(blocks, splits_of, pairs, strict=True) for t in _tables(b, study, r, p)]
    page = Page(at_scale("Table 4: data sets as loaded", study.scale), tables, notes(study))
    shared = pd.DataFrame([p for part in pairs for p in part], columns=OVERLAP)
    return page.write(out, "table4", pd.DataFrame([r for part in splits_of for r in part]), overlap=shared)
