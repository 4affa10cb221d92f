"""Table 1 of the paper from finished runs: table1.csv (long), .md, .tex, table1_differences.csv and a forest plot.

(a) mathematics, (b) planning and visual geometry side by side; in each, blocks by model. Accuracies are in percent, as
the paper prints them; a row is a method, averaged over its training seeds, with the paper's own row in italics below it
where it has one. A column is headed by our benchmark and, where that is a stand-in, by the paper's benchmark.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

import numpy as np

from analysis import text
from analysis.page import RULE, Cell, Page, Table, at_scale
from analysis.results import AVERAGE, BASE, Result
from analysis.study import Study, row_order
from analysis.tables.table1 import forest, numbers
from analysis.tables.table1.numbers import Section
from analysis.tables.table1.text import notes, sentences

#: (title, tasks from left to right); a task that the paper does not have gets a part of its own
PARTS = (
    ("(a) Mathematics benchmarks", ("mathematics",)),
    ("(b) Planning and visual geometry benchmarks", ("countdown", "geometry")),
)
#: titles of the columns after the benchmarks
AVERAGES, COSTS = ("Avg", "SE"), ("Rollouts", "Type")


@dataclass(frozen=True)
class Half:
    """The columns of one task; its blocks (one a model) stand below each other."""

    sections: tuple[Section, ...]

    @property
    def header(self) -> list[str]:
        return ["Method", *(title for _, title in self.sections[0].block.benchmarks), *AVERAGES, *COSTS]

    @property
    def roles(self) -> list[str]:
        """Return the paper's title of each column where ours differs, else ""."""
        first = self.sections[0]
        printed = first.paper.columns if first.paper else {}
        roles = []
        for name, title in first.block.benchmarks:
            role = printed.get(first.block.roles.get(name, name), "")
            roles.append("" if title.rstrip(".") == role.rstrip(".") else role)
        return ["", *roles, *[""] * (len(self.header) - 1 - len(roles))]

    @property
    def align(self) -> str:
        return "l" + "r" * (len(self.header) - 2) + "l"


def parts(sections: Sequence[Section]) -> Iterator[tuple[str, list[Half]]]:
    """Yield (title, halves) of every part that has runs."""
    by_task: dict[str, list[Section]] = {}
    for section in sections:
        by_task.setdefault(section.block.task, []).append(section)
    named = {task for _, tasks in PARTS for task in tasks}
    others = [(by_task[task][0].block.task_title, (task,)) for task in by_task if task not in named]
    for title, tasks in (*PARTS, *others):
        if halves := [Half(tuple(by_task[task])) for task in tasks if task in by_task]:
            yield title, halves


def page_table(title: str, halves: Sequence[Half], said: bool = True) -> Table:
    """Return a part of the page. said: with sentences about each block below it."""
    rows: list[Sequence[str | Cell]] = []
    for block in zip_longest(*(half.sections for half in halves)):
        rows += [*([RULE] if rows else []), *_rows(halves, block)]
    return Table(
        title,
        [column for half in halves for column in half.header],
        rows,
        " ".join(half.align for half in halves),
        {s.block.title: sentences(s) for half in halves for s in half.sections if said},
        [role for half in halves for role in half.roles],
        f"{title}: accuracy in percent, with the 95% interval and (small) the spread between seeds.",
    )


def _rows(halves: Sequence[Half], block: Sequence[Section | None]) -> Iterator[list[str | Cell]]:
    """Yield the rows of one block of each half, methods beside each other; empty where a half has no such row."""
    results = [{r.method: r for r in s.rows} if s else {} for s in block]
    methods = {m: None for rows in results for m in rows if m != BASE}
    for method in ([BASE] if any(BASE in rows for rows in results) else []) + row_order(methods):
        ours, papers = [], []
        for half, section, rows in zip(halves, block, results, strict=True):
            empty = [""] * len(half.header)
            row = rows.get(method)
            ours += _ours(section, row) if row else empty
            papers += (_papers(section, method) if row else []) or empty
        yield ours
        if any(papers):
            yield papers


def _ours(section: Section, row: Result) -> list[Cell]:
    cells = [Cell(row.title, mark=text.BOLD if row.is_base else "")]
    for name, _ in section.columns:
        mean = row.mean(name)
        spread = text.number(100 * mean.seed_sd) if np.isfinite(mean.seed_sd) else ""
        cells.append(Cell(text.percent(mean.problems), spread, section.marks.get(name, {}).get(row.method, "")))
    error = text.number(100 * row.mean(AVERAGE).problems.se, 2)
    return [*cells, Cell(error), Cell(text.thousands(row.costs["rollouts"])), Cell(row.kind or text.MISSING)]


def _papers(section: Section, method: str) -> list[Cell]:
    """Return the paper's row, or nothing where it has none."""
    if not section.paper or section.paper.row(method) is None:
        return []
    names = [*(name for name, _ in section.columns), "se", "rollouts", "type"]
    title = f"paper: {section.paper.title}" if method == BASE else "paper"
    return [Cell(x, paper=True) for x in (title, *(section.printed(method, n) or text.MISSING for n in names))]


def write(study: Study, out: Path) -> list[Path]:
    """Write the table in every format; returns the files."""
    sections = [Section.of(block, study) for block in study.blocks]
    tables = [page_table(title, halves) for title, halves in parts(sections)]
    page = Page(at_scale("Table 1", study.scale), tables, notes(sections, study))
    averages, differences = numbers.long_table(sections), numbers.differences(sections)
    files = page.write(out, "table1", averages, differences=differences)
    return [*files, *forest.write(forest.data(averages, differences), out, study.note)]
