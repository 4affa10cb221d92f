"""What a difference to the reference is by every standard test, so that a verdict that hangs on the choice is seen.

Paired: by problem and seed, with Holm's correction, as in a study's comparison. Unpaired: by problem alone, likewise.
Pooled: the mixed model of all rows with one variance of seeds, corrected after Dunnett (``statistics.pooled``). As
much compute, or as many updates, is another question than as many rollouts, so each is corrected apart. Where each
base model has one run a method, the base takes the place of the seed. All methods share it, so the pooled model has an
effect of the base, and signed ranks over bases, with Holm's correction, stand in the place of the unpaired test.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from analysis import reading, results, statistics, text
from analysis.page import Page, Table
from analysis.products import SPECIFICATIONS
from analysis.results import LEVEL, Result
from analysis.statistics import Estimate
from analysis.study import Block, StudyFile, replicates
from bapo.errors import UserError

#: budgets whose rows are a family of their own
FAMILIES = ("compute", "updates")
TESTS = ("paired", "unpaired", "pooled")
TESTS_OF_BASES = ("paired", "ranks", "pooled")
TITLES = {"paired": "Paired", "unpaired": "Unpaired", "ranks": "Signed ranks", "pooled": "Pooled"}


def family(method: str) -> str:
    """Return which rows a row is corrected with: its budget, where that is no number of steps or rollouts."""
    return next((name for name in FAMILIES if name in method.split("+")), "")


def compare(block: Block, study: StudyFile, bases: bool = False) -> dict[str, list[dict[str, Any]]]:
    """Return, of each benchmark and their average by title, a row a method in points.

    bases: whether base models stand in the seeds' place. Raises UserError without the reference, or without a row that
    shares two training seeds with it.
    """
    rows = results.collect(block, study)
    if study.reference not in rows:
        raise UserError(f"{study.name}: {block.title} has no run of {study.reference}, so nothing is compared")
    reference = rows[study.reference]
    trained = [row for row in rows.values() if len(row.seeds) > 1]
    others = [row for row in trained if row is not reference and len({*row.seeds} & {*reference.seeds}) > 1]
    if not others:
        raise UserError(f"{study.name}: {block.title}: no row shares two training seeds with {study.reference}")
    tables: dict[str, list[dict[str, Any]]] = {}
    for column, title in results.columns(block):
        of_column = []
        for name in dict.fromkeys(family(row.method) for row in others):
            of_family = [row for row in others if family(row.method) == name]
            of_column += _rows(of_family, trained, reference, block, column, bases)
        tables[title] = sorted(of_column, key=lambda row: list(rows).index(row["method"]))
    return tables


def _rows(
    others: Sequence[Result], trained: Sequence[Result], reference: Result, block: Block, column: str, bases: bool
) -> list[dict[str, Any]]:
    """Return the rows of one family in one column."""
    sides, beside = [row.side(column) for row in others], reference.side(column)
    all_rows = [row.side(column) for row in trained]
    paired = [statistics.difference(side, beside) for side in sides]
    estimates: dict[str, list[Estimate]] = {
        "paired": [difference.tested for difference in paired],
        "pooled": [statistics.pooled(all_rows, side, beside, bases) for side in sides],
    }
    p_values = {"paired": [e.p for e in estimates["paired"]]}
    if bases:
        p_values["ranks"] = [statistics.signed_ranks([*difference.by_seed.values()]) for difference in paired]
    else:
        estimates["unpaired"] = [statistics.unpaired(side, beside).tested for side in sides]
        p_values["unpaired"] = [e.p for e in estimates["unpaired"]]
    adjusted = {name: statistics.holm(p) for name, p in p_values.items()}
    adjusted["pooled"] = statistics.dunnett(estimates["pooled"])
    tests = TESTS_OF_BASES if bases else TESTS
    lines = []
    for i, row in enumerate(others):
        line: dict[str, Any] = {
            **block.keys(row.method),
            "title": row.title,
            "benchmark": column,
            "reference": reference.method,
        }
        for test in tests:
            if test in estimates:
                line |= text.columns(test, estimates[test][i], "low", "high")
            line |= {f"p_{test}": float(adjusted[test][i])}
        lines.append(line | {"verdict": verdict([line[f"p_{test}"] for test in tests], line["paired"])})
    return lines


def cell(row: dict[str, Any], test: str) -> str:
    """Return a test's interval, where it has one, and its p."""
    interval = [text.interval(*text.ends(row, test)[1:])] if test in row else []
    return ", ".join([*interval, f"p {text.p_number(row[f'p_{test}'])}"])


def verdict(p_values: Sequence[float], mean: float) -> str:
    """Say what all tests say of a difference, or that it depends on the test."""
    significant = {p < LEVEL for p in p_values}
    if len(significant) > 1:
        return "depends on the test"
    return ("above" if mean > 0 else "below") if significant.pop() else "not significant"


def write(study: StudyFile, out: Path) -> list[Path]:
    """Write specifications_STUDY.csv, .md and .tex. Raises UserError as :func:`compare`."""
    numbers, tables = [], []
    blocks = [(b, b not in of_kind) for of_kind in reading.kinds(study).values() for b in replicates(of_kind)]
    for block, bases in blocks:
        for column, rows in compare(block, study, bases).items():
            numbers += rows
            cells = [
                {
                    "Row": row["title"].lstrip("+"),
                    f"{column}, minus {block.plain_title(study.reference)}": text.signed(row["paired"]),
                    **{TITLES[t]: cell(row, t) for t in TITLES if f"p_{t}" in row},
                    "By all three": row["verdict"],
                }
                for row in rows
            ]
            tables.append(Table.of(f"{block.title}: {column}", cells))
    notes = text.words(SPECIFICATIONS, level=LEVEL)
    notes += text.words("specifications_of_bases") if any(bases for _, bases in blocks) else []
    page = Page.of(study, f"Specifications: {study.title}", tables, notes)
    return page.write(out, f"{SPECIFICATIONS}_{study.name}", numbers)
