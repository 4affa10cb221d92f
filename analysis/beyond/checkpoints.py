"""Which checkpoint of a run to report: the last, the best on validation problems, or the best on the test problems.

The last rule picks on the very numbers that it then reports, which lie too high by the luck that the pick rewards. A
fourth rule says what is left without that luck: chosen on a random half of the test problems, measured on the other
half, averaged over SPLITS splits. Every seed's checkpoint is chosen for itself; step 0, before training, is not among
them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis import reading, statistics, text
from analysis.page import Page, Table
from analysis.results import AVERAGE
from analysis.statistics import OverSeeds
from analysis.study import Block, StudyFile
from bapo import seeds
from bapo.errors import UserError

LAST, VALIDATION, TEST, HALVES = "last", "best_on_validation", "best_on_test", "best_on_half_of_test"
SPLITS = 200
CHOSEN = {VALIDATION: "Best on validation", TEST: "Best on test", HALVES: "Best on half of test, measured on the other"}
#: rule -> its accuracies in [0, 1], one table [S, n] a benchmark, and the steps of the chosen checkpoints, one a seed:
#: none for HALVES, which chooses anew for every half
Rules = dict[str, tuple[list[np.ndarray], tuple[int, ...]]]
HEADER = ("Method", "Last", *(word for title in CHOSEN.values() for word in (title, "gain")))


def measure(
    tests: Mapping[str, np.ndarray], held_out: np.ndarray | None, steps: Sequence[int], splits: int = SPLITS
) -> Rules:
    """Return what each rule reports, of a method's checkpoints on the benchmarks ``tests``.

    tests: benchmark -> accuracy [S, T, n] at T trained checkpoints; held_out: that on the validation problems [S, T],
    None where there are none: then no rule needs them; steps: [T].
    """
    values = list(tests.values())
    rules = {LAST: np.full(len(values[0]), len(steps) - 1)}
    rules |= {} if held_out is None else {VALIDATION: best(held_out)}
    rules[TEST] = best(np.mean([v.mean(axis=2) for v in values], axis=0))
    reports: Rules = {rule: (at(values, i), tuple(steps[j] for j in i)) for rule, i in rules.items()}
    if all(v.shape[2] > 1 for v in values):
        reports[HALVES] = (crossed(tests, splits), ())
    return reports


def gain(reports: Rules, rule: str) -> OverSeeds:
    """Return a rule's gain over the last checkpoint, paired in models and problems: they are the same trained runs."""
    return statistics.mean_over_seeds(*(t - z for t, z in zip(reports[rule][0], reports[LAST][0], strict=True)))


def best(scores: np.ndarray) -> np.ndarray:
    """Return index [S] of each seed's highest score [S, T]; of equal ones the latest."""
    return scores.shape[1] - 1 - scores[:, ::-1].argmax(axis=1)


def at(values: Sequence[np.ndarray], chosen: np.ndarray) -> list[np.ndarray]:
    """Return the accuracies [S, n] of [S, T, n] at each seed's checkpoint [S]."""
    return [v[np.arange(len(v)), chosen] for v in values]


def crossed(tests: Mapping[str, np.ndarray], splits: int) -> list[np.ndarray]:
    """Return each problem's accuracy [S, n] at the checkpoint chosen on the half without it, mean over splits.

    The splits depend on the benchmark's name and size alone: all methods and seeds have the same.
    """
    values = list(tests.values())
    sums = [np.zeros(v[:, 0].shape) for v in values]
    for split in range(splits):
        orders = [seeds.generator(0, "halves", name, split).permutation(v.shape[2]) for name, v in tests.items()]
        halves = [[order[: len(order) // 2] for order in orders], [order[len(order) // 2 :] for order in orders]]
        for half, other in (halves, halves[::-1]):
            chosen = best(np.mean([v[:, :, h].mean(axis=2) for v, h in zip(values, half, strict=True)], axis=0))
            for total, accuracy, measured in zip(sums, at(values, chosen), other, strict=True):
                total[:, measured] += accuracy[:, measured]
    return [total / splits for total in sums]


def rows(block: Block, method: str, study: StudyFile) -> list[dict[str, Any]]:
    """Return a row a benchmark and rule in percent: the average of the tests and, where there are several, each."""
    cells = block.methods[method]
    validation = reading.summary(cells[0].run / "curve", study).get("validation")
    tests = [name for name, _ in block.benchmarks if name != validation]
    curves = {name: reading.curves(cells, name, study) for name in (*tests, *([validation] if validation else []))}
    steps = sorted(set.intersection(*(set(c.steps) for c in curves.values())) - {0})
    accuracy = {n: c.accuracy[:, [c.steps.index(s) for s in steps]] for n, c in curves.items()}
    held_out = accuracy[validation].mean(axis=2) if validation else None
    columns = {AVERAGE: tests} | ({name: [name] for name in tests} if len(tests) > 1 else {})
    rows = []
    for benchmark, names in columns.items():
        reports = measure({n: accuracy[n] for n in names}, held_out, steps)
        for rule, (tables, chosen) in reports.items():
            mean, more = statistics.mean_over_seeds(*tables), gain(reports, rule)
            rows.append(
                {
                    **block.keys(method),
                    "benchmark": benchmark,
                    "validation": validation or "",
                    "rule": rule,
                    "checkpoints": len(steps),
                    "samples": next(iter(curves.values())).samples,
                    "problems": sum(t.shape[1] for t in tables),
                    "seeds": len(cells),
                    "steps": " ".join(map(str, chosen)),
                    "accuracy": 100 * mean.mean,
                    **text.points(mean.problems, "low", "high"),
                    "gain": 100 * more.mean,
                    **text.points(more.problems, "low", "high", prefix="gain_", suffix="_problems"),
                    **text.points(more.tested, "low", "high", prefix="gain_"),
                    "cells": [
                        text.percent(*mean.problems.points),
                        "{} [{}, {}]".format(*map(text.signed, more.tested.points)),
                    ],
                }
            )
    return rows


def write(study: StudyFile, out: Path) -> list[Path]:
    """Write checkpoint_choice.csv, .md and .tex. Raises UserError where no method has evaluated checkpoints."""
    every, tables = list[dict[str, Any]](), []
    for block in study.blocks:
        by_method = {m: rows(block, m, study) for m in block.methods if m in study.curves}
        lines = []
        for method, of_method in by_method.items():
            every += of_method
            cells = {row["rule"]: row["cells"] for row in of_method if row["benchmark"] == AVERAGE}
            others = [cell for rule in CHOSEN for cell in cells.get(rule, [text.MISSING] * 2)]
            lines.append([block.method_title(method), cells[LAST][0], *others])
        if by_method:
            validation = every[-1]["validation"]
            tests = ", ".join(title for name, title in block.benchmarks if name != validation)
            below = [f"Test: {tests}. Validation: {validation or 'no problems were kept out of training for it'}."]
            tables.append(Table(block.title, HEADER, lines, below=below))
    if not every:
        raise UserError("the study has no run whose checkpoints were all evaluated; name methods under 'curves' in it")
    fields = {key: text.span([row[key] for row in every]) for key in ("checkpoints", "samples")}
    fields["seeds"] = text.counted([row["seeds"] for row in every], "seed")
    notes = text.words("checkpoints", **fields, splits=SPLITS)
    caption = "The last checkpoint, the best on validation problems and the best on the test problems."
    page = Page.of(study, "Choice of the checkpoint", tables, notes, caption=caption)
    return page.write(out, "checkpoint_choice", pd.DataFrame(every).drop(columns="cells"))
