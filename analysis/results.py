"""Evaluated methods of one block side by side: the numbers behind Table 1, and which differences are real."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any

import numpy as np

from analysis import reading, statistics, text
from analysis.study import Base, Block, Cell, Study
from bapo.errors import UserError

BASE = "base"
AVERAGE = "avg"
#: a difference is called real below this Holm-adjusted p
LEVEL = 1 - statistics.CONFIDENCE
#: the cost ledger: totals of a run's summary.json that a table of accuracies has as columns
COSTS = ("rollouts", "generated_tokens", "seconds", "updates", "forward_flops", "backward_flops")


#: columns of :func:`cost_cells`
COST_HEADER = ("Rollouts", "Updates", "FLOPs")


def cost_cells(costs: Mapping[str, float]) -> list[str]:
    """Return rollouts, updates and FLOPs (forward and backward) of a run."""
    flops = costs["forward_flops"] + costs["backward_flops"]
    return [text.thousands(costs["rollouts"]), text.thousands(costs["updates"]), text.operations(flops)]


@dataclass(frozen=True)
class Result:
    """One row of the table.

    accuracy: per benchmark, the problems' means of each seed [S, n]; outcomes: the 0/1 [S, n, K] behind them.
    costs: mean over seeds of each of COSTS; NaN for the base, whose training no method pays for.
    """

    method: str
    title: str
    kind: str
    seeds: tuple[int, ...]
    outcomes: dict[str, reading.Outcomes]
    accuracy: dict[str, np.ndarray]
    costs: dict[str, float]

    @property
    def is_base(self) -> bool:
        return self.method == BASE

    def column(self, name: str) -> list[np.ndarray]:
        """Return the benchmarks of a table column: itself, or all of them for the average."""
        return list(self.accuracy.values()) if name == AVERAGE else [self.accuracy[name]]

    def mean(self, name: str) -> statistics.SeedMean:
        return statistics.mean_over_seeds(*self.column(name))


def collect(block: Block, study: Study) -> list[Result]:
    """Return the rows of a block in the paper's order, base first. Raises UserError naming a broken run."""
    results = []
    if block.base:
        results.append(_result(BASE, block.model_title, "", (block.base,), block, study))
    for method, cells in block.methods.items():
        results.append(_result(method, block.method_title(method), cells[0].kind, cells, block, study))
    for name, _ in block.benchmarks:
        first = results[0]
        for other in results[1:]:
            if other.outcomes[name].problems != first.outcomes[name].problems:
                raise UserError(
                    f"{block.title}: {other.title} was evaluated on other problems of {name} than {first.title}; "
                    f"delete the eval/summary.json of both and give `{study.command}` again"
                )
    return results


def _result(method: str, title: str, kind: str, cells: Sequence[Cell | Base], block: Block, study: Study) -> Result:
    costs = dict.fromkeys(COSTS, float("nan")) if method == BASE else costs_of(cells, study)
    outcomes = {name: reading.evaluations(cells, name, study) for name, _ in block.benchmarks}
    accuracy = {name: o.correct.mean(axis=2) for name, o in outcomes.items()}
    return Result(method, title, kind, tuple(getattr(c, "seed", 0) for c in cells), outcomes, accuracy, costs)


def costs_of(cells: Sequence[Cell | Base], study: Study) -> dict[str, float]:
    """Return the mean over runs of each of COSTS; NaN where a summary lacks it."""
    totals = [reading.summary(c.run, study).get("totals", {}) for c in cells]
    return {name: float(np.mean([t.get(name, np.nan) for t in totals])) for name in COSTS}


def has_reference_pass(config: Mapping[str, Any]) -> bool:
    """Return whether a run's loss reads a reference model, which takes one more forward pass (config.yaml)."""
    method = config.get("method", {})
    return method.get("kl_to") in ("reference", "mixture") and method.get("kl_coef", 0) > 0


def columns(block: Block) -> list[tuple[str, str]]:
    """(name, title) of the accuracy columns: the benchmarks and their average."""
    return [*block.benchmarks, (AVERAGE, "Avg")]


# ------------------------------------------------------------------------------------------------ differences


@dataclass(frozen=True)
class Comparison:
    """a minus b in one column. adjusted: Holm's p over all pairs that are compared there.

    by_seed: the differences, as fractions, of the seeds that both have; empty where seeds count as independent.
    """

    a: Result
    b: Result
    column: str
    difference: statistics.SeedDifference
    adjusted: float = float("nan")
    by_seed: Mapping[int, float] = field(default_factory=dict)

    @property
    def paired(self) -> int:
        return len(self.by_seed)

    @property
    def differ(self) -> bool:
        """Return whether the trained models at hand differ, on new problems too."""
        return self.adjusted < LEVEL

    @property
    def real(self) -> bool:
        """Return whether the methods differ: two or more seeds of each trained side, as one seed is one model."""
        return self.differ and self.difference.several_seeds

    @property
    def verdict(self) -> str:
        if not np.isfinite(self.adjusted):
            return "cannot tell"
        if not self.differ:
            return "no real difference"
        return "above" if self.difference.mean > 0 else "below"


def between(pairs: Mapping[tuple[str, str], Comparison], a: str, b: str) -> Comparison | None:
    """Return a minus b of :func:`compare`, whichever way round the pair is kept; None where a row is missing."""
    if (a, b) in pairs or (b, a) not in pairs:
        return pairs.get((a, b))
    c = pairs[b, a]
    problems, both = (replace(e, mean=-e.mean) for e in (c.difference.problems, c.difference.both))
    return Comparison(c.b, c.a, c.column, replace(c.difference, problems=problems, both=both), c.adjusted)


def paired_tables(a: Result, b: Result, column: str) -> list[np.ndarray]:
    """Return a minus b on the seeds that they share, [S, n] of each benchmark of a column."""
    seeds = sorted(set(a.seeds) & set(b.seeds))
    x, y = (on_seeds(row.column(column), row.seeds, seeds) for row in (a, b))
    return [one - other for one, other in zip(x, y, strict=True)]


def on_seeds(tables: Sequence[np.ndarray], own: Sequence[int], wanted: Sequence[int]) -> list[np.ndarray]:
    """Return the rows of tables [S, ...], one for each seed of ``own``, that belong to ``wanted``, in its order."""
    places = [own.index(seed) for seed in wanted]
    return [table[places] for table in tables]


def paired(a: Result, b: Result, column: str) -> Comparison | None:
    """Return a minus b over the training seeds that two rows share; None where they share none."""
    seeds = [] if a.is_base or b.is_base else sorted(set(a.seeds) & set(b.seeds))
    if not seeds:
        return None
    tables = paired_tables(a, b, column)
    each = np.mean([t.mean(axis=1) for t in tables], axis=0)
    by_seed = dict(zip(seeds, map(float, each), strict=True))
    return Comparison(a, b, column, statistics.paired_over_seeds(tables), by_seed=by_seed)


def corrected(found: Sequence[Comparison]) -> list[Comparison]:
    """Return comparisons with Holm's p over all of them."""
    adjusted = statistics.holm([c.difference.tested.p for c in found])
    return [replace(c, adjusted=float(p)) for c, p in zip(found, adjusted, strict=True)]


def unpaired(a: Result, b: Result, column: str) -> Comparison:
    """Return a minus b, seeds independent. The base model adds no seeds."""
    fixed = (a.is_base, b.is_base)
    return Comparison(a, b, column, statistics.difference_over_seeds(a.column(column), b.column(column), fixed))


def compare(results: Sequence[Result], column: str) -> dict[tuple[str, str], Comparison]:
    """Return every pair of rows of a column, keyed by (method, method) in the order of the rows."""
    found = corrected([unpaired(a, b, column) for a, b in combinations(results, 2)])
    return {(c.a.method, c.b.method): c for c in found}


def against(rows: Sequence[Result], reference: Result, column: str) -> dict[str, Comparison]:
    """Return every trained row minus the reference: paired by the seeds that both have, else independent."""
    trained = [row for row in rows if row.method != reference.method and not row.is_base]
    found = [paired(row, reference, column) or unpaired(row, reference, column) for row in trained]
    return {c.a.method: c for c in corrected(found)}


def marks(results: Sequence[Result], column: str, pairs: Mapping[tuple[str, str], Comparison]) -> dict[str, str]:
    """Mark the best row bold if it is significantly above all others, then the second, underlined, likewise."""

    def real(a: Result, b: Result) -> bool:
        pair = between(pairs, a.method, b.method)
        return pair is not None and pair.real

    ranked = sorted(results, key=lambda r: -r.mean(column).mean)
    if len(ranked) < 2 or not all(real(ranked[0], r) for r in ranked[1:]):
        return {}
    marked = {ranked[0].method: text.BOLD}
    if len(ranked) > 2 and all(real(ranked[1], r) for r in ranked[2:]):
        marked[ranked[1].method] = text.UNDERLINE
    return marked
