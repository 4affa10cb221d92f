"""Evaluated methods of one block side by side: the numbers behind Table 1, and which differences are real."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any

import numpy as np

from analysis import paper, reading, statistics, text
from analysis.statistics import Side
from analysis.study import Base, Block, Cell, Study
from bapo.errors import UserError

#: the column of means, the model before training, and the method whose gain over it is the scale of effects
AVERAGE, BASE, SCALE = paper.AVERAGE, paper.BASE, paper.REFERENCE
#: of the paper's effect: a difference that is surely smaller is none of that size
MARGIN = 0.5
#: a difference is called real below this Holm-adjusted p
LEVEL = 1 - statistics.CONFIDENCE
#: the cost ledger: totals of a run's summary.json that a table of accuracies has as columns
COSTS = ("rollouts", "generated_tokens", "seconds", "updates", "forward_flops", "backward_flops")


def cost_cells(costs: Mapping[str, float]) -> dict[str, str]:
    """Return rollouts, updates and FLOPs (forward and backward) of a run, under their headers."""
    flops = text.operations(costs["forward_flops"] + costs["backward_flops"])
    return {"Rollouts": text.thousands(costs["rollouts"]), "Updates": text.thousands(costs["updates"]), "FLOPs": flops}


@dataclass(frozen=True)
class Result:
    """One row of the table.

    seeds: none for the base. accuracy: per benchmark, the problems' means of each seed [S, n]; outcomes: the 0/1
    [S, n, K] behind them. costs: mean over seeds of each of COSTS; NaN for the base, whose training no method pays for.
    disputed: per benchmark that has it, the mean share of samples on which a second grader disagrees.
    """

    method: str
    title: str
    kind: str
    seeds: tuple[int, ...]
    outcomes: dict[str, reading.Outcomes]
    accuracy: dict[str, np.ndarray]
    costs: dict[str, float]
    disputed: dict[str, float] = field(default_factory=dict)

    @property
    def is_base(self) -> bool:
        return self.method == BASE

    def column(self, name: str) -> list[np.ndarray]:
        """Return the benchmarks of a table column: itself, or all of them for the average."""
        return list(self.accuracy.values()) if name == AVERAGE else [self.accuracy[name]]

    def side(self, name: str) -> Side:
        """Return the row's part in a comparison."""
        return Side(self.column(name), self.seeds)

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
    seeds = tuple(c.seed for c in cells if isinstance(c, Cell))
    return Result(method, title, kind, seeds, outcomes, accuracy, costs, _disputed(cells, study))


def _disputed(cells: Sequence[Cell | Base], study: Study) -> dict[str, float]:
    """Return the share of disputed samples, a mean over seeds, of the benchmarks that have it in every evaluation."""
    found = [reading.summary(c.run / "eval", study)["benchmarks"] for c in cells]
    shares = {name: [b[name].get("second_grader_disagreement", np.nan) for b in found] for name in found[0]}
    return {name: float(np.mean(values)) for name, values in shares.items() if np.isfinite(values).all()}


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


def margin(block: Block, gain: float) -> float:
    """Return the margin of equivalence, in the unit of ``gain``, what GRPO gains here over its base model.

    An effect is a share of that gain, here and in the paper: the margin is MARGIN of what the paper's Table 1 shows for
    BAPO over GRPO, on average, with the model whose part this one plays. NaN without that model, or without a gain.
    """
    printed = paper.match(block.task, block.model, block.paper_model)
    share = printed.share_of_gain(paper.PROPOSED, AVERAGE) if printed else None
    return MARGIN * share * gain if share is not None and gain > 0 else float("nan")


def margins(block: Block, rows: Sequence[Result]) -> dict[str, float]:
    """Return the margin of each column, as a fraction; NaN without GRPO or the base."""
    of = {r.method: r for r in rows}
    return {name: margin(block, _gain(of, name)) for name, _ in columns(block)}


def _gain(of: Mapping[str, Result], column: str) -> float:
    """Return what GRPO gains over its base; NaN without one of them."""
    ends = [of[m].mean(column).mean if m in of else float("nan") for m in (SCALE, BASE)]
    return ends[0] - ends[1]


def shares(rows: Sequence[Result], column: str) -> dict[str, statistics.SeedMean]:
    """Return (row - GRPO) / (GRPO - base) of every row with a seed of GRPO's; none where GRPO gains nothing."""
    of = {r.method: r for r in rows}
    found = {}
    for row in rows:
        if _gain(of, column) > 0 and row.method not in (SCALE, BASE) and set(row.seeds) & set(of[SCALE].seeds):
            a, b = statistics.aligned(row.side(column), of[SCALE].side(column))
            tables = statistics.share_of_gain(a.tables, b.tables, of[BASE].column(column))
            found[row.method] = statistics.mean_over_seeds(*tables)
    return found


@dataclass(frozen=True)
class Comparison:
    """a minus b in one column. margin: of equivalence, NaN where there is none.

    adjusted: Holm's p over all pairs that are compared there.
    """

    a: Result
    b: Result
    column: str
    difference: statistics.SeedDifference
    margin: float = float("nan")
    adjusted: float = float("nan")

    @property
    def by_seed_and_problem(self) -> list[np.ndarray]:
        """Return the differences [S, n] of each benchmark, of the training seeds that both rows have."""
        a, b = statistics.aligned(self.a.side(self.column), self.b.side(self.column))
        return [x - y for x, y in zip(a.tables, b.tables, strict=True)]

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
        return verdict(self.difference, self.adjusted, self.margin)


def verdict(difference: statistics.OverSeeds, adjusted: float, margin: float) -> str:
    """Return above, below, "no effect larger than" the margin, or else "not significant".

    difference, margin: fractions; one training seed of a side makes one model, so it shows no equivalence of methods.
    """
    if adjusted < LEVEL:
        return "above" if difference.mean > 0 else "below"
    if difference.several_seeds and difference.tested.equivalent(margin):
        return f"no effect larger than {text.number(100 * margin)} points"
    return "not significant"


def between(pairs: Mapping[tuple[str, str], Comparison], a: str, b: str) -> Comparison | None:
    """Return a minus b of :func:`compare`, whichever way round the pair is kept; None where a row is missing."""
    if (b, a) not in pairs:
        return pairs.get((a, b))
    c = pairs[b, a]
    return replace(difference(c.b, c.a, c.column, c.margin), adjusted=c.adjusted)


def difference(a: Result, b: Result, column: str, margin: float = float("nan")) -> Comparison:
    """Return a minus b, not corrected."""
    return Comparison(a, b, column, statistics.difference(a.side(column), b.side(column)), margin)


def corrected(found: Sequence[Comparison]) -> list[Comparison]:
    """Return comparisons with Holm's p over all of them."""
    adjusted = statistics.holm([c.difference.tested.p for c in found])
    return [replace(c, adjusted=float(p)) for c, p in zip(found, adjusted, strict=True)]


def compare(results: Sequence[Result], column: str, margin: float = float("nan")) -> dict[tuple[str, str], Comparison]:
    """Return every pair of rows of a column, keyed by (method, method) in the order of the rows."""
    found = corrected([difference(a, b, column, margin) for a, b in combinations(results, 2)])
    return {(c.a.method, c.b.method): c for c in found}


def against(
    rows: Sequence[Result], reference: Result, column: str, margin: float = float("nan")
) -> dict[str, Comparison]:
    """Return every trained row minus the reference."""
    trained = [row for row in rows if row.method != reference.method and not row.is_base]
    return {c.a.method: c for c in corrected([difference(row, reference, column, margin) for row in trained])}


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
