"""``bapo compare``: two results or crates side by side, A minus B, by the comparisons that Table 1 is made of.

Accuracies are paired by task, model, method and benchmark, on the same problems. Seeds of the two sides count as
independent: the same seed on another machine is another run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from analysis import reading, results, statistics, text
from analysis.claims.view import load_studies, merged
from analysis.page import markdown_table
from analysis.results import Comparison, Result
from analysis.sharing import homes, located
from analysis.study import Study, evaluated
from bapo.errors import UserError
from bapo.store.files import read_json

IDENTICAL, AGREES, DIFFERS, OTHER = "identical", "agrees", "differs", "other problems"
#: keys of a configuration that do not say what a run means
PLACES = ("seed", "paths.", "tracking.", "device", "hardware.")
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
    """only: keys that one side alone has. configurations: (task, model, method) -> keys that differ.

    verdicts: (claim, task, model) -> the verdicts of A and B, where they differ.
    """

    lines: list[Line]
    only: dict[str, list[Key]]
    configurations: dict[tuple[str, str, str], list[str]]
    verdicts: dict[tuple[str, str, str], tuple[str, str]]

    @property
    def agree(self) -> bool:
        return not any(line.state == DIFFERS for line in self.lines)


def compare(a: Path, b: Path) -> Compared:
    """Compare two opened results. Raises UserError where they have no number in common."""
    studies = [_study(folder) for folder in (a, b)]
    rows = [_rows(study) for study in studies]
    shared = [key for key in rows[0] if key in rows[1]]
    if not shared:
        raise UserError(f"{a} and {b} have no number in common: no task, model and method is evaluated in both")
    lines = [_line(key, rows[0][key], rows[1][key]) for key in shared]
    tested = [line for line in lines if line.compared is not None]
    adjusted = statistics.holm([line.compared.difference.tested.p for line in tested if line.compared])
    corrected = {line.key: p for line, p in zip(tested, adjusted, strict=True)}
    lines = [
        replace(line, compared=replace(line.compared, adjusted=float(corrected[line.key]))) if line.compared else line
        for line in lines
    ]
    only = {side: [k for k in rows[i] if k not in rows[1 - i]] for i, side in enumerate("AB")}
    settings = [_configurations(study) for study in studies]
    changed = {
        key: sorted(k for k in {*own, *settings[1][key]} if own.get(k) != settings[1][key].get(k))
        for key, own in settings[0].items()
        if key in settings[1]
    }
    verdicts = [_verdicts(folder) for folder in (a, b)]
    other = {k: (v, verdicts[1][k]) for k, v in verdicts[0].items() if k in verdicts[1] and verdicts[1][k] != v}
    return Compared(lines, only, {k: keys for k, keys in changed.items() if keys}, other)


def _study(folder: Path) -> Study:
    files = [(home, file) for home in homes(folder) for file in sorted((home / "studies").glob("*.json"))]
    return evaluated(merged([located(study, home) for home, file in files for study in load_studies([file]).values()]))


def _rows(study: Study) -> dict[Key, Result]:
    """Return the evaluated rows by task, model, method and column."""
    collected = ((block, row) for block in study.blocks for row in results.collect(block, study))
    return {(b.task, b.model, row.method, name): row for b, row in collected for name, _ in results.columns(b)}


def _line(key: Key, a: Result, b: Result) -> Line:
    problems = [{n: o.problems for n, o in row.outcomes.items() if key[3] in (n, results.AVERAGE)} for row in (a, b)]
    if problems[0] != problems[1]:
        return Line(key, a, b)
    ((_, compared),) = results.compare([a, replace(b, method=f"{b.method} of B")], key[3]).items()
    return Line(key, a, b, compared)


def _configurations(study: Study) -> dict[tuple[str, str, str], dict[str, Any]]:
    """Return the flat configuration of the first run of every method, without what names a place."""
    cells = {(b.task, b.model, m): cells[0] for b in study.blocks for m, cells in b.methods.items()}
    flat = {key: text.flat(reading.config(cell, study)) for key, cell in cells.items()}
    return {key: {k: v for k, v in own.items() if not k.startswith(PLACES)} for key, own in flat.items()}


def _verdicts(folder: Path) -> dict[tuple[str, str, str], str]:
    files = [home / "claims.json" for home in homes(folder)]
    claims: list[Mapping[str, str]] = [line for file in files if file.exists() for line in read_json(file)["claims"]]
    return {(c["id"], c["task"], c["model"]): c["verdict"] for c in claims}


def markdown(found: Compared, names: tuple[str, str], every: bool = False) -> str:
    """Return what agrees and what does not. every: all lines, not only those that differ."""
    counts = Counter(line.state for line in found.lines)
    parts = [f"# A: {names[0]}, B: {names[1]}", ""]
    parts += [", ".join(f"{count} {state}" for state, count in counts.items()), ""]
    shown = [line for line in found.lines if every or line.state in (DIFFERS, OTHER)]
    if shown:
        head = ["Task", "Model", "Method", "Column", "A %", "B %", "A - B", "p Holm", "State"]
        parts += [markdown_table(head, [_row(line) for line in shown], "llllrrrrl")]
        parts += [
            "95% intervals and Holm's correction over all lines. With one seed two trained models are compared.",
            "",
        ]
    for side, keys in found.only.items():
        parts += [f"Only in {side}: {', '.join(sorted({'/'.join(key[:3]) for key in keys}))}", ""] if keys else []
    for title, cases in (("Configurations that differ", found.configurations), ("Other verdicts", found.verdicts)):
        parts += (
            [f"## {title}", "", *(f"- {'/'.join(filter(None, k))}: {', '.join(v)}" for k, v in cases.items()), ""]
            if cases
            else []
        )
    return "\n".join(parts)


def _row(line: Line) -> list[str]:
    means = [text.percent(side.mean(line.key[3]).tested) for side in (line.a, line.b)]
    if line.compared is None:
        return [*line.key, *means, text.MISSING, text.MISSING, line.state]
    d = line.compared.difference.tested
    return [
        *line.key,
        *means,
        f"{text.signed(100 * d.mean)} ({text.interval(d)})",
        text.p_number(line.compared.adjusted),
        line.state,
    ]
