"""Base models of one kind: the same model, data and training of the base, drawn from another seed.

All training seeds of one block start from one base model, so their spread says nothing of another base. Where a study
has several bases of a kind, a difference is pooled over them, with the base as a level of resampling.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from analysis import reading, results, statistics, text
from analysis.beyond import words
from analysis.page import Table
from analysis.results import AVERAGE, COST_HEADER, cost_cells
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

HEADER = ("Method", "Each base", "Avg minus reference", "Bases, seeds, problems drawn", "Bases alone (t)", *COST_HEADER)


def over_bases(compared: Sequence[Compared], study: Study) -> tuple[list[Table], list[dict[str, Any]]]:
    """Return a table of each kind of base with two or more blocks, and its rows under the columns of a comparison.

    A method has a row where it has a paired difference to the reference from every base.
    """
    tables, rows = [], []
    of = {id(c.block): c for c in compared}
    for blocks in of_one_kind([c.block for c in compared], study):
        same = [of[id(block)] for block in blocks]
        against = [c.against.get(AVERAGE, {}) for c in same]
        shown = []
        for method in (m for m in against[0] if all(m in a and a[m].paired for a in against)):
            results_of = [{r.method: r for r in c.rows} for c in same]
            seeds = min(a[method].paired for a in against)
            rows += (found := [*_rows(same, results_of, method, seeds)])
            costs = [rows[method].costs for rows in results_of]
            mean_costs = {key: sum(c[key] for c in costs) / len(costs) for key in costs[0]}
            shown += [[*_cells(row), *cost_cells(mean_costs)] for row in found if row["benchmark"] == AVERAGE]
        if shown:
            title = f"{blocks[0].task_title}, pooled over {len(same)} base models: minus {same[0].reference}"
            below = words("bases", bases=", ".join(b.model_title for b in blocks))
            tables.append(Table(title, HEADER, shown, "l" + "r" * (len(HEADER) - 1), below))
    return tables, rows


def _rows(
    same: Sequence[Compared], rows: Sequence[Mapping[str, results.Result]], method: str, seeds: int
) -> Iterator[dict[str, Any]]:
    """Yield one pooled row a column, in points."""
    block, reference = same[0].block, same[0].reference
    for column, title in results.columns(block):
        p = pooled([results.paired_tables(r[method], r[reference], column) for r in rows])
        yield {
            "task": block.task,
            "model": f"{block.model} over {len(same)} bases",
            "method": method,
            "title": rows[0][method].title,
            "benchmark": column,
            "benchmark_title": title,
            "seeds": seeds,
            "bases": len(same),
            "reference": reference,
            "difference": 100 * p.mean,
            "difference_low": 100 * p.low,
            "difference_high": 100 * p.high,
            **text.points(p.over_bases, "se", "low", "high", prefix="bases_"),
            **{f"base_{i}": 100 * d for i, d in enumerate(p.by_base, 1)},
        }


def _cells(row: Mapping[str, Any]) -> list[str]:
    each = ", ".join(text.signed(row[f"base_{i}"]) for i in range(1, row["bases"] + 1))
    ends = [f"{text.signed(row[f'{of}_low'])} to {text.signed(row[f'{of}_high'])}" for of in ("difference", "bases")]
    return [row["title"], each, text.signed(row["difference"]), *ends]
