"""Training prompts by how often the base model solves them: does a method solve those that the base never solves?

A prompt at 0/G may be one that the base solves one time in ten. Every run of the reference probes the base at step 0,
so S seeds give S times G samples of each prompt, which separate the two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from analysis import probes, statistics, text
from analysis.page import Page, Table
from analysis.products import SOLVE_RATE
from analysis.results import Row
from analysis.study import Block, StudyFile
from bapo.errors import UserError

#: name of a class -> the highest solve rate of the base model in it
CLASSES = {"never": 0.0, "up to 2%": 0.02, "2 to 15%": 0.15, "above 15%": 1.0}
#: classes with fewer prompts are left out, since their intervals would say nothing
FEWEST = 10


def compare(block: Block, study: StudyFile) -> list[Row]:
    """Return a row a method and class of prompts, in percent and points.

    solved: share of prompts with a correct answer at the end; accuracy: share of correct answers; minus_solved,
    minus_accuracy: less the reference, as the differences of tables are estimated. Raises UserError where the base was
    not probed, the reference did not run, or two runs were probed on different prompts.
    """
    probed = probes.of_block(block, study)
    if study.reference not in probed:
        raise UserError(f"{study.name}: {study.reference} has no run from {block.title}; {study.command}")
    base = probed[study.reference]
    if 0 not in base.steps:
        raise UserError(f"{study.name}: its runs were not probed before training")
    of_class = np.searchsorted(list(CLASSES.values()), np.mean(base.at(0), axis=0) / base.samples)
    rows = []
    for k, name in enumerate(CLASSES):
        chosen = of_class == k
        if chosen.sum() < FEWEST:
            continue
        reference = _measures(base, chosen)
        for method, probing in probed.items():
            row = {**block.keys(method), "class": name, "prompts": int(chosen.sum()), "seeds": len(probing.seeds)}
            row["tries"] = base.samples * len(base.seeds)
            for measure, side in _measures(probing, chosen).items():
                row[measure] = 100 * float(side.tables[0].mean())
                if method != study.reference:
                    difference = statistics.difference(side, reference[measure]).tested
                    row |= text.columns(f"minus_{measure}", difference, "low", "high")
            rows.append(row)
    return rows


def _measures(probing: probes.Probes, chosen: np.ndarray) -> dict[str, statistics.Side]:
    """Return tables [S, n] of the chosen prompts at the last step: whether each was solved, and its accuracy."""
    correct = np.stack(probing.at(probing.steps[-1]))[:, chosen]
    tables = {"solved": (correct > 0).astype(float), "accuracy": correct / probing.samples}
    return {measure: statistics.Side([table], probing.seeds) for measure, table in tables.items()}


def _table(title: str, block: Block, methods: Iterable[str], rows: Sequence[Row], form: Callable[[Row], str]) -> Table:
    """Return a table with a line a method and a column a class of prompts. form: the text of a row."""
    lines = {method: {"Method": block.plain_title(method)} for method in methods}
    for row in rows:
        if row["method"] in lines:
            lines[row["method"]][f"{row['class']} ({row['prompts']} prompts)"] = form(row)
    return Table.of(title, list(lines.values()))


def _minus(name: str, row: Row) -> str:
    return text.change(*text.ends(row, name))


def write(study: StudyFile, out: Path) -> list[Path]:
    """Write solve_rate_STUDY.csv, .md and .tex. Raises UserError as :func:`compare`."""
    numbers, tables = [], []
    for block in study.blocks:
        rows = compare(block, study)
        numbers += rows
        title = f"{block.title}: prompts solved at least once (accuracy), percent"
        tables.append(_table(title, block, block.methods, rows, lambda r: f"{r['solved']:.1f} ({r['accuracy']:.1f})"))
        others = [method for method in block.methods if method != study.reference]
        for measure, words in {"solved": "Solved at least once", "accuracy": "Accuracy"}.items() if others else ():
            title = f"{block.title}: {words}, minus {block.plain_title(study.reference)}"
            tables.append(_table(title, block, others, rows, partial(_minus, f"minus_{measure}")))
    if not numbers:
        cure = f"set probe.prompts to {FEWEST} or more"
        raise UserError(f"{study.name}: no class of solve rates has {FEWEST} probed prompts; {cure}")
    notes = text.words(SOLVE_RATE, tries=text.span([row["tries"] for row in numbers]), fewest=FEWEST)
    page = Page.of(study, f"Training prompts by the base model's solve rate: {study.title}", tables, notes)
    return page.write(out, f"{SOLVE_RATE}_{study.name}", numbers)
