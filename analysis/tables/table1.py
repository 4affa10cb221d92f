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
from typing import Any

import numpy as np
import pandas as pd

from analysis import paper, results, statistics, text
from analysis.page import RULE, Cell, Page, Table
from analysis.results import AVERAGE, BASE, Comparison, Result
from analysis.study import Block, Study, row_order
from analysis.tables import forest, table1_words
from analysis.tables.table1_words import Replay, replays

#: (title, tasks from left to right); a task that the paper does not have gets a part of its own
PARTS = (
    ("(a) Mathematics benchmarks", ("mathematics",)),
    ("(b) Planning and visual geometry benchmarks", ("countdown", "geometry")),
)
#: titles of the columns after the benchmarks
AVERAGES, COSTS = ("Avg", "SE", "% of GRPO's gain"), ("Rollouts", "Type")


@dataclass(frozen=True)
class Section:
    """One block with everything that its rows need."""

    block: Block
    rows: list[Result]
    columns: list[tuple[str, str]]
    comparisons: dict[str, dict[tuple[str, str], Comparison]]  # by column
    marks: dict[str, dict[str, str]]  # by column, by method
    shares: dict[str, dict[str, statistics.SeedMean]]  # likewise: (row - GRPO) / (GRPO - base)
    paper: paper.Block | None
    replays: dict[str, Replay]  # by method, of those that replay

    @staticmethod
    def of(block: Block, study: Study) -> Section:
        rows, columns = results.collect(block, study), results.columns(block)
        margins = results.margins(block, rows)
        comparisons = {name: results.compare(rows, name, margins[name]) for name, _ in columns}
        marks = {name: results.marks(rows, name, pairs) for name, pairs in comparisons.items()}
        printed = paper.match(block.task, block.model, block.paper_model)
        shares = {name: results.shares(rows, name) for name, _ in columns}
        return Section(block, rows, columns, comparisons, marks, shares, printed, replays(block, study))


# ------------------------------------------------------------------------------------------------ the page


def parts(sections: Sequence[Section]) -> Iterator[Table]:
    """Yield a table of every part that has runs, the columns of its tasks beside each other."""
    by_task: dict[str, list[Section]] = {}
    for section in sections:
        by_task.setdefault(section.block.task, []).append(section)
    named = {task for _, tasks in PARTS for task in tasks}
    others = [(of[0].block.task_title, (task,)) for task, of in by_task.items() if task not in named]
    for title, tasks in (*PARTS, *others):
        if halves := [by_task[task] for task in tasks if task in by_task]:
            yield _table(title, halves)


def _table(title: str, halves: Sequence[Sequence[Section]]) -> Table:
    """halves: of each task its blocks, one a model, which stand below each other; what is said of each stands below."""
    rows: list[Sequence[str | Cell]] = []
    for block in zip_longest(*halves):
        rows += [*([RULE] if rows else []), *_rows(halves, block)]
    return Table(
        title,
        [title for half in halves for title, _ in _header(half)],
        rows,
        " ".join("l" + "r" * (len(_header(half)) - 2) + "l" for half in halves),
        {s.block.title: table1_words.sentences(s) for half in halves for s in half},
        [role for half in halves for _, role in _header(half)],
        f"{title}: accuracy in percent, with the 95% interval and (small) the spread between seeds.",
    )


def _header(half: Sequence[Section]) -> list[tuple[str, str]]:
    """Return the title of each column, and the paper's where it has another, else ""."""
    block = half[0].block
    named = [(title, paper.stands_for(block, name)) for name, title in block.benchmarks]
    return [("Method", ""), *named, *((title, "") for title in (*AVERAGES, *COSTS))]


def _rows(halves: Sequence[Sequence[Section]], block: Sequence[Section | None]) -> Iterator[list[str | Cell]]:
    """Yield the rows of one block of each half, methods beside each other; empty where a half has no such row."""
    cells = [{r.method: (_ours(s, r), _papers(s, r.method)) for r in s.rows} if s else {} for s in block]
    for method in row_order(m for half in cells for m in half):
        for line in zip(*(half.get(method, ([], [])) for half in cells), strict=True):
            if any(line):
                yield [c for part, half in zip(line, halves, strict=True) for c in part or [""] * len(_header(half))]


def _ours(section: Section, row: Result) -> list[Cell]:
    cells = [Cell(row.title, mark=text.BOLD if row.is_base else "")]
    for name, _ in section.columns:
        mean = row.mean(name)
        spread = text.number(100 * mean.seed_sd) if np.isfinite(mean.seed_sd) else ""
        cells.append(Cell(text.percent(mean.problems), spread, section.marks.get(name, {}).get(row.method, "")))
    share = section.shares[AVERAGE].get(row.method)
    of_gain = text.change(share.tested) if share else text.MISSING
    shown = [text.number(100 * row.mean(AVERAGE).problems.se, 2), of_gain, text.thousands(row.costs["rollouts"])]
    return [*cells, *map(Cell, shown), Cell(row.kind or text.MISSING)]


def _papers(section: Section, method: str) -> list[Cell]:
    """Return the paper's row, or nothing where it has none."""
    if not section.paper or section.paper.row(method) is None:
        return []
    title = f"paper: {section.paper.title}" if method == BASE else "paper"
    columns = [*(section.block.roles.get(name, name) for name, _ in section.columns), "se", "rollouts", "type"]
    printed = [section.paper.printed(method, column) or text.MISSING for column in columns]
    share = section.paper.share_of_gain(method, AVERAGE)
    printed.insert(-2, text.MISSING if share is None else text.signed(100 * share))
    return [Cell(shown, paper=True) for shown in (title, *printed)]


def write(study: Study, out: Path) -> list[Path]:
    """Write the table in every format; returns the files."""
    sections = [Section.of(block, study) for block in study.blocks]
    page = Page.of(study, "Table 1", list(parts(sections)), table1_words.notes(sections))
    averages, pairs = pd.DataFrame([row for s in sections for row in long_rows(s)]), differences(sections)
    files = page.write(out, "table1", averages, differences=pairs)
    return [*files, *forest.write(forest.data(averages, pairs), out, study.note)]


# ------------------------------------------------------------------------------------------------ CSV


def long_rows(section: Section) -> Iterator[dict[str, Any]]:
    """Yield a row a method and column (percent; costs are means over seeds)."""
    block = section.block
    for row in section.rows:
        replay = section.replays.get(row.method)
        for name, title in section.columns:
            m = row.mean(name)
            outcomes = [row.outcomes[b] for b, _ in block.benchmarks if name in (b, AVERAGE)]
            noise = [statistics.sampling_noise(o.correct) for o in outcomes]
            role = block.roles.get(name, name)
            value = section.paper.value(row.method, role) if section.paper else None
            theirs = section.paper.share_of_gain(row.method, role) if section.paper else None
            share = section.shares[name].get(row.method)
            yield {
                **block.keys(row.method),
                "method_title": row.title,
                "type": row.kind,
                "benchmark": name,
                "benchmark_title": title,
                "problems": sum(len(o.problems) for o in outcomes),
                "samples": outcomes[0].samples,
                "seeds": len(row.seeds),
                **text.points(m.problems, "mean", "se", "low", "high"),
                "seed_sd": 100 * m.seed_sd,
                **text.points(m.both, "se", "low", "high", suffix="_problems_and_seeds"),
                "sampling_se": 100 * np.linalg.norm(noise) / np.size(noise),  # on these problems, of these models
                **{f"pass@{k}": 100 * np.mean([o.pass_at(k).mean() for o in outcomes]) for k in (8, 32)},
                "unparsed": 100 * (1 - np.mean([o.parsed.mean() for o in outcomes])),
                **({"second_grader_disagreement": 100 * row.disputed[name]} if name in row.disputed else {}),
                "mark": section.marks[name].get(row.method, ""),
                **text.columns("share", share.tested if share else None, "low", "high"),
                **row.costs,
                "replayed": 100 * replay.share if replay else 0.0,
                "replaying_steps": replay.steps if replay else 0.0,
                "paper_model": section.paper.title if section.paper else "",
                "paper_benchmark": role,
                "paper": value,
                "paper_share": None if theirs is None else 100 * theirs,
                **({} if row.is_base else {f"seed_{s}": 100 * v for s, v in zip(row.seeds, m.seed_means, strict=True)}),
            }


def differences(sections: list[Section]) -> pd.DataFrame:
    """Return a DataFrame, one row a pair of rows and column: the difference a - b in points and its tests."""
    return pd.DataFrame(
        {
            "task": s.block.task,
            "model": s.block.model,
            "benchmark": c.column,
            "a": a,
            "b": b,
            "difference": 100 * c.difference.mean,
            **text.points(c.difference.problems, "se", "low", "high", suffix="_problems"),
            "p_problems": c.difference.problems.p,
            **text.points(c.difference.both, "se", "low", "high", suffix="_problems_and_seeds"),
            "p_problems_and_seeds": c.difference.both.p,
            "p_holm": c.adjusted,
            "paired_seeds": len(c.difference.by_seed),
            "these_models_differ": c.differ,
            "real": c.real,
            "margin": 100 * c.margin,
            "verdict": c.verdict,
        }
        for s in sections
        for column in s.comparisons.values()
        for (a, b), c in column.items()
    )
