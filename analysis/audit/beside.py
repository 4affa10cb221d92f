"""The printed numbers of a paper beside those of one's own runs: same task, same method, same benchmark."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from analysis import results, statistics, text
from analysis.audit.published import Block as Printed
from analysis.audit.published import Published
from analysis.claims.view import finished, merged, pruned
from analysis.page import markdown_table
from analysis.results import AVERAGE, BASE, Result
from analysis.statistics import Estimate
from analysis.study import Block, Study


@dataclass(frozen=True)
class Pair:
    """One printed number and ours, in percent; gains: over the row ``base`` of either side, in points, None without.

    printed: the paper's number as it is printed; paper: its value. here, gain: with the error for new problems and,
    where there are several, new training seeds.
    """

    task: str
    model: str
    method: str
    column: str
    here: Estimate
    seeds: int
    paper_model: str
    printed: str
    paper: float
    gain: Estimate | None
    paper_gain: float | None


def pairs(published: Published, studies: Sequence[Study]) -> list[Pair]:
    """Return every printed number of a task, row and column that the studies' finished runs have too.

    A column of the table is a benchmark of ours by its name, or by the benchmark whose part it plays; a row is a method
    by its key, ``base`` the model before training. Which models are compared is the reader's business: all are shown.
    """
    study = merged(studies)
    return [pair for block in study.blocks for pair in _of_block(published, block, study)]


def _of_block(published: Published, block: Block, study: Study) -> Iterator[Pair]:
    printed = [b for b in published.blocks if b.task == block.task]
    kept = pruned(block, evaluated=True)
    if kept.base and not finished(kept.base, True):
        kept = replace(kept, base=None)
    if not printed or not (kept.methods or kept.base):
        return
    rows = results.collect(kept, study)
    base = next((r for r in rows if r.is_base), None)
    for row in rows:
        for other in printed:
            for name, _ in results.columns(kept):
                column = published.setup.average if name == AVERAGE else kept.roles.get(name, name)
                theirs = other.row(row.method)
                if theirs and column in theirs.cells:
                    yield _pair(kept, row, base, name, other, column)


def _pair(block: Block, row: Result, base: Result | None, name: str, other: Printed, column: str) -> Pair:
    gain = paper_gain = None
    before = other.row(BASE)
    if base is not None and not row.is_base:
        compared = statistics.difference_over_seeds(row.column(name), base.column(name), (False, True))
        gain = compared.tested
    cell = other.row(row.method).cells[column]
    if before and not row.is_base and column in before.cells:
        paper_gain = cell.value - before.cells[column].value
    mean, seeds = row.mean(name).tested, 0 if row.is_base else len(row.seeds)
    return Pair(
        block.task, block.model, row.method, column, mean, seeds, other.title, cell.text, cell.value, gain, paper_gain
    )


def markdown(found: Sequence[Pair]) -> str:
    """Return one table a model of ours; gains are what models of other sizes can be compared by."""
    if not found:
        return "## Beside your runs\n\nNo task, method and benchmark of the table has finished runs here.\n"
    parts = ["## Beside your runs", "", "Percent; gains over the model before training in points; 95% intervals.", ""]
    for place in dict.fromkeys((p.task, p.model) for p in found):
        rows = [_row(p) for p in found if (p.task, p.model) == place]
        head = ["Method", "Column", "Here", "Seeds", "Gain here", "There", "Gain there", "Model there"]
        parts += [f"### {place[0]}, {place[1]}", "", markdown_table(head, rows, "llrrrrrl")]
    return "\n".join(parts)


def _row(p: Pair) -> list[str]:
    gain = text.MISSING if p.gain is None else f"{text.signed(100 * p.gain.mean)} ({text.interval(p.gain)})"
    there = text.MISSING if p.paper_gain is None else text.signed(p.paper_gain)
    seeds = text.MISSING if p.method == BASE else str(p.seeds)
    return [p.method, p.column, text.percent(p.here), seeds, gain, p.printed, there, p.paper_model]


def as_dictionary(p: Pair) -> dict[str, object]:
    """Return what the files hold of a pair: ours in percent and points, with the ends of the intervals."""
    names = ("task", "model", "method", "column", "seeds", "paper_model", "paper", "paper_gain")
    gain = text.points(p.gain, "mean", "low", "high", prefix="gain_") if p.gain else {}
    return {key: getattr(p, key) for key in names} | text.points(p.here, "mean", "low", "high", prefix="here_") | gain
