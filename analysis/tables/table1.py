"""Table 1 of the paper from finished runs: table1.csv (long), .md, .tex, table1_differences.csv and a forest plot.

(a) mathematics, (b) planning and visual geometry side by side; in each, blocks by model. Accuracies are in percent, as
the paper prints them; a row is a method, averaged over its training seeds, with the paper's own row in italics below it
where it has one. A column is headed by our benchmark and, where that is a stand-in, by the paper's benchmark.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path

from analysis import paper, results, text
from analysis.figures import overview
from analysis.page import RULE, Page, PageCell, Table
from analysis.results import AVERAGE, BASE, ByMethod
from analysis.study import Block, StudyFile, row_order
from analysis.tables import comparison, table1_words

#: (title, tasks from left to right); a task that the paper does not have gets a part of its own
PARTS = (
    ("(a) Mathematics benchmarks", ("mathematics",)),
    ("(b) Planning and visual geometry benchmarks", ("countdown", "geometry")),
)
#: titles of the columns after the benchmarks
AVERAGES, COSTS = ("Avg", "SE", "% of GRPO's gain"), ("Rollouts", "Type")
#: columns of the frame that table1.csv lacks, and those that have another name in it
LEFT_OUT = r"^(result|against|reference|difference.*|over_base.*|paired_seeds|p|p_holm|margin|verdict|of_steps)$"
NAMES = {"title": "method_title", "kind": "type"}


def write(study: StudyFile, out: Path) -> list[Path]:
    """Write the files that the module's text lists. Raises UserError naming a run that is missing or broken."""
    frame = results.frame(study)
    pairs = results.pairs(frame)
    replays = table1_words.replays(study)
    frame[table1_words.REPLAYS] = [replays.get(key, (0.0, 0.0, 0.0)) for key in results.keys(frame)]
    frame["mark"] = results.marks(frame, pairs)
    rows = {block: results.by_method(frame, block) for block in study.blocks}
    below = {block: table1_words.sentences(block, of, pairs) for block, of in rows.items()}
    across, _ = comparison.over_tasks(rows, study.reference)
    page = Page.of(study, "Table 1", [*parts(rows, below), *across], table1_words.notes(rows))
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
    named = {task for _, tasks in PARTS for task in tasks}
    others = [(of[0].task_title, (task,)) for task, of in by_task.items() if task not in named]
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
    named = [(title, paper.stands_for(block, name)) for name, title in block.benchmarks]
    return [("Method", ""), *named, *((title, "") for title in (*AVERAGES, *COSTS))]


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
            shown = [printed.printed(method, column) or text.MISSING for column in columns]
            shown.insert(-2, text.signed(row["paper_share"]))
            title = f"paper: {printed.title}" if method == BASE else "paper"
            theirs = [PageCell(each, paper=True) for each in (title, *shown)]
        cells[method] = (ours, theirs)
    return cells
