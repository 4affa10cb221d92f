"""``bapo compare``: two results, crates or files of evidence, A minus B, by the comparisons that Table 1 is made of.

Accuracies are paired by task, model, method and benchmark, and compared by the one rule of pairing.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from analysis import evidence, results, text
from analysis.claims.view import merged
from analysis.page import markdown_table, without_html
from analysis.results import Comparison, Result
from analysis.sharing import homes
from analysis.study import evaluated, load
from bapo.errors import UserError

IDENTICAL, AGREES, DIFFERS, OTHER = "identical", "agrees", "differs", "other problems"
Key = tuple[str, str, str, str]  # task, model, method, benchmark or average


@dataclass(frozen=True)
class Line:
    """One number of both sides. compared: A minus B with Holm's p over all lines; None on other problems."""

    key: Key
    a: Result
    b: Result
    compared: Comparison | None = None

    @property
    def state(self) -> str:
        if self.compared is None:
            return OTHER
        sides = [side.column(self.key[3]) for side in (self.a, self.b)]
        if all(x.shape == y.shape and np.array_equal(x, y) for x, y in zip(*sides, strict=True)):
            return IDENTICAL
        return DIFFERS if self.compared.differ else AGREES


@dataclass(frozen=True)
class Compared:
    """only: keys that one side alone has."""

    lines: list[Line]
    only: dict[str, list[Key]]

    @property
    def agree(self) -> bool:
        return not any(line.state == DIFFERS for line in self.lines)


def compare(a: Path, b: Path) -> Compared:
    """Compare two folders of results, or files of evidence. Raises UserError where they have no number in common.

    Beside evidence only the study of its name counts: others may have further seeds of the same rows.
    """
    study = next((place.stem for place in (a, b) if place.suffix == ".zip"), "*")
    rows = [_rows(place, study) for place in (a, b)]
    sides = {key: (rows[0][key], rows[1][key]) for key in rows[0] if key in rows[1]}
    if not sides:
        raise UserError(f"{a} and {b} have no number in common: no task, model and method is evaluated in both")
    alike = [key for key, (x, y) in sides.items() if _problems(x, key) == _problems(y, key)]
    compared = results.corrected([results.difference(*sides[key], key[3]) for key in alike])
    of = dict(zip(alike, compared, strict=True))
    only = {side: [k for k in rows[i] if k not in sides] for i, side in enumerate("AB")}
    return Compared([Line(key, *both, of.get(key)) for key, both in sides.items()], only)


def _rows(folder: Path, study_name: str) -> dict[Key, Result]:
    """Return the evaluated rows of a folder or of evidence by task, model, method and column."""
    if folder.suffix == ".zip":
        with TemporaryDirectory() as unpacked:
            return _rows(evidence.unpack(folder, Path(unpacked)).parents[1], study_name)
    files = [file for home in homes(folder) for file in sorted(home.glob(f"studies/{study_name}.json"))]
    study = evaluated(merged([load(file) for file in files]))
    collected = ((block, row) for block in study.blocks for row in results.collect(block, study))
    return {(b.task, b.model, row.method, name): row for b, row in collected for name, _ in results.columns(b)}


def _problems(row: Result, key: Key) -> dict[str, tuple[str, ...]]:
    return {name: o.problems for name, o in row.outcomes.items() if key[3] in (name, results.AVERAGE)}


def counted(found: Compared) -> str:
    """Return how many numbers are identical, and what the others are."""
    counts = Counter(line.state for line in found.lines)
    words = {AGREES: "agree within their intervals", DIFFERS: "differ", OTHER: "are of other problems"}
    others = [f"{counts[state]} {said}" for state, said in words.items() if counts[state]]
    return ", ".join([f"{counts[IDENTICAL]} of {len(found.lines)} numbers are identical", *others])


def markdown(found: Compared, names: tuple[str, str]) -> str:
    """Return how many numbers agree, and each that does not."""
    parts = [f"# A: {names[0]}, B: {names[1]}", f"{counted(found)}."]
    shown = [line for line in found.lines if line.state in (DIFFERS, OTHER)]
    if shown:
        head = ["Task", "Model", "Method", "Column", "A %", "B %", "A - B", "p Holm", "State"]
        parts += [markdown_table(head, [_row(line) for line in shown], "llllrrrrl").rstrip()]
        parts += ["95% intervals and Holm's correction over all lines. With one seed two trained models are compared."]
    for side, keys in found.only.items():
        parts += [f"Only in {side}: {', '.join(sorted({'/'.join(key[:3]) for key in keys}))}"] if keys else []
    return without_html("\n\n".join(parts) + "\n")


def _row(line: Line) -> list[str]:
    cells = [*line.key, *(text.percent(*side.mean(line.key[3]).tested.points) for side in (line.a, line.b))]
    if line.compared is None:
        return [*cells, text.MISSING, text.MISSING, line.state]
    difference = text.change(*line.compared.difference.tested.points)
    return [*cells, difference, text.p_number(line.compared.adjusted), line.state]
