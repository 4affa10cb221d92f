"""Pages of tables, written as Markdown and LaTeX, with their numbers as CSV."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import pandas as pd

from analysis.study import StudyFile
from analysis.text import BOLD, MISSING, UNDERLINE, write_csv
from bapo.store.files import write_text

#: the content of a CSV file
Rows: TypeAlias = pd.DataFrame | Sequence[Mapping[str, Any]]

_LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    MISSING: "--",
    "<": "$<$",
    ">": "$>$",
    **{c: "\\" + c for c in "&%$#_{}"},
}


def latex(text: str) -> str:
    """Escape plain text for LaTeX; X1, X2 and X3 become the paper's calligraphic symbols."""
    escaped = "".join(_LATEX.get(c, c) for c in text)
    return re.sub(r"\bX([123])\b", r"$\\mathcal{X}_\1$", escaped)


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]], align: str) -> str:
    """Return a pipe table. align: l or r for each column."""
    rule = [":--" if a == "l" else "--:" for a in align]
    lines = [[cell.replace("|", r"\|") for cell in line] for line in (header, rule, *rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def without_html(page: str) -> str:
    """Return Markdown without pictures, links and HTML, which a title may hold; our own <br>, <u> and anchors stay."""
    page = re.sub(r"\](?=\((?!#))", r"\]", re.sub(r"<(?!br>|/?u>)(?=[A-Za-z/!?])", "&lt;", page))
    return page.replace("![", r"!\[")


@dataclass(frozen=True)
class PageCell:
    """A cell. text: "31.9 ± 1.8"; spread: a standard deviation; mark: BOLD or UNDERLINE; paper: set in italics."""

    text: str
    spread: str = ""
    mark: str = ""
    paper: bool = False

    def markdown(self) -> str:
        body = {BOLD: f"**{self.text}**", UNDERLINE: f"<u>{self.text}</u>"}.get(self.mark, self.text)
        body += f" (sd {self.spread})" if self.spread else ""
        return f"*{body}*" if self.paper and body != MISSING else body

    def latex(self) -> str:
        body = latex(self.text)
        body = {BOLD: rf"\textbf{{{body}}}", UNDERLINE: rf"\underline{{{body}}}"}.get(self.mark, body)
        body += rf" {{\scriptsize({self.spread})}}" if self.spread else ""
        return rf"\textit{{{body}}}" if self.paper and self.text != MISSING else body


#: a row that is a horizontal rule in LaTeX and nothing in Markdown
RULE: tuple[str, ...] = ()


@dataclass(frozen=True)
class Table:
    """One table.

    rows: cells in the order of the header, or RULE; align: l or r for each column, a space where two halves meet (by
    default l for the first, r for the others); below: sentences, or sentences by their subject; roles: a second line of
    the header, "" where a column has none; caption: in LaTeX, instead of the page's heading and the title.
    """

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str | PageCell]]
    align: str = ""
    below: Sequence[str] | Mapping[str, Sequence[str]] = ()
    roles: Sequence[str] = ()
    caption: str = ""

    @classmethod
    def of(
        cls, title: str, rows: Sequence[Mapping[str, str | PageCell]], align: str = "", below: Sequence[str] = ()
    ) -> Table:
        """Return a table with these fields. rows: by column, the first row's names are the header; {} is a RULE."""
        return cls(title, list(rows[0]), [list(row.values()) for row in rows], align, below)

    @property
    def columns(self) -> str:
        return self.align or "l" + "r" * (len(self.header) - 1)

    @property
    def by_subject(self) -> Mapping[str, Sequence[str]]:
        """Return the sentences by their subject; "" is the whole table."""
        return self.below if isinstance(self.below, Mapping) else {"": self.below}

    def markdown(self) -> str:
        roles = self.roles or [""] * len(self.header)
        header = [f"{title}<br>*{role}*" if role else title for title, role in zip(self.header, roles, strict=True)]
        rows = [[c if isinstance(c, str) else c.markdown() for c in row] for row in self.rows if row]
        lines = [f"## {self.title}", "", markdown_table(header, rows, self.columns.replace(" ", ""))]
        for subject, sentences in self.by_subject.items():
            lines += [f"{subject}:", ""] if subject and sentences else []
            lines += [*(f"- {s}" for s in sentences), ""] if sentences else []
        return "\n".join(lines)

    def latex_rows(self) -> list[str]:
        rows = [[latex(c) if isinstance(c, str) else c.latex() for c in row] for row in self.rows]
        return [" & ".join(row) + r" \\" if row else r"\midrule" for row in rows]

    def latex(self, caption: str, body: Sequence[str]) -> list[str]:
        """Return the lines of a ``table*`` with this table's header above ``body``."""
        roles = [rf"\textit{{{latex(role)}}}" if role else "" for role in self.roles]
        columns = self.columns.replace(" ", r"@{\quad}")
        return [
            r"\begin{table*}[t]",
            r"\centering",
            rf"\caption{{{latex(caption)}}}",
            rf"\resizebox{{\textwidth}}{{!}}{{\begin{{tabular}}{{{columns}}}",
            r"\toprule",
            " & ".join(map(latex, self.header)) + r" \\",
            *([" & ".join(roles) + r" \\"] if any(roles) else []),
            *body,
            r"\bottomrule",
            r"\end{tabular}}",
            r"\end{table*}",
        ]


@dataclass(frozen=True)
class Page:
    """Tables under one heading.

    notes: how to read all of them; caption: of the one LaTeX table that holds the rows of all tables under their
    titles; "": each is a LaTeX table of its own; introduction: sentences above the tables.
    """

    heading: str
    tables: Sequence[Table]
    notes: Sequence[str] = ()
    caption: str = ""
    introduction: Sequence[str] = ()

    @classmethod
    def of(
        cls, study: StudyFile, title: str, tables: Sequence[Table], notes: Sequence[str] = (), **options: Any
    ) -> Page:
        """Return a page with these fields; its heading names the study's scale, its notes begin with the study's."""
        return cls(heading(title, study.scale), tables, [*study.notes, *notes], **options)

    def markdown(self) -> str:
        lines = [f"# {self.heading}", ""]
        lines += [*(f"- {sentence}" for sentence in self.introduction), ""] if self.introduction else []
        lines += [table.markdown() for table in self.tables]
        lines += ["## Notes", "", *(f"- {note}" for note in self.notes)] if self.notes else []
        return without_html("\n".join(lines).rstrip() + "\n")

    def latex(self) -> str:
        """Return the tables, then in small type what stands below them."""
        lines = ["% generated; needs \\usepackage{booktabs,graphicx}"]
        if self.caption:
            columns = len(self.tables[0].header)
            body = []
            for table in self.tables:
                title = rf"\multicolumn{{{columns}}}{{l}}{{\textbf{{{latex(table.title)}}}}} \\"
                body += [r"\midrule", title, *table.latex_rows()]
            lines += self.tables[0].latex(self.caption, body)
        else:
            for table in self.tables:
                caption = table.caption or f"{self.heading}. {table.title}."
                lines += ["", *table.latex(caption, [r"\midrule", *table.latex_rows()])]
        below = [f"{s or t.title}: {x}" for t in self.tables for s, group in t.by_subject.items() for x in group]
        below += self.notes
        if below:
            lines += ["", r"\begin{footnotesize}", *(latex(b) + r"\par" for b in below), r"\end{footnotesize}"]
        return "\n".join(lines) + "\n"

    def write(self, out: Path, name: str, numbers: Rows, **more: Rows) -> list[Path]:
        """Write NAME.csv with the numbers, NAME.md, NAME.tex, and NAME_KEY.csv for each of ``more``."""
        frames = {out / f"{name}.csv": numbers} | {out / f"{name}_{key}.csv": rows for key, rows in more.items()}
        for path, rows in frames.items():
            write_csv(path, pd.DataFrame(rows))
        write_text(out / f"{name}.md", self.markdown())
        write_text(out / f"{name}.tex", self.latex())
        first, *others = frames
        return [first, out / f"{name}.md", out / f"{name}.tex", *others]


def heading(title: str, scale: str) -> str:
    """Return the heading of a page: its title and the scale, if there is one."""
    return f"{title} at {scale} scale" if scale else title
