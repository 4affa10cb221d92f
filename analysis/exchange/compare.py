"""``bapo compare``: two results, crates or files of evidence, A minus B, by the comparisons that Table 1 is made of.

Accuracies of the studies that both hold are paired by task, model, method and benchmark, and compared by the one rule
of pairing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pandas as pd

from analysis import results, text
from analysis.exchange import evidence
from analysis.exchange.crate import homes
from analysis.page import markdown_table, without_html
from analysis.results import KEY, Comparison, Result
from analysis.study import StudyFile, evaluated, load, merged
from bapo.errors import UserError

IDENTICAL, AGREES, DIFFERS, OTHER = "identical", "agrees", "differs", "other problems"
#: the states of a number that one side alone has
ONLY = ("Only in A", "Only in B")
Key = tuple[str, str, str, str]  # task, model, method, benchmark or average


def compare(a: Path, b: Path) -> pd.DataFrame:
    """Compare two folders of results, or files of evidence. Raises UserError where they have no number in common.

    Returns a row a number under KEY, where a tuned run has its own method's name; state: IDENTICAL, AGREES, DIFFERS,
    OTHER or one of ONLY; a, b: the Result of each side; comparison: A minus B with Holm's p over all rows, None on
    other problems. Only studies that both hold count: others may have further seeds of the same rows.
    """
    with TemporaryDirectory() as unpacked:
        files = {place: _files(place, Path(unpacked, side)) for place, side in ((a, "a"), (b, "b"))}
        names = set.intersection(*({file.stem for file in of_side} for of_side in files.values()))
        if not names:
            held = "; ".join(f"{place} has {', '.join(file.stem for file in files[place])}" for place in files)
            raise UserError(f"no study is in both: {held}; name two results of one study")
        first, second = (_rows(place, [file for file in files[place] if file.stem in names]) for place in (a, b))
    both = [key for key in first if key in second]
    alike = [key for key in both if _problems(first[key], key) == _problems(second[key], key)]
    if not alike:
        rows = "no task, model and method is evaluated on the same problems in both"
        raise UserError(f"{a} and {b} have no number in common: {rows}; name two results of one study and scale")
    corrected = results.corrected([results.difference(first[key], second[key], key[3]) for key in alike])
    comparisons = dict(zip(alike, corrected, strict=True))
    states = {key: _state(comparisons.get(key)) for key in both}
    states |= {key: ONLY[i] for i, side in enumerate((first, second)) for key in side if key not in states}
    numbers = [[*key, s, first.get(key), second.get(key), comparisons.get(key)] for key, s in states.items()]
    return pd.DataFrame(numbers, columns=[*KEY, "state", "a", "b", "comparison"])


def _files(place: Path, unpacked: Path) -> list[Path]:
    """Return the files of a folder's studies, or the one of evidence, which goes to ``unpacked``. Raises UserError."""
    if place.suffix == ".zip":
        return [evidence.unpack(place, unpacked)]  # of a portion it is the whole study
    return [file for home in homes(place) for file in sorted(home.glob("studies/*.json"))]


def _rows(place: Path, files: Sequence[Path]) -> dict[Key, Result]:
    """Return the evaluated rows of studies by task, model, method and column. place: what was named.

    Raises UserError where a study is there twice.
    """
    for one, other in combinations(files, 2):
        if one.name == other.name:
            home = one.parents[1]
            raise UserError(
                f"{place}: {home} and {other.parents[1]} both hold {one.stem}; name one, for example {home}"
            )
    study = evaluated(merged([_of_runs(load(file)) for file in files]))
    collected = ((block, row) for block in study.blocks for row in results.collect(block, study).values())
    return {(b.task, b.model, row.method, name): row for b, row in collected for name, _ in results.columns(b)}


def _of_runs(study: StudyFile) -> StudyFile:
    """Return a study whose runs have the names of their folders: one study's tuned bapo is another's bapo+VARIANT."""
    return replace(study, cells=tuple(replace(cell, method=cell.run.parts[-2], tuned=()) for cell in study.cells))


def _problems(row: Result, key: Key) -> dict[str, tuple[str, ...]]:
    return {name: o.problems for name, o in row.outcomes.items() if key[3] in (name, results.AVERAGE)}


def _state(comparison: Comparison | None) -> str:
    if comparison is None:
        return OTHER
    sides = [side.column(comparison.column) for side in (comparison.a, comparison.b)]
    if all(x.shape == y.shape and np.array_equal(x, y) for x, y in zip(*sides, strict=True)):
        return IDENTICAL
    return DIFFERS if comparison.differ else AGREES


def counted(numbers: pd.DataFrame) -> str:
    """Return how many numbers are identical, and what the others are."""
    counts = numbers["state"].value_counts().to_dict()
    words = {AGREES: "agree within their intervals", DIFFERS: "differ", OTHER: "are of other problems"}
    others = [f"{counts[state]} {words[state]}" for state in words if state in counts]
    both = sum(count for state, count in counts.items() if state not in ONLY)
    return ", ".join([f"{counts.get(IDENTICAL, 0)} of {both} numbers are identical", *others])


def markdown(numbers: pd.DataFrame, sides: tuple[str, str]) -> str:
    """Return how many numbers agree, and each that does not."""
    parts = [f"# A: {sides[0]}, B: {sides[1]}", f"{counted(numbers)}."]
    cells = []
    for row in numbers[numbers["state"].isin([DIFFERS, OTHER])].to_dict("records"):
        c, means = row["comparison"], [row[side].mean(row["benchmark"]).tested for side in "ab"]
        minus = [text.change(*c.difference.tested.points), text.p_number(c.adjusted)] if c else [text.MISSING] * 2
        cells.append([*(row[k] for k in KEY), *(text.percent(*e.points) for e in means), *minus, row["state"]])
    if cells:
        head = ["Task", "Model", "Method", "Column", "A %", "B %", "A - B", "p Holm", "State"]
        parts += [markdown_table(head, cells, "llllrrrrl").rstrip()]
        parts += ["95% intervals and Holm's correction over all lines. With one seed two trained models are compared."]
    for state in ONLY:
        names = sorted({"/".join(key) for key in results.keys(numbers[numbers["state"] == state])})
        parts += [f"{state}: {', '.join(names)}"] if names else []
    return without_html("\n\n".join(parts) + "\n")
