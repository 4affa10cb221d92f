"""Test problems by how often the base model solves them: from which of them does a method's lead come?

The table of training prompts is :mod:`analysis.beyond.solve_rate`'s. Here the base model's own evaluation says how
often it solves a problem. A training run is one observation: with the base model that it began from where these differ.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from analysis import reading, results, statistics, text
from analysis.page import Page, Table
from analysis.products import COVERAGE
from analysis.results import BASE, Row
from analysis.study import Base, Block, StudyFile, replicates
from bapo.errors import UserError

#: name of a class -> the highest solve rate of the base model in it
CLASSES = {"never": 0.0, "up to 15%": 0.15, "above 15%": 1.0}
#: a base model with fewer problems in a class is left out of it, since its share would be noise
FEWEST = 10
#: a method with fewer runs is left out, since the spread of two says hardly anything
FEWEST_RUNS = 3


def compare(block: Block, bases: Mapping[int, Base], study: StudyFile) -> list[Row]:
    """Return a row a method, number of tries k and class of problems, in percent and points.

    solved: share of problems with a correct answer in k tries; minus: less the reference's, with its interval for new
    training runs. bases: the base model of each training seed. Raises UserError without a run of the reference.
    """
    rows = {name: row for name, row in results.collect(block, study).items() if name != BASE}
    if study.reference not in rows:
        raise UserError(f"{study.name}: {block.title} has no run of {study.reference}, so nothing is compared")
    names = [name for name, _ in block.benchmarks]
    rates: dict[int, np.ndarray] = {}
    for seed, base in bases.items():
        evaluated = {name: reading.evaluations([base], name, study) for name in names}
        if any(evaluated[name].problems != rows[study.reference].outcomes[name].problems for name in names):
            raise UserError(
                f"{base.run}: evaluated on other problems than its runs of {study.reference}; delete the "
                f"eval/summary.json of both and run `{study.command}` again"
            )
        rates[seed] = np.concatenate([outcomes.accuracy[0] for outcomes in evaluated.values()])
    ends = list(CLASSES.values())
    classes = {seed: np.searchsorted(ends, of_seed) for seed, of_seed in rates.items()}
    most = min(outcomes.samples for row in rows.values() for outcomes in row.outcomes.values())
    lines = []
    for k in dict.fromkeys((1, most)):
        chances = {
            method: dict(zip(row.seeds, np.hstack([row.outcomes[name].pass_at(k) for name in names]), strict=True))
            for method, row in rows.items()
        }
        for i, name in enumerate(CLASSES):
            chosen = {seed: of_seed == i for seed, of_seed in classes.items() if (of_seed == i).sum() >= FEWEST}
            counts = [int(mask.sum()) for mask in chosen.values()]
            shares = {
                method: {seed: of_method[seed][mask].mean() for seed, mask in chosen.items() if seed in of_method}
                for method, of_method in chances.items()
            }
            of_reference = shares[study.reference]
            for method, solved in shares.items():
                differences = [value - of_reference[seed] for seed, value in solved.items() if seed in of_reference]
                if len(differences) < FEWEST_RUNS:
                    continue
                line: Row = {**block.keys(method), "k": k, "class": name, "problems": text.span(counts)}
                line |= {"runs": len(solved), "solved": 100 * float(np.mean([*solved.values()]))}
                if method != study.reference:
                    line |= text.columns("minus", statistics.clustered(np.array(differences)), "low", "high")
                lines.append(line)
    return lines


def _tables(block: Block, rows: Sequence[Row], reference: str) -> list[Table]:
    """Return a table a number of tries, with a line a method and a column a class of problems."""
    tables = []
    for k in dict.fromkeys(row["k"] for row in rows):
        of_k = [row for row in rows if row["k"] == k]
        lines = {row["method"]: {"Method": block.plain_title(row["method"])} for row in of_k}
        for row in of_k:
            shown = f"{row['solved']:.1f}" if row["method"] == reference else text.change(*text.ends(row, "minus"))
            lines[row["method"]][f"{row['class']} ({row['problems']} problems)"] = shown
        tries = "the first try" if k == 1 else f"{k} tries"
        title = f"{block.title}: solved in {tries}, minus {block.plain_title(reference)}"
        tables.append(Table.of(title, list(lines.values())))
    return tables


def write(study: StudyFile, out: Path) -> list[Path]:
    """Write coverage_STUDY.csv, .md and .tex. Raises UserError as :func:`compare`, or where no runs can be compared."""
    numbers, tables = [], []
    for of_kind in reading.kinds(study).values():
        for block in replicates(of_kind):
            parts = [block] if block in of_kind else of_kind
            bases = {c.seed: p.base for p in parts if p.base for cells in p.methods.values() for c in cells}
            rows = compare(block, bases, study)
            numbers += rows
            tables += _tables(block, rows, study.reference)
    if not numbers:
        needed = f"{FEWEST_RUNS} runs, from evaluated base models of one kind, with {FEWEST} problems in a class"
        raise UserError(f"{study.name}: no method has {needed}")
    notes = text.words(COVERAGE, fewest=FEWEST)
    page = Page.of(study, f"Test problems by the base model's solve rate: {study.title}", tables, notes)
    return page.write(out, f"{COVERAGE}_{study.name}", numbers)
