"""Each difference to the reference by every standard test, which shows verdicts that depend on the choice of the test.

Paired: by problem and seed, with Holm's correction, as in a study's comparison. Unpaired: by problem alone, likewise.
Pooled: the mixed model of all rows with one variance of seeds, corrected after Dunnett (``statistics.pooled``). As
much compute, or as many updates, is another question than as many rollouts, so each is corrected apart. Where each
base model has one run a method, the base takes the place of the seed. All methods share it, so the pooled model has an
effect of the base, and signed ranks over bases, with Holm's correction, stand in the place of the unpaired test.
Several problems may show the same angles. A fourth test of such benchmarks is the paired one for new angles.
Whether a difference depends on the base model is seen from its weaker and its stronger half.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from analysis import reading, results, statistics, text
from analysis.page import Page, Table
from analysis.products import SPECIFICATIONS
from analysis.results import LEVEL, Result, Row
from analysis.statistics import Side
from analysis.study import Block, StudyFile, replicates
from bapo.errors import UserError
from bapo.tasks.geometry.generator import shown_angles, to_instance

#: budgets whose rows are corrected apart from the others
FAMILIES = ("compute", "updates")
#: test -> its title, in the order of the table
TITLES = {"paired": "Paired", "unpaired": "Unpaired", "ranks": "Signed ranks", "pooled": "Pooled"}
TITLES |= {"angles": "New angles"}
COUNTS = {3: "three", 4: "four"}


def family(method: str) -> str:
    """Return the family of rows that a row is corrected with: its budget if it is one of FAMILIES, else ""."""
    return next((name for name in FAMILIES if name in method.split("+")), "")


def angles_of(problem: str) -> str:
    """Return the angles that a generated diagram shows; of another problem its id."""
    with contextlib.suppress(ValueError, TypeError):
        return shown_angles(to_instance(problem).diagram)
    return problem


def compare(block: Block, study: StudyFile, strengths: Mapping[int, float] | None = None) -> dict[str, list[Row]]:
    """Return, of each benchmark and their average by title, a row a method in points.

    strengths: accuracy of the base model by training seed, where base models stand in the seeds' place. Raises
    UserError without the reference, or without a row that shares two training seeds with it.
    """
    rows = results.collect(block, study)
    if study.reference not in rows:
        raise UserError(f"{study.name}: {block.title} has no run of {study.reference}, so nothing is compared")
    reference = rows[study.reference]
    trained = [row for row in rows.values() if len(row.seeds) > 1]
    others = [row for row in trained if row is not reference and len({*row.seeds} & {*reference.seeds}) > 1]
    if not others:
        raise UserError(f"{study.name}: {block.title}: no row shares two training seeds with {study.reference}")
    tables: dict[str, list[Row]] = {}
    for column, title in results.columns(block):
        of_column = []
        for name in dict.fromkeys(family(row.method) for row in others):
            of_family = [row for row in others if family(row.method) == name]
            of_column += _rows(of_family, trained, reference, block, column, strengths)
        tables[title] = sorted(of_column, key=lambda row: list(rows).index(row["method"]))
    return tables


def _rows(
    others: Sequence[Result],
    trained: Sequence[Result],
    reference: Result,
    block: Block,
    column: str,
    strengths: Mapping[int, float] | None,
) -> list[Row]:
    """Return the rows of one family in one column."""
    bases = strengths is not None
    sides, beside = [row.side(column) for row in others], reference.side(column)
    paired = [statistics.difference(side, beside) for side in sides]
    estimates = {"paired": [difference.tested for difference in paired]}
    if not bases:
        estimates["unpaired"] = [statistics.unpaired(side, beside).tested for side in sides]
    benchmarks = [*reference.outcomes] if column == results.AVERAGE else [column]
    units = [[angles_of(problem) for problem in reference.outcomes[name].problems] for name in benchmarks]
    numbers = [len({*of_benchmark}) for of_benchmark in units]
    if min(numbers) > 2 and sum(numbers) < sum(map(len, units)):
        differences = [results.difference(row, reference, column).by_seed_and_problem for row in others]
        estimates["angles"] = [
            statistics.mean_over_seeds(*map(statistics.by_unit, tables, units)).tested for tables in differences
        ]
    adjusted = {test: statistics.holm([e.p for e in of_test]) for test, of_test in estimates.items()}
    if bases:
        adjusted["ranks"] = statistics.holm([statistics.signed_ranks([*d.by_seed.values()]) for d in paired])
    all_rows = [row.side(column) for row in trained]
    estimates["pooled"] = [statistics.pooled(all_rows, side, beside, bases) for side in sides]
    adjusted["pooled"] = statistics.dunnett(estimates["pooled"])
    tests = [test for test in TITLES if test in adjusted]
    lines = []
    for i, row in enumerate(others):
        line: Row = {**block.keys(row.method), "title": row.title, "benchmark": column}
        line["reference"] = reference.method
        for test in tests:
            if test in estimates:
                line |= text.columns(test, estimates[test][i], "low", "high")
            line |= {f"p_{test}": float(adjusted[test][i])}
        if "angles" in tests and column == results.AVERAGE:
            line |= without_largest(row, reference, units)
        if strengths and len(strengths) > 3 and column == results.AVERAGE:
            line |= by_strength(row, reference, strengths)
        lines.append(line | {"verdict": verdict([line[f"p_{test}"] for test in tests], line["paired"])})
    return lines


def cell(row: Row, test: str) -> str:
    """Return a test's interval, where it has one, and its p."""
    interval = [text.interval(*text.ends(row, test)[1:])] if test in row else []
    return ", ".join([*interval, f"p {text.p_number(row[f'p_{test}'])}"])


def without_largest(row: Result, reference: Result, units: Sequence[Sequence[str]]) -> Row:
    """Return which two combinations of angles bring most of the average's difference, and what it is without them.

    In points: brought by them, and without them with its interval for new problems and seeds. units: of each benchmark
    what its problems show.
    """
    tables = results.difference(row, reference, results.AVERAGE).by_seed_and_problem
    brought: dict[tuple[int, str], float] = {}
    for i, (table, of_benchmark) in enumerate(zip(tables, units, strict=True)):
        for unit, value in zip(of_benchmark, table.mean(axis=0) / len(of_benchmark) / len(tables), strict=True):
            brought[i, unit] = brought.get((i, unit), 0.0) + float(value)
    sign = np.sign(sum(brought.values()))
    largest = sorted(brought, key=lambda key: -sign * brought[key])[:2]
    others = [np.array([(i, unit) not in largest for unit in of_benchmark]) for i, of_benchmark in enumerate(units)]
    rest = statistics.mean_over_seeds(*(table[:, left] for table, left in zip(tables, others, strict=True)))
    return {
        "combinations": ", ".join(unit.replace(":", " ") for _, unit in largest),
        "problems": f"{sum((~left).sum() for left in others)} of {sum(map(len, others))}",
        "brought": 100 * sum(brought[key] for key in largest),
        **text.columns("without", rest.tested, "low", "high"),
    }


def by_strength(row: Result, reference: Result, strengths: Mapping[int, float]) -> Row:
    """Return the average's difference from the weaker and from the stronger half of the base models, in points.

    Each has its interval for new problems and base models, and p_halves is of their difference. strengths: as in
    :func:`compare`; the base model in the middle of an odd number is among the stronger.
    """
    tables = results.difference(row, reference, results.AVERAGE).by_seed_and_problem
    seeds = [seed for seed in row.seeds if seed in reference.seeds]
    order = np.argsort([strengths[seed] for seed in seeds], kind="stable")
    halves = dict(zip(("weaker", "stronger"), (order[: len(order) // 2], order[len(order) // 2 :]), strict=True))
    sides = {name: Side([table[half] for table in tables], half.tolist()) for name, half in halves.items()}
    cells: Row = {"p_halves": statistics.difference(*sides.values()).tested.p}
    for name, side in sides.items():
        cells |= text.columns(name, statistics.mean_over_seeds(*side.tables).tested, "low", "high")
    return cells


def verdict(p_values: Sequence[float], mean: float) -> str:
    """Return what all tests say of a difference, or that it depends on the test."""
    significant = {p < LEVEL for p in p_values}
    if len(significant) > 1:
        return "depends on the test"
    return ("above" if mean > 0 else "below") if significant.pop() else "not significant"


def _strengths(blocks: Sequence[Block], study: StudyFile) -> dict[int, float]:
    """Return the average accuracy of each block's base model by its training seed; none where one has no base."""
    strengths: dict[int, float] = {}
    for block in blocks:
        if block.base is None:
            return {}
        accuracies = [reading.evaluations([block.base], name, study).accuracy.mean() for name, _ in block.benchmarks]
        strengths |= dict.fromkeys((c.seed for cells in block.methods.values() for c in cells), np.mean(accuracies))
    return strengths


def _by_test(row: Row) -> dict[str, str]:
    tests = [test for test in TITLES if f"p_{test}" in row]
    return {TITLES[test]: cell(row, test) for test in tests} | {f"By all {COUNTS[len(tests)]}": row["verdict"]}


def _by_angles(row: Row) -> dict[str, str]:
    cells = {"Two angles": row["combinations"], "Problems": row["problems"], "They bring": text.signed(row["brought"])}
    return cells | {"Without them": text.change(*text.ends(row, "without"))}


def _by_half(row: Row) -> dict[str, str]:
    cells = {f"{name.title()} half": text.change(*text.ends(row, name)) for name in ("weaker", "stronger")}
    return cells | {"p of their difference": text.p_number(row["p_halves"])}


def write(study: StudyFile, out: Path) -> list[Path]:
    """Write specifications_STUDY.csv, .md and .tex. Raises UserError as :func:`compare`."""
    numbers, tables = [], []
    blocks = [
        (b, None if b in of_kind else _strengths(of_kind, study))
        for of_kind in reading.kinds(study).values()
        for b in replicates(of_kind)
    ]
    for block, strengths in blocks:
        for column, rows in compare(block, study, strengths).items():
            numbers += rows
            minus = f"{column}, minus {block.plain_title(study.reference)}"
            every = [({"Row": r["title"].lstrip("+"), minus: text.signed(r["paired"])}, r) for r in rows]
            of_page = {"": [start | _by_test(row) for start, row in every]}
            of_page[", by angles"] = [start | _by_angles(row) for start, row in every if "without" in row]
            of_page[", by base model"] = [start | _by_half(row) for start, row in every if "p_halves" in row]
            tables += [Table.of(f"{block.title}: {column}{name}", lines) for name, lines in of_page.items() if lines]
    notes = text.words(SPECIFICATIONS, level=LEVEL)
    notes += text.words("specifications_of_bases") if any(strengths is not None for _, strengths in blocks) else []
    notes += text.words("specifications_of_angles") if any("p_angles" in row for row in numbers) else []
    page = Page.of(study, f"Specifications: {study.title}", tables, notes)
    return page.write(out, f"{SPECIFICATIONS}_{study.name}", numbers)
