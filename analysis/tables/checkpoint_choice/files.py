"""The table of checkpoint choices in words: checkpoint_choice.csv, .md and .tex."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from analysis import text
from analysis.page import Page, Table, at_scale
from analysis.study import Study
from analysis.tables.checkpoint_choice import numbers as choice
from analysis.tables.checkpoint_choice.numbers import AVERAGE, HALVES, LAST, TEST, TITLES, VALIDATION, Choice

HEADER = (
    "Method",
    "Last",
    "Best on validation",
    "gain",
    "Best on test",
    "gain",
    "Best on half of test, measured on the other",
    "gain",
)


def write(study: Study, out: Path) -> list[Path]:
    """Write the table in every format; returns the files."""
    choices = choice.collect(study)
    tables = []
    for title, group in groupby(choices, key=lambda c: c.block.title):
        block = list(group)
        tables.append(Table(title, HEADER, rows(block), "l" + "r" * (len(HEADER) - 1), sentences(block)))
    page = Page(
        at_scale("Choice of the checkpoint", study.scale),
        tables,
        notes(choices, study),
        caption="The last checkpoint, the best on validation problems and the best on the test problems.",
    )
    return page.write(out, "checkpoint_choice", choice.long_table(choices))


def rows(choices: Sequence[Choice]) -> list[list[str]]:
    """Return a row for each method, on the average of the tests; single benchmarks are in the CSV file."""
    return [[c.block.method_title(c.method), *_cells(c)] for c in choices if c.benchmark == AVERAGE]


def _cells(c: Choice) -> list[str]:
    cells = [text.percent(c.rules[LAST].accuracy.problems)]
    for rule in (VALIDATION, TEST, HALVES):
        if measured := c.rules.get(rule):
            gain = measured.gain.tested
            ends = [text.signed(100 * x) for x in (gain.mean, gain.low, gain.high)]
            cells += [text.percent(measured.accuracy.problems), f"{ends[0]} [{ends[1]}, {ends[2]}]"]
        else:
            cells += [text.MISSING, text.MISSING]
    return cells


def sentences(block: Sequence[Choice]) -> list[str]:
    """Say what choosing on the test problems would have gained in each choice of one block, and at which steps."""
    averages = [c for c in block if c.benchmark == AVERAGE]
    first = averages[0]
    tests = ", ".join(title for name, title in first.block.benchmarks if name != first.validation)
    held_out = first.validation or "no problems were kept out of training for it"
    said = [f"Test: {tests}. Validation: {held_out}."]
    for c in averages:
        steps = "; ".join(
            f"{TITLES[r]}: step {', '.join(map(str, c.rules[r].steps))}" for r in (VALIDATION, TEST) if r in c.rules
        )
        name = c.block.method_title(c.method).lstrip("+")
        said.append(f"{name}: choosing on test seems to gain {_seeming([c])} ({steps}).")
        single = [o for o in block if o.method == c.method and o.benchmark != AVERAGE]
        if single:
            said[-1] += f" Chosen on each benchmark for that benchmark alone, on average {_seeming(single)}."
    return said


def _seeming(choices: Sequence[Choice]) -> str:
    """Say the mean gain as it seems, and as it is on problems that did not choose."""
    seems, holds = (
        text.signed(100 * sum(c.rules[r].gain.mean for c in choices) / len(choices))
        if all(r in c.rules for c in choices)
        else text.MISSING
        for r in (TEST, HALVES)
    )
    return f"{seems} points, {holds} when measured on problems it was not chosen on"


def notes(choices: Sequence[Choice], study: Study) -> list[str]:
    """Return how to read the table."""
    checkpoints = text.span(sorted({c.checkpoints for c in choices}))
    samples = text.span(sorted({c.samples for c in choices}))
    seeds = text.counted([len(c.rules[LAST].tables[0]) for c in choices], "seed")
    said = [
        f"Accuracy in percent, average of the test benchmarks, {samples} samples a problem, mean over {seeds}, ± 95% "
        f"interval for new problems. Each seed's checkpoint is chosen for itself, from {checkpoints} kept after the "
        "start; of equal ones the latest.",
        "Gain: minus the last checkpoint of the same seed on the same problems, with the 95% interval for new problems "
        "and, with two or more seeds, new training runs.",
        '"Best on test" is chosen on the samples that it is measured on: it can never lie below the last, and its '
        "interval knows nothing of the choice.",
        '"Best on half" is chosen on a random half of the problems of each test benchmark and measured on the other, '
        f"mean over {choice.SPLITS} splits, both halves in turn. Half as many problems choose less well than all, so "
        "it is, if anything, below what a choice on all test problems would gain on new ones. Its interval takes the "
        "problems as independent, although they share their choices.",
    ]
    return [*said, study.note] if study.note else said
