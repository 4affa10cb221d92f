"""Base models of one kind: the same model, data and training of the base, drawn from another seed.

All training seeds of one block start from one base model, so their spread says nothing of another base. Where a study
has several bases of a kind, a difference is pooled over them, with the base as a level of resampling.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from analysis import reading, results, statistics, text
from analysis.page import Table
from analysis.results import AVERAGE
from analysis.study import Block, Study

if TYPE_CHECKING:
    from analysis.tables.comparison import Compared

#: parts of a run's config.yaml that make its base model
MAKES = ("task", "data", "model", "base")
#: of those, what differs between bases of one kind
DRAWN = {"model": ("name", "title"), "base": ("seed",)}
#: resamplings behind a pooled interval
DRAWS = 4000


def kind(block: Block, study: Study) -> str:
    """Return what makes a block's base model but for its seed; "" where the runs do not say."""
    first = next(iter(block.methods.values()))[0]
    config = reading.config(first, study)
    if any(not isinstance(config.get(key), dict) for key in MAKES):
        return ""
    made = {key: {k: v for k, v in config[key].items() if k not in DRAWN.get(key, ())} for key in MAKES}
    return json.dumps(made, sort_keys=True)


def of_one_kind(blocks: Sequence[Block], study: Study) -> list[list[Block]]:
    """Return the blocks whose bases are draws of one kind, two or more of each."""
    kinds: dict[str, list[Block]] = {}
    for block in blocks:
        kinds.setdefault(kind(block, study), []).append(block)
    return [same for name, same in kinds.items() if name and len(same) > 1]


def drawn(rng: np.random.Generator, count: int, draws: int) -> np.ndarray:
    """Return how often each of ``count`` things is in a resampling of them [draws, count]."""
    return rng.multinomial(count, np.full(count, 1 / count), draws)


@dataclass(frozen=True)
class Pooled:
    """A difference over bases, seeds and problems, as a fraction.

    low, high: 95% of a bootstrap that draws bases, then the seeds of each, and the problems once for all; over_bases:
    the mean of the bases' differences with its t interval, B - 1 degrees of freedom; by_base: these differences.
    """

    low: float
    high: float
    over_bases: statistics.Estimate
    by_base: tuple[float, ...]

    @property
    def mean(self) -> float:
        return self.over_bases.mean


def pooled(tables: Sequence[Sequence[np.ndarray]], draws: int = DRAWS) -> Pooled:
    """Return the mean over bases. tables: of each base, of each benchmark, the paired differences [S, n].

    The bases share their problems; S may differ. Raises ValueError where they do not or there is one base.
    """
    shapes = {tuple(t.shape[1] for t in of_base) for of_base in tables}
    if len(tables) < 2 or len(shapes) > 1:
        raise ValueError("pooled needs two or more bases with the same benchmarks and problems")
    rng = np.random.default_rng(0)
    weights = [drawn(rng, n, draws) / n for n in next(iter(shapes))]  # [draws, n] each
    # of each base, every seed's average over the drawn problems: [draws, S]
    seeds = [np.mean([w @ t.T for w, t in zip(weights, of_base, strict=True)], axis=0) for of_base in tables]
    means = np.zeros(draws)
    for _ in tables:
        values = np.stack([(x * drawn(rng, x.shape[1], draws)).mean(axis=1) for x in seeds])  # [B, draws]
        means += values[rng.integers(len(tables), size=draws), np.arange(draws)] / len(tables)
    by_base = tuple(float(np.mean([t.mean() for t in of_base])) for of_base in tables)
    low, high = np.quantile(means, [0.5 - statistics.CONFIDENCE / 2, 0.5 + statistics.CONFIDENCE / 2])
    return Pooled(float(low), float(high), statistics.clustered(np.array(by_base)), by_base)


# ------------------------------------------------------------------------------------------------ the table

HEADER = ("Method", "Each base", "Avg minus reference", "Bases, seeds, problems drawn", "Bases alone (t)")


def groups(compared: Sequence[Compared], study: Study) -> list[list[Compared]]:
    """Return the blocks of a comparison whose bases are of one kind, two or more of each."""
    of = {id(c.block): c for c in compared}
    return [[of[id(b)] for b in same] for same in of_one_kind([c.block for c in compared], study)]


def methods(same: Sequence[Compared]) -> list[str]:
    """Return the methods with a paired difference to the reference from every base."""
    return [m for m in same[0].against.get(AVERAGE, {}) if all(_paired(c, m) for c in same)]


def _paired(compared: Compared, method: str) -> int:
    against = compared.against.get(AVERAGE, {}).get(method)
    return against.paired if against else 0


def pool(same: Sequence[Compared], method: str, column: str) -> Pooled:
    """Return one method minus the reference over the bases."""
    rows = [{r.method: r for r in c.rows} for c in same]
    return pooled([results.paired_tables(r[method], r[c.reference], column) for r, c in zip(rows, same, strict=True)])


def table(same: Sequence[Compared]) -> Table:
    """Return the pooled rows of one kind of base."""
    shown = []
    for method in methods(same):
        p = pool(same, method, AVERAGE)
        rows = [next(r for r in c.rows if r.method == method) for c in same]
        costs = {key: sum(r.costs[key] for r in rows) / len(rows) for key in rows[0].costs}
        ends = f"{text.signed(100 * p.low)} to {text.signed(100 * p.high)}"
        each = ", ".join(text.signed(100 * d) for d in p.by_base)
        differences = [each, text.signed(100 * p.mean), ends, text.interval(p.over_bases)]
        shown.append([rows[0].title, *differences, *results.cost_cells(costs)])
    below = [
        "No verdict is given: the first interval is a bootstrap's over bases, seeds of each, and problems; over so few "
        "bases it is too narrow. Read the bases' own differences first.",
        f"Bases: {', '.join(c.block.model_title for c in same)}.",
    ]
    title = f"{same[0].block.task_title}, pooled over {len(same)} base models: minus {same[0].reference}"
    header = [*HEADER, *results.COST_HEADER]
    return Table(title, header, shown, "l" + "r" * (len(header) - 1), below)


def long_rows(same: Sequence[Compared]) -> list[dict[str, Any]]:
    """Return one pooled row a method and column, in points, under the columns of a comparison."""
    block, rows = same[0].block, []
    for method in methods(same):
        for column, title in results.columns(block):
            p = pool(same, method, column)
            rows.append(
                {
                    "task": block.task,
                    "model": f"{block.model} over {len(same)} bases",
                    "method": method,
                    "title": next(r.title for r in same[0].rows if r.method == method),
                    "benchmark": column,
                    "benchmark_title": title,
                    "seeds": min(_paired(c, method) for c in same),
                    "bases": len(same),
                    "reference": same[0].reference,
                    "difference": 100 * p.mean,
                    "difference_low": 100 * p.low,
                    "difference_high": 100 * p.high,
                    **text.points(p.over_bases, "se", "low", "high", prefix="bases_"),
                    **{f"base_{i}": 100 * d for i, d in enumerate(p.by_base, 1)},
                }
            )
    return rows
