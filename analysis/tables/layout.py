"""A page of tables: the same rows as Markdown and as LaTeX."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from analysis import text
from bapo.store.files import write_text

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Table:
    """One table. rows: plain text, in the order of the header; align: one letter a column, l or r; below: sentences."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    align: str
    below: Sequence[str] = ()


@dataclass(frozen=True)
class Page:
    """Tables under one heading. notes: how to read all of them."""

    heading: str
    tables: Sequence[Table]
    notes: Sequence[str] = field(default=())

    def markdown(self) -> str:
        lines = [f"# {self.heading}", ""]
        for table in self.tables:
            lines += [f"## {table.title}", "", text.markdown_table(table.header, table.rows, table.align)]
            lines += [*(f"- {sentence}" for sentence in table.below), ""] if table.below else []
        lines += ["## Notes", "", *(f"- {note}" for note in self.notes)] if self.notes else []
        return "\n".join(lines).rstrip() + "\n"

    def latex(self) -> str:
        """A ``table*`` for each table, then what stands below them."""
        lines = ["% generated; needs \\usepackage{booktabs,graphicx}"]
        for table in self.tables:
            caption = text.latex(f"{self.heading}. {table.title}.")
            lines += [
                "",
                r"\begin{table*}[t]",
                r"\centering",
                rf"\caption{{{caption}}}",
                rf"\resizebox{{\textwidth}}{{!}}{{\begin{{tabular}}{{{table.align}}}",
                r"\toprule",
                text.latex_row([text.latex(cell) for cell in table.header]),
                r"\midrule",
                *(text.latex_row([text.latex(cell) for cell in row]) for row in table.rows),
                r"\bottomrule",
                r"\end{tabular}}",
                r"\end{table*}",
            ]
        below = [f"{t.title}: {sentence}" for t in self.tables for sentence in t.below] + list(self.notes)
        if below:
            lines += ["", r"\begin{footnotesize}", *(text.latex(b) + r"\par" for b in below), r"\end{footnotesize}"]
        return "\n".join(lines) + "\n"

    def write(self, out: Path, name: str, frame: pd.DataFrame) -> list[Path]:
        """NAME.csv (the numbers), NAME.md and NAME.tex; returns the files."""
        paths = [out / f"{name}.{suffix}" for suffix in ("csv", "md", "tex")]
        text.write_csv(paths[0], frame)
        write_text(paths[1], self.markdown())
        write_text(paths[2], self.latex())
        return paths


def at_scale(title: str, scale: str) -> str:
    """The heading of a page."""
    return f"{title} at {scale} scale" if scale else title
