"""Table 1 of the paper from finished runs: table1.csv (long), .md, .tex, table1_differences.csv and a forest plot.

(a) mathematics, (b) planning and visual geometry side by side; in each, blocks by model. Accuracies are in percent, as
the paper prints them; a row is a method, averaged over its training seeds, with the paper's own row in italics below it
where it has one. A column is headed by our benchmark and, where that is a stand-in, by the paper's benchmark.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path

import numpy as np
import pandas as pd

from analysis import paper, reading, results, text
from analysis.figures import overview
from analysis.page import RULE, Page, PageCell, Table
from analysis.results import AVERAGE, BASE, ByMethod, Row
from analysis.study import Block, StudyFile, StudyRun, plain, row_order
from analysis.tables import comparison
from bapo.store.files import GROUPS

#: (title, tasks from left to right); a task that the paper does not have gets a part of its own
PARTS = (
    ("(a) Mathematics benchmarks", ("mathematics",)),
    ("(b) Planning and visual geometry benchmarks", ("countdown", "geometry")),
)
#: titles of the columns after the benchmarks
AVERAGES, COSTS = ("Avg", "SE", "% of GRPO's gain"), ("Rollouts", "Type")
#: columns of the frame that table1.csv lacks, and its names of others
LEFT_OUT = r"^(result|against|reference|difference.*|over_base.*|paired_seeds|p|p_holm|margin|verdict|of_steps)$"
NAMES = {"title": "method_title", "kind": "type"}
#: (a, b): the comparisons that the paper's claims rest on, one sentence each below the table
CLAIMS = (("bapo", "grpo"), ("bapo", "dapo"))
#: methods whose gain over the base is stated
LEARNERS = ("grpo", "dapo")
#: columns about replay: percent of the trained responses that were stored before the step or are an expert's, steps
#: with such a response, and all steps, which are 0 where no run says
REPLAYS = ["replayed", "replaying_steps", "of_steps"]


def write(study: StudyFile, out: Path) -> list[Path]:
    """Write the files that the module's text lists. Raises UserError naming a run that is missing or broken."""
    frame = results.frame(study)
    pairs = results.pairs(frame)
    replayed = replays(study)
    frame[REPLAYS] = [replayed.get(key, (0.0, 0.0, 0.0)) for key in results.keys(frame)]
    frame["mark"] = results.marks(frame, pairs)
    rows = {block: results.by_method(frame, block) for block in study.blocks}
    below = {block: sentences(block, of, pairs) for block, of in rows.items()}
    across, _ = comparison.over_tasks(rows, study.reference)
    page = Page.of(study, "Table 1", [*parts(rows, below), *across], notes(rows))
    numbers = frame.drop(columns=list(frame.filter(regex=LEFT_OUT))).rename(columns=NAMES)
    files = page.write(out, "table1", numbers, differences=results.mirrored(pairs))
    return [*files, *overview.write([study], out, "table1_forest")]


def parts(rows: Mapping[Block, ByMethod], below: Mapping[Block, Sequence[str]]) -> Iterator[Table]:
    """Yield a table of every part that has runs, the columns of its tasks beside each other.

    below: sentences that stand below the table.
    """
    by_task: dict[str, list[Block]] = {}
    for block in rows:
        by_task.setdefault(block.task, []).append(block)
    of_paper = {task for _, tasks in PARTS for task in tasks}
    others = [(blocks[0].task_title, (task,)) for task, blocks in by_task.items() if task not in of_paper]
    for title, tasks in (*PARTS, *others):
        if halves := [by_task[task] for task in tasks if task in by_task]:  # a half is a task's blocks, one a model
            headers = [_header(half[0]) for half in halves]
            lines: list[Sequence[str | PageCell]] = []
            for blocks in zip_longest(*halves):
                cells = [_cells(block, rows[block]) if block else {} for block in blocks]
                lines += [*([RULE] if lines else []), *_lines(cells, [len(header) for header in headers])]
            yield Table(
                title,
                [name for header in headers for name, _ in header],
                lines,
                " ".join("l" + "r" * (len(header) - 2) + "l" for header in headers),
                {block.title: below[block] for half in halves for block in half},
                [role for header in headers for _, role in header],
                f"{title}: accuracy in percent, with the 95% interval and (small) the spread between seeds.",
            )


def _header(block: Block) -> list[tuple[str, str]]:
    """Return the title of each column, and the paper's where it has another, else ""."""
    benchmarks = [(title, paper.stands_for(block, name)) for name, title in block.benchmarks]
    return [("Method", ""), *benchmarks, *((title, "") for title in (*AVERAGES, *COSTS))]


def _lines(
    halves: Sequence[Mapping[str, Sequence[list[PageCell]]]], widths: Sequence[int]
) -> Iterator[list[str | PageCell]]:
    """Yield our row and the paper's of each method, the halves beside each other; empty where one has no such row."""
    for method in row_order(m for half in halves for m in half):
        for line in zip(*(half.get(method, ([], [])) for half in halves), strict=True):
            if any(line):
                yield [cell for part, width in zip(line, widths, strict=True) for cell in part or [""] * width]


def _cells(block: Block, rows: ByMethod) -> dict[str, tuple[list[PageCell], list[PageCell]]]:
    """Return our row of each method, and the paper's, which is empty where it has none."""
    printed, cells = paper.of_block(block), {}
    for method, of in rows.items():
        row, theirs = of[AVERAGE], list[PageCell]()
        ours = [PageCell(row["title"], mark=text.BOLD if method == BASE else "")]
        for each in of.values():
            spread = text.number(each["seed_sd"], missing="")
            ours.append(PageCell(text.percent(*text.ends(each)), spread, each["mark"]))
        share, rollouts = text.change(*text.ends(row, "share")), text.thousands(row["rollouts"])
        ours += map(PageCell, (text.number(row["se"], 2), share, rollouts, row["kind"] or text.MISSING))
        if printed and printed.row(method):
            columns = [*(each["paper_benchmark"] for each in of.values()), "se", "rollouts", "type"]
            numbers = [printed.printed(method, column) or text.MISSING for column in columns]
            numbers.insert(-2, text.signed(row["paper_share"]))
            title = f"paper: {printed.title}" if method == BASE else "paper"
            theirs = [PageCell(each, paper=True) for each in (title, *numbers)]
        cells[method] = (ours, theirs)
    return cells


# ------------------------------------------------------------------------------------------------ what stands below


def sentences(block: Block, rows: ByMethod, pairs: pd.DataFrame) -> list[str]:
    """Return everything that is said below a part of the table about one block."""
    lines = [_claim(block, rows, pairs, *pair) for pair in CLAIMS if rows.keys() >= {*pair}]
    for method in (m for m in LEARNERS if BASE in rows and m in rows):
        start, row = rows[BASE][AVERAGE]["mean"], rows[method][AVERAGE]
        gains = sorted(100 * mean - start for mean in row["result"].mean(AVERAGE).seed_means)
        ends = " to ".join(map(text.signed, gains[:: max(1, len(gains) - 1)]))  # the worst and the best seed
        lines += text.words("learned", title=row["title"].lstrip("+"), gains=ends)
    replayed = [
        "{} {replayed:.1f}% ({replaying_steps:.0f} of {of_steps:.0f} steps)".format(row["title"].lstrip("+"), **row)
        for row in (of[AVERAGE] for of in rows.values())
        if row["of_steps"]
    ]
    return lines + (text.words("replayed", methods=", ".join(replayed)) if replayed else [])


def _interval(row: Row) -> str:
    return f"{text.interval(*text.ends(row, 'difference')[1:])}, {text.p_value(row['p'])}"


def _verdict(row: Row, a: str, b: str) -> str:
    if row["these_models_differ"] and not row["real"]:
        return "these trained models differ; one training seed does not show that the methods do"
    return f"{a} is significantly {row['verdict']} {b}" if row["real"] else row["verdict"]


def _claim(block: Block, rows: ByMethod, pairs: pd.DataFrame, a: str, b: str) -> str:
    """Return one method against another: difference, interval, p, rollouts; and what the paper reports."""
    differences = {title: results.of_pair(pairs, block, a, b, name) for name, title in results.columns(block)}
    of_average = differences.pop("Avg")
    each = "; ".join(f"{t} {text.signed(d['difference'])} ({_interval(d)})" for t, d in differences.items())
    lead = {"difference": text.signed(of_average["difference"]), "interval": _interval(of_average)}
    ours, theirs = rows[a][AVERAGE], rows[b][AVERAGE]
    titles = {"a": plain(ours["title"]), "b": plain(theirs["title"])}
    verdict, p = _verdict(of_average, **titles), text.p_value(of_average["p_holm"])
    lines = text.words("claim", **titles, verdict=verdict, each=each, **lead, p=p)
    if np.isfinite(ours["rollouts"]) and theirs["rollouts"] > 0:
        amounts = {"ours": text.thousands(ours["rollouts"]), "theirs": text.thousands(theirs["rollouts"])}
        lines += text.words("rollouts", times=ours["rollouts"] / theirs["rollouts"], b=titles["b"], **amounts)
    if np.isfinite(printed := ours["paper"] - theirs["paper"]):
        lines += text.words("paper", points=text.signed(printed, 2), model=ours["paper_model"])
    return " ".join(lines)


# ------------------------------------------------------------------------------------------------ what is replayed


def replays(study: StudyFile) -> dict[tuple[str, ...], tuple[float, ...]]:
    """Return REPLAYS, means over seeds, by task, model and method: of those off policy, and any other that replays.

    A run without recorded groups (imported, or unpacked evidence) says nothing.
    """
    means: dict[tuple[str, ...], tuple[float, ...]] = {}
    for block, (method, cells) in ((b, item) for b in study.blocks for item in b.methods.items()):
        seeds = [seed for cell in cells if (cell.run / GROUPS).exists() and (seed := _of_seed(cell, study))]
        if seeds and (cells[0].kind == "off" or any(share for share, *_ in seeds)):
            means[block.task, block.model, method] = tuple(np.mean(seeds, axis=0).tolist())
    return means


def _of_seed(cell: StudyRun, study: StudyFile) -> tuple[float, float, float] | None:
    groups = reading.table(cell, GROUPS, study)
    if groups.empty or "replayed" not in groups:
        return None
    trained = groups[groups["used"]]
    share = trained["replayed"].sum() / max(1, trained["rewards"].map(len).sum())
    steps = trained.loc[trained["replayed"] > 0, "step"].nunique()
    return 100 * float(share), steps, reading.summary(cell.run, study)["steps"]


# ------------------------------------------------------------------------------------------------ how to read it


def notes(rows: Mapping[Block, ByMethod]) -> list[str]:
    """Return the lines below the table: cells, marks, what was chosen on held-out problems, the paper's part."""
    every = [row for of_method in rows.values() for of in of_method.values() for row in of.values()]
    single = [row for row in every if row["benchmark"] != AVERAGE]
    problems = dict.fromkeys(f"{row['problems']} problems of {row['benchmark_title']}" for row in single)
    fields = {
        "seeds": text.counted([row["seeds"] for row in every if row["method"] != BASE], "training seed"),
        "samples": text.span([row["samples"] for row in single]),
        "problems": ", ".join(problems),
        "level": results.LEVEL,
        "models": ", ".join(filter(None, dict.fromkeys(row["paper_model"] for row in every))),
    }
    tuned = []
    for block in rows:
        methods = [f"{block.plain_title(m)} ({', '.join(c[0].tuned)})" for m, c in block.methods.items() if c[0].tuned]
        tuned += [f"{block.title}: {', '.join(methods)}"] if methods else []
    keys = ["table1", "varies", "tuned" if tuned else "untuned", *(["printed"] if fields["models"] else [])]
    return text.words(*keys, **fields, rows="; ".join(tuned))
