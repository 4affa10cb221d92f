"""Markdown, LaTeX and number formatting, and files written whole or not at all."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bapo.store.files import write_text

if TYPE_CHECKING:
    import pandas as pd

#: printed where there is no number (an en dash)
MISSING = "\u2013"
BOLD, UNDERLINE = "bold", "underline"

_LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    MISSING: "--",
}
_LATEX |= {"<": "$<$", ">": "$>$"}
_LATEX |= {c: "\\" + c for c in "&%$#_{}"}


def number(value: float | None, digits: int = 1) -> str:
    """12.34 -> "12.3"; a missing value -> an en dash."""
    return MISSING if value is None or not math.isfinite(value) else f"{value:.{digits}f}"


def signed(value: float, digits: int = 1) -> str:
    """1.25 -> "+1.2"; never "-0.0"."""
    if not math.isfinite(value):
        return MISSING
    return f"{round(value, digits) + 0.0:+.{digits}f}"


def thousands(value: float | None) -> str:
    """25600 -> "25.6k", 677000 -> "677k", 1921000 -> "1921k", as the paper prints rollouts."""
    if value is None or not math.isfinite(value):
        return MISSING
    if value < 1000:
        return f"{value:.0f}"
    return f"{value / 1000:.0f}k" if value >= 100_000 else f"{value / 1000:.1f}k"


def p_value(value: float) -> str:
    if not math.isfinite(value):
        return f"p {MISSING}"
    return "p < 0.001" if value < 0.001 else f"p = {value:.3f}" if value < 0.1 else f"p = {value:.2f}"


def span(values: Sequence[int]) -> str:
    """{3} -> "3", {3, 5} -> "3 to 5"."""
    return str(min(values)) if min(values) == max(values) else f"{min(values)} to {max(values)}"


def counted(values: Sequence[int], noun: str) -> str:
    """:func:`span` with its noun: "1 seed", "3 to 5 seeds"."""
    return f"{span(values)} {noun}{'' if max(values) == 1 else 's'}"


# ------------------------------------------------------------------------------------------------ markdown


def markdown_mark(text: str, mark: str) -> str:
    return {BOLD: f"**{text}**", UNDERLINE: f"<u>{text}</u>"}.get(mark, text)


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]], align: str) -> str:
    """A pipe table. align: one letter a column, l or r."""
    rule = [":--" if a == "l" else "--:" for a in align]
    lines = [header, rule, *([cell.replace("|", r"\|") for cell in row] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


# ------------------------------------------------------------------------------------------------ LaTeX


def latex(text: str) -> str:
    """Plain text escaped for LaTeX; X1, X2, X3 become the paper's calligraphic symbols."""
    escaped = "".join(_LATEX.get(c, c) for c in text)
    return re.sub(r"\bX([123])\b", r"$\\mathcal{X}_\1$", escaped)


def latex_mark(text: str, mark: str) -> str:
    return {BOLD: rf"\textbf{{{text}}}", UNDERLINE: rf"\underline{{{text}}}"}.get(mark, text)


def latex_row(cells: Sequence[str]) -> str:
    return " & ".join(cells) + r" \\"


# ------------------------------------------------------------------------------------------------ files


def write_csv(path: Path, frame: pd.DataFrame) -> None:
    """Comma-separated, 6 significant digits: enough for any use, few enough to compare two files by eye."""
    write_text(path, frame.to_csv(index=False, float_format="%.6g", lineterminator="\n"))
