"""The paper's layout of Table 1: (a) mathematics, (b) planning and visual geometry side by side; blocks by model.

Below each row of ours stands the paper's, where it has one. A column is headed by our benchmark and, where that is a
stand-in, by the paper's benchmark whose part it plays.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest

import numpy as np

from analysis import text
from analysis.results import AVERAGE, BASE, Result
from analysis.study import Study, row_order
from analysis.tables.table1.numbers import Section
from analysis.tables.table1.text import notes, sentences

#: (title, tasks from left to right); a task that the paper does not have gets a part of its own
PARTS = (
    ("(a) Mathematics benchmarks", ("mathematics",)),
    ("(b) Planning and visual geometry benchmarks", ("countdown", "geometry")),
)
#: columns after the benchmarks: (key, title)
EXTRA = ((AVERAGE, "Avg"), ("se", "SE"), ("rollouts", "Rollouts"), ("type", "Type"))


@dataclass(frozen=True)
class Cell:
    """text: "31.9 ± 1.8"; spread: "0.6", the standard deviation between seeds, where there is one."""

    text: str
    spread: str = ""
    mark: str = ""
    paper: bool = False

    def markdown(self) -> str:
        body = text.markdown_mark(self.text, self.mark) + (f" (sd {self.spread})" if self.spread else "")
        return f"*{body}*" if self.paper and body != text.MISSING else body

    def latex(self) -> str:
        body = text.latex_mark(text.latex(self.text), self.mark)
        body += rf" {{\scriptsize({self.spread})}}" if self.spread else ""
        return rf"\textit{{{body}}}" if self.paper and self.text != text.MISSING else body


@dataclass(frozen=True)
class Half:
    """The columns of one task; its blocks (one a model) stand below each other."""

    sections: tuple[Section, ...]

    @property
    def header(self) -> list[str]:
        return ["Method", *(title for _, title in self.sections[0].block.benchmarks), *(title for _, title in EXTRA)]

    @property
    def roles(self) -> list[str]:
        """The paper's title of each column where ours differs, else ""."""
        first = self.sections[0]
        columns = first.paper.columns if first.paper else {}
        found = [columns.get(first.block.roles.get(name, name), "") for name, _ in first.block.benchmarks]
        ours = [title for _, title in first.block.benchmarks]
        return ["", *("" if a.rstrip(".") == b.rstrip(".") else b for a, b in zip(ours, found, strict=True)), *[""] * 4]

    @property
    def align(self) -> str:
        return "l" + "r" * (len(self.header) - 2) + "l"


@dataclass(frozen=True)
class Part:
    title: str
    halves: tuple[Half, ...]

    @property
    def sections(self) -> list[Section]:
        return [s for half in self.halves for s in half.sections]

    def rows(self) -> list[list[list[Cell]]]:
        """By block, by row: the cells of all halves, empty where a half has no such row."""
        return [list(_aligned(self.halves, block)) for block in zip_longest(*(half.sections for half in self.halves))]


def parts(sections: Sequence[Section]) -> list[Part]:
    by_task: dict[str, list[Section]] = {}
    for s in sections:
        by_task.setdefault(s.block.task, []).append(s)
    named = {task for _, tasks in PARTS for task in tasks}
    others = [(found[0].block.task_title, (task,)) for task, found in by_task.items() if task not in named]
    laid_out = []
    for title, tasks in (*PARTS, *others):
        halves = tuple(Half(tuple(by_task[task])) for task in tasks if task in by_task)
        if halves:
            laid_out.append(Part(title, halves))
    return laid_out


def _aligned(halves: Sequence[Half], block: Sequence[Section | None]) -> Iterator[list[Cell]]:
    """The rows of one block of each half, methods beside each other."""
    given = [{r.method: r for r in s.rows} if s else {} for s in block]
    methods = {m: None for rows in given for m in rows if m != BASE}
    for method in ([BASE] if any(BASE in rows for rows in given) else []) + row_order(methods):
        pairs = list(zip(halves, block, (rows.get(method) for rows in given), strict=True))
        yield [c for half, s, row in pairs for c in (_ours(s, row) if row else _empty(half))]
        if any(row and _printed(s, method) for _, s, row in pairs):
            yield [c for half, s, row in pairs for c in (row and _theirs(s, method)) or _empty(half)]


def _empty(half: Half) -> list[Cell]:
    return [Cell("")] * len(half.header)


def _ours(section: Section, row: Result) -> list[Cell]:
    cells = [Cell(row.title, mark=text.BOLD if row.is_base else "")]
    for name, _ in section.columns:
        m = row.mean(name)
        body = f"{text.number(100 * m.mean)} ± {text.number(100 * m.problems.half_width)}"
        spread = text.number(100 * m.seed_sd) if np.isfinite(m.seed_sd) else ""
        cells.append(Cell(body, spread, section.marks[name].get(row.method, "")))
    error = text.number(100 * row.mean(AVERAGE).problems.se, 2)
    return [*cells, Cell(error), Cell(text.thousands(row.costs["rollouts"])), Cell(row.kind or text.MISSING)]


def _printed(section: Section, method: str) -> bool:
    return bool(section.paper and method in section.paper.rows)


def _theirs(section: Section, method: str) -> list[Cell]:
    """The paper's row, or nothing where it has none."""
    if not _printed(section, method):
        return []
    names = [*(name for name, _ in section.columns), "se", "rollouts", "type"]
    title = f"paper: {section.paper.title}" if method == BASE else "paper"
    return [Cell(x, paper=True) for x in (title, *(section.printed(method, n) or text.MISSING for n in names))]


# ------------------------------------------------------------------------------------------------ Markdown


def markdown(sections: list[Section], study: Study) -> str:
    lines = ["# Table 1" + (f" at {study.scale} scale" if study.scale else ""), ""]
    for part in parts(sections):
        lines += [f"## {part.title}", "", _markdown_table(part)]
        for s in part.sections:
            said = sentences(s)
            lines += [f"{s.block.title}:", "", *[f"- {x}" for x in said], ""] if said else []
    lines += ["## Notes", "", *[f"- {n}" for n in notes(sections, study)]]
    return "\n".join(lines).rstrip() + "\n"


def _markdown_table(part: Part) -> str:
    header = [
        f"{title}<br>*{role}*" if role else title
        for half in part.halves
        for title, role in zip(half.header, half.roles, strict=True)
    ]
    rows = [[cell.markdown() for cell in row] for block in part.rows() for row in block]
    return text.markdown_table(header, rows, "".join(half.align for half in part.halves))


# ------------------------------------------------------------------------------------------------ LaTeX


def latex(sections: list[Section], study: Study) -> str:
    """A ``table*`` for each part, then the sentences and notes that belong to all of them."""
    lines = ["% generated; needs \\usepackage{booktabs,graphicx}"]
    for part in parts(sections):
        lines += _latex_part(part)
    below = [f"{s.block.title}: {x}" for s in sections for x in sentences(s)] + notes(sections, study)
    lines += ["", r"\begin{footnotesize}", *(text.latex(x) + r"\par" for x in below), r"\end{footnotesize}"]
    return "\n".join(lines) + "\n"


def _latex_part(part: Part) -> list[str]:
    titles = [text.latex(title) for half in part.halves for title in half.header]
    roles = [rf"\textit{{{text.latex(role)}}}" if role else "" for half in part.halves for role in half.roles]
    body: list[str] = []
    for block in part.rows():
        body += [r"\midrule", *(text.latex_row([cell.latex() for cell in row]) for row in block)]
    align = r"@{\quad}".join(half.align for half in part.halves)
    caption = f"{part.title}: accuracy in percent, with the 95% interval and (small) the spread between seeds."
    return [
        "",
        r"\begin{table*}[t]",
        r"\centering",
        rf"\caption{{{text.latex(caption)}}}",
        rf"\resizebox{{\textwidth}}{{!}}{{\begin{{tabular}}{{{align}}}",
        r"\toprule",
        text.latex_row(titles),
        *([text.latex_row(roles)] if any(roles) else []),
        *body,
        r"\bottomrule",
        r"\end{tabular}}",
        r"\end{table*}",
    ]
