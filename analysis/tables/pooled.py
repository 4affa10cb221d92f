"""The part of a comparison that speaks of more than one base: differences pooled over base models of one kind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from analysis import results, text
from analysis.beyond import bases
from analysis.page import Table
from analysis.results import AVERAGE

if TYPE_CHECKING:
    from analysis.beyond.bases import Pooled
    from analysis.study import Study
    from analysis.tables.comparison import Compared

HEADER = (
    "Method",
    "Each base",
    "Avg minus reference",
    "Bases, seeds, problems drawn",
    "Bases alone (t)",
    "Rollouts",
    "Updates",
    "FLOPs",
)


def groups(compared: Sequence[Compared], study: Study) -> list[list[Compared]]:
    """Return the blocks of a comparison whose bases are of one kind, two or more of each."""
    of = {id(c.block): c for c in compared}
    return [[of[id(b)] for b in same] for same in bases.of_one_kind([c.block for c in compared], study)]


def methods(same: Sequence[Compared]) -> list[str]:
    """Return the methods with a paired difference to the reference from every base."""
    return [m for m in same[0].against.get(AVERAGE, {}) if all(_paired(c, m) for c in same)]


def _paired(compared: Compared, method: str) -> int:
    against = compared.against.get(AVERAGE, {}).get(method)
    return against.paired if against else 0


def pool(same: Sequence[Compared], method: str, column: str) -> Pooled:
    """Return one method minus the reference over the bases."""
    tables = []
    for c in same:
        rows = {r.method: r for r in c.rows}
        tables.append(results.paired_tables(rows[method], rows[c.reference], column))
    return bases.pooled(tables)


def table(same: Sequence[Compared]) -> Table:
    """Return the pooled rows of one kind of base."""
    shown = []
    for method in methods(same):
        p = pool(same, method, AVERAGE)
        rows = [next(r for r in c.rows if r.method == method) for c in same]
        costs = {key: sum(r.costs[key] for r in rows) / len(rows) for key in rows[0].costs}
        shown.append(
            [
                rows[0].title,
                ", ".join(text.signed(100 * d) for d in p.by_base),
                text.signed(100 * p.mean),
                f"{text.signed(100 * p.low)} to {text.signed(100 * p.high)}",
                text.interval(p.over_bases),
                text.thousands(costs["rollouts"]),
                text.thousands(costs["updates"]),
                f"{costs['forward_flops'] + costs['backward_flops']:.3g}",
            ]
        )
    block = same[0].block
    below = [
        bases.few(len(same)),
        "No verdict is given: the first interval is a bootstrap's percentiles over bases, seeds of each, and problems.",
        f"Bases: {', '.join(c.block.model_title for c in same)}.",
    ]
    title = f"{block.task_title}, pooled over {len(same)} base models: minus {same[0].reference}"
    return Table(title, HEADER, shown, "l" + "r" * (len(HEADER) - 1), below)


def long_rows(same: Sequence[Compared]) -> list[dict[str, Any]]:
    """Return one pooled row a method and column, in points, under the columns of a comparison."""
    rows = []
    for method in methods(same):
        for column, title in results.columns(same[0].block):
            p = pool(same, method, column)
            rows.append(
                {
                    **bases.named([c.block for c in same]),
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
                    "bases_se": 100 * p.over_bases.se,
                    "bases_low": 100 * p.over_bases.low,
                    "bases_high": 100 * p.over_bases.high,
                    **{f"base_{i}": 100 * d for i, d in enumerate(p.by_base, 1)},
                }
            )
    return rows
