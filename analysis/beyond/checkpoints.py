"""Which checkpoint of a run to report: the last, the best on validation problems, or the best on the test problems.

The last rule picks on the very numbers that it then reports, which lie too high by the luck that the pick rewards. A
fourth rule says what is left without that luck: chosen on a random half of the test problems, measured on the other
half, averaged over SPLITS splits. Every seed's checkpoint is chosen for itself; step 0, before training, is not among
them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from analysis import reading, statistics, text
from analysis.page import Page, Table, at_scale
from analysis.results import AVERAGE
from analysis.study import Block, Study
from bapo import seeds
from bapo.errors import UserError

LAST, VALIDATION, TEST, HALVES = "last", "best_on_validation", "best_on_test", "best_on_half_of_test"
SPLITS = 200


@dataclass(frozen=True)
class Measured:
    """A method's accuracy under one rule.

    tables: one a benchmark, [S, n] in [0, 1]; gains: the same minus the last checkpoint's; steps: of the chosen
    checkpoints, one a seed (none for HALVES, which chooses anew for every half).
    """

    tables: list[np.ndarray]
    gains: list[np.ndarray]
    steps: tuple[int, ...]

    @property
    def accuracy(self) -> statistics.SeedMean:
        return statistics.mean_over_seeds(*self.tables)

    @property
    def gain(self) -> statistics.SeedMean:
        """Return the gain, paired in models and problems: both sides are the same trained runs."""
        return statistics.mean_over_seeds(*self.gains)


@dataclass(frozen=True)
class Choice:
    """All rules for one method, on one benchmark or on the average of the tests."""

    block: Block
    method: str
    benchmark: str
    validation: str | None
    checkpoints: int
    samples: int
    rules: dict[str, Measured]


def collect(study: Study) -> list[Choice]:
    """Return every method with curves, on the average of its test benchmarks and, where there are several, on each."""
    choices = [
        choice
        for block in study.blocks
        for method in block.methods
        if method in study.curves
        for choice in _choices(block, method, study)
    ]
    if not choices:
        raise UserError("the study has no run whose checkpoints were all evaluated; name methods under 'curves' in it")
    return choices


def _choices(block: Block, method: str, study: Study) -> list[Choice]:
    cells = block.methods[method]
    validation = reading.validation(cells, study)
    tests = [name for name, _ in block.benchmarks if name != validation]
    curves = {name: reading.curves(cells, name, study) for name in (*tests, *([validation] if validation else []))}
    steps = sorted(set.intersection(*(set(c.steps) for c in curves.values())) - {0})
    accuracy = {n: c.accuracy[:, [c.steps.index(s) for s in steps]] for n, c in curves.items()}
    held_out = accuracy[validation].mean(axis=2) if validation else None
    samples = next(iter(curves.values())).samples
    columns = {AVERAGE: tests} | ({name: [name] for name in tests} if len(tests) > 1 else {})
    rules = {column: measure({n: accuracy[n] for n in names}, held_out, steps) for column, names in columns.items()}
    return [Choice(block, method, c, validation, len(steps), samples, measured) for c, measured in rules.items()]


# ------------------------------------------------------------------------------------------------ rules


def measure(
    tests: dict[str, np.ndarray], held_out: np.ndarray | None, steps: Sequence[int], splits: int = SPLITS
) -> dict[str, Measured]:
    """Return what each rule reports, of a method's checkpoints on the benchmarks ``tests``.

    tests: benchmark -> accuracy [S, T, n] at T trained checkpoints; held_out: that on the validation problems [S, T],
    None where there are none: then no rule needs them; steps: [T].
    """
    values = list(tests.values())
    last = [v[:, -1] for v in values]
    count = len(last[0])

    def picked(chosen: np.ndarray) -> Measured:
        tables = [v[np.arange(count), chosen] for v in values]
        gains = [t - z for t, z in zip(tables, last, strict=True)]
        return Measured(tables, gains, tuple(steps[i] for i in chosen))

    rules = {LAST: picked(np.full(count, len(steps) - 1))}
    if held_out is not None:
        rules[VALIDATION] = picked(best(held_out))
    rules[TEST] = picked(best(np.mean([v.mean(axis=2) for v in values], axis=0)))
    if all(v.shape[2] > 1 for v in values):
        tables = crossed(tests, splits)
        rules[HALVES] = Measured(tables, [t - z for t, z in zip(tables, last, strict=True)], ())
    return rules


def best(scores: np.ndarray) -> np.ndarray:
    """Return index [S] of each seed's highest score [S, T]; of equal ones the latest."""
    return scores.shape[1] - 1 - scores[:, ::-1].argmax(axis=1)


def crossed(tests: dict[str, np.ndarray], splits: int) -> list[np.ndarray]:
    """Return each problem's accuracy [S, n] at the checkpoint chosen on the half without it, mean over splits.

    The splits depend on the benchmark's name and size alone: all methods and seeds have the same.
    """
    sums = {name: np.zeros(v[:, 0].shape) for name, v in tests.items()}
    for split in range(splits):
        halves = {}
        for name, v in tests.items():
            n = v.shape[2]
            order = seeds.generator(0, "halves", name, split).permutation(n)
            halves[name] = (order[: n // 2], order[n // 2 :])
        for chosen_on, measured_on in ((0, 1), (1, 0)):
            scores = np.mean([v[:, :, halves[n][chosen_on]].mean(axis=2) for n, v in tests.items()], axis=0)
            chosen = best(scores)
            for name, v in tests.items():
                other = halves[name][measured_on]
                sums[name][:, other] += v[np.arange(len(v)), chosen][:, other]
    return [total / splits for total in sums.values()]


# ------------------------------------------------------------------------------------------------ numbers


def long_rows(c: Choice) -> list[dict[str, Any]]:
    """Return a row for each rule, in percent."""
    return [
        {
            **c.block.keys(c.method),
            "benchmark": c.benchmark,
            "validation": c.validation or "",
            "rule": rule,
            "checkpoints": c.checkpoints,
            "samples": c.samples,
            "problems": sum(t.shape[1] for t in m.tables),
            "seeds": len(m.tables[0]),
            "steps": " ".join(map(str, m.steps)),
            "accuracy": 100 * m.accuracy.mean,
            **text.points(m.accuracy.problems, "low", "high"),
            "gain": 100 * m.gain.mean,
            **text.points(m.gain.problems, "low", "high", prefix="gain_", suffix="_problems"),
            **text.points(m.gain.tested, "low", "high", prefix="gain_"),
        }
        for rule, m in c.rules.items()
    ]


# ------------------------------------------------------------------------------------------------ the table

CHOSEN = ("Best on validation", "Best on test", "Best on half of test, measured on the other")
HEADER = ("Method", "Last", *(word for rule in CHOSEN for word in (rule, "gain")))


def write(study: Study, out: Path) -> list[Path]:
    """Write the table in every format; returns the files."""
    import pandas as pd

    choices = collect(study)
    tables = []
    for title, group in groupby(choices, key=lambda c: c.block.title):
        block = list(group)
        first = block[0]
        shown = [[c.block.method_title(c.method), *_cells(c)] for c in block if c.benchmark == AVERAGE]
        tests = ", ".join(title for name, title in first.block.benchmarks if name != first.validation)
        below = [f"Test: {tests}. Validation: {first.validation or 'no problems were kept out of training for it'}."]
        tables.append(Table(title, HEADER, shown, "l" + "r" * (len(HEADER) - 1), below))
    page = Page(
        at_scale("Choice of the checkpoint", study.scale),
        tables,
        notes(choices, study),
        caption="The last checkpoint, the best on validation problems and the best on the test problems.",
    )
    return page.write(out, "checkpoint_choice", pd.DataFrame([row for c in choices for row in long_rows(c)]))


def _cells(c: Choice) -> list[str]:
    cells = [text.percent(c.rules[LAST].accuracy.problems)]
    for rule in (VALIDATION, TEST, HALVES):
        if measured := c.rules.get(rule):
            mean, low, high = (text.signed(100 * getattr(measured.gain.tested, end)) for end in ("mean", "low", "high"))
            cells += [text.percent(measured.accuracy.problems), f"{mean} [{low}, {high}]"]
        else:
            cells += [text.MISSING, text.MISSING]
    return cells


def notes(choices: Sequence[Choice], study: Study) -> list[str]:
    checkpoints, samples = (text.span([getattr(c, n) for c in choices]) for n in ("checkpoints", "samples"))
    seeds = text.counted([len(c.rules[LAST].tables[0]) for c in choices], "seed")
    return [
        f"Accuracy in percent, average of the test benchmarks, {samples} samples a problem, mean over {seeds}, ± 95% "
        f"interval for new problems; each seed chooses for itself, of {checkpoints} checkpoints.",
        "Gain: minus the last checkpoint, paired, with the 95% interval for new problems and, from two seeds on, runs.",
        "Best on test reports the samples that it was chosen on, and can never lie below the last.",
        f"Best on half of test: chosen on a random half of the problems, measured on the other, mean over {SPLITS} "
        "splits; its interval takes the problems as independent.",
        *([study.note] if study.note else []),
    ]
