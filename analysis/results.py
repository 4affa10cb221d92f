"""Evaluated methods as one tidy frame, from which tables, figures and CSV files take columns, and which differences
between them are real."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd

from analysis import paper, reading, statistics, text
from analysis.statistics import Side
from analysis.study import Base, Block, StudyFile, StudyRun
from bapo.errors import UserError

#: the column of means, the model before training, and the method whose gain over it is the scale of effects
AVERAGE, BASE, SCALE = paper.AVERAGE, paper.BASE, paper.REFERENCE
#: the margin of equivalence as a share of the paper's effect
MARGIN = 0.5
#: a difference is called real below this Holm-adjusted p
LEVEL = 1 - statistics.CONFIDENCE
#: the cost ledger: totals of a run's summary.json that a table of accuracies has as columns
COSTS = ("rollouts", "generated_tokens", "seconds", "updates", "forward_flops", "backward_flops")
#: columns that say which row of the frame it is
KEY = ["task", "model", "method", "benchmark"]
NAN = float("nan")
#: a row of the frame, by column; the rows of a block, by method and benchmark
Row = dict[str, Any]
ByMethod = Mapping[str, Mapping[str, Row]]


def cost_cells(costs: Mapping[str, float]) -> dict[str, str]:
    """Return rollouts, updates and FLOPs (forward and backward) of a run, under their headers."""
    flops = text.operations(costs["forward_flops"] + costs["backward_flops"])
    return {"Rollouts": text.thousands(costs["rollouts"]), "Updates": text.thousands(costs["updates"]), "FLOPs": flops}


@dataclass(frozen=True)
class Result:
    """One method of a block.

    seeds: none for the base; outcomes: per benchmark; costs: mean over seeds of each of COSTS, NaN for the base, whose
    training no method pays for; disputed: per benchmark that has it, the mean share of samples on which a second grader
    disagrees.
    """

    method: str
    title: str
    kind: str
    seeds: tuple[int, ...]
    outcomes: dict[str, reading.Outcomes]
    costs: dict[str, float]
    disputed: dict[str, float] = field(default_factory=dict)

    @property
    def is_base(self) -> bool:
        return self.method == BASE

    def column(self, name: str) -> list[np.ndarray]:
        """Return the accuracies [S, n] of the benchmark of a table column, or of all of them for the average."""
        return [outcome.accuracy for benchmark, outcome in self.outcomes.items() if name in (benchmark, AVERAGE)]

    def side(self, name: str) -> Side:
        """Return the method's part in a comparison."""
        return Side(self.column(name), self.seeds)

    def mean(self, name: str) -> statistics.OverSeeds:
        return statistics.mean_over_seeds(*self.column(name))


def collect(block: Block, study: StudyFile) -> dict[str, Result]:
    """Return the methods of a block in the paper's order, base first. Raises UserError naming a broken run."""
    runs = {BASE: (block.base,)} if block.base else {}
    rows = {method: _result(method, cells, block, study) for method, cells in (runs | dict(block.methods)).items()}
    for name, _ in block.benchmarks:
        first, *others = rows.values()
        for other in others:
            if other.outcomes[name].problems != first.outcomes[name].problems:
                raise UserError(
                    f"{block.title}: {other.title} was evaluated on other problems of {name} than {first.title}; "
                    f"delete the eval/summary.json of both and run `{study.command}` again"
                )
    return rows


def _result(method: str, cells: Sequence[StudyRun | Base], block: Block, study: StudyFile) -> Result:
    outcomes = {name: reading.evaluations(cells, name, study) for name, _ in block.benchmarks}
    runs = [cell for cell in cells if isinstance(cell, StudyRun)]
    costs = costs_of(runs, study) if runs else dict.fromkeys(COSTS, NAN)
    title, kind = (block.method_title(method), runs[0].kind) if runs else (block.model_title, "")
    summaries = [reading.summary(c.run / "eval", study)["benchmarks"] for c in cells]
    shares = {n: [b[n].get("second_grader_disagreement", np.nan) for b in summaries] for n, _ in block.benchmarks}
    disputed = {name: float(np.mean(values)) for name, values in shares.items() if np.isfinite(values).all()}
    return Result(method, title, kind, tuple(c.seed for c in runs), outcomes, costs, disputed)


def costs_of(cells: Sequence[StudyRun | Base], study: StudyFile) -> dict[str, float]:
    """Return the mean over runs of each of COSTS; NaN where a summary lacks it. Raises UserError for a broken run."""
    totals = [reading.summary(c.run, study).get("totals", {}) for c in cells]
    return {name: float(np.mean([t.get(name, np.nan) for t in totals])) for name in COSTS}


def has_reference_pass(config: Mapping[str, Any]) -> bool:
    """Return whether a run's loss reads a reference model, which takes one more forward pass (config.yaml)."""
    method = config.get("method", {})
    return method.get("kl_to") in ("reference", "mixture") and method.get("kl_coef", 0) > 0


def columns(block: Block) -> list[tuple[str, str]]:
    """Return (name, title) of the accuracy columns: the benchmarks and their average."""
    return [*block.benchmarks, (AVERAGE, "Avg")]


# ------------------------------------------------------------------------------------------------ the frame


def frame(study: StudyFile) -> pd.DataFrame:
    """Return a row a task, model, method and benchmark, the average of the benchmarks among these.

    In percent and points:

    =========================  ======================================================================================
    mean, se, low, high        accuracy and its interval for new problems; with ``_problems_and_seeds`` also new seeds
    seed_sd, seed_NUMBER       the spread between training seeds, and the accuracy of each
    difference and its ends    minus the study's reference, p, p_holm and verdict; margin: of equivalence, of the column
    over_base and its ends     minus the base model, over_base_p_holm
    share and its ends         (row - GRPO) / (GRPO - base)
    paper, paper_share         what the paper prints for the benchmark whose part this one plays (paper_benchmark)
    COSTS                      means over seeds
    result, against            the :class:`Result`, and the :class:`Comparison` with the reference, None without one
    =========================  ======================================================================================

    Raises UserError as :func:`collect`.
    """
    return pd.DataFrame([row for block in study.blocks for row in _rows(block, collect(block, study), study.reference)])


def _rows(block: Block, rows: Mapping[str, Result], reference: str) -> Iterator[Row]:
    printed, limits = paper.of_block(block), margins(block, rows)
    references = [method for method in (reference, BASE) if method in rows]
    beside = {m: {name: against(rows, m, name, limit) for name, limit in limits.items()} for m in references}
    gained = {name: shares(rows, name) for name in limits}
    for row in rows.values():
        for name, title in columns(block):
            outcomes, mean = [row.outcomes[b] for b, _ in block.benchmarks if name in (b, AVERAGE)], row.mean(name)
            noise = [statistics.sampling_noise(o.correct) for o in outcomes]
            test, gain = (beside[m][name].get(row.method) if m in beside else None for m in (reference, BASE))
            share, role = gained[name].get(row.method), block.roles.get(name, name)
            value = printed.value(row.method, role) if printed else None
            paper_share = printed.share_of_gain(row.method, role) if printed else None
            yield {
                **block.keys(row.method),
                "title": row.title,
                "kind": row.kind,
                "benchmark": name,
                "benchmark_title": title,
                "problems": sum(len(o.problems) for o in outcomes),
                "samples": outcomes[0].samples,
                "seeds": len(row.seeds),
                **text.points(mean.problems, "mean", "se", "low", "high"),
                "seed_sd": 100 * mean.seed_sd,
                **text.points(mean.both, "se", "low", "high", suffix="_problems_and_seeds"),
                "sampling_se": 100 * np.linalg.norm(noise) / np.size(noise),  # it holds for these problems and models
                **{f"pass@{k}": 100 * np.mean([o.pass_at(k).mean() for o in outcomes]) for k in (8, 32)},
                "unparsed": 100 * (1 - np.mean([o.parsed.mean() for o in outcomes])),
                **({"second_grader_disagreement": 100 * row.disputed[name]} if name in row.disputed else {}),
                "reference": reference,
                **columns_of(test),
                "margin": 100 * limits[name],
                **text.columns("share", share.tested if share else None, "low", "high"),
                **text.columns("over_base", gain.difference.tested if gain else None, "low", "high"),
                "over_base_p_holm": gain.adjusted if gain else NAN,
                "paper_model": printed.title if printed else "",
                "paper_benchmark": role,
                "paper": NAN if value is None else value,
                "paper_share": NAN if paper_share is None else 100 * paper_share,
                **row.costs,
                **{f"seed_{s}": 100 * v for s, v in zip(row.seeds, mean.seed_means, strict=not row.is_base)},
                "result": row,
                "against": test,
            }


def by_method(frame: pd.DataFrame, block: Block) -> ByMethod:
    """Return the rows of a block in the frame, by method and benchmark."""
    nested: dict[str, dict[str, Row]] = {}
    for row in frame[(frame["task"] == block.task) & (frame["model"] == block.model)].to_dict("records"):
        nested.setdefault(row["method"], {})[row["benchmark"]] = row
    return nested


def keys(frame: pd.DataFrame, *columns: str) -> list[tuple[Any, ...]]:
    """Return these columns of each row of a frame, by default task, model and method."""
    return list(frame[list(columns or KEY[:3])].itertuples(index=False, name=None))


# ------------------------------------------------------------------------------------------------ differences


def margin(block: Block, gain: float) -> float:
    """Return the margin of equivalence, in the unit of ``gain``, what GRPO gains here over its base model.

    An effect is a share of that gain, here and in the paper: the margin is MARGIN of what the paper's Table 1 shows for
    BAPO over GRPO, on average, with the model whose part this one plays. NaN without that model, or without a gain.
    """
    printed = paper.of_block(block)
    share = printed.share_of_gain(paper.PROPOSED, AVERAGE) if printed else None
    return MARGIN * share * gain if share is not None and gain > 0 else NAN


def margins(block: Block, rows: Mapping[str, Result]) -> dict[str, float]:
    """Return the margin of each column, as a fraction; NaN without GRPO or the base."""
    return {name: margin(block, _gain(rows, name)) for name, _ in columns(block)}


def _gain(rows: Mapping[str, Result], column: str) -> float:
    """Return what GRPO gains over its base; NaN without one of them."""
    ends = [rows[m].mean(column).mean if m in rows else NAN for m in (SCALE, BASE)]
    return ends[0] - ends[1]


def shares(rows: Mapping[str, Result], column: str) -> dict[str, statistics.OverSeeds]:
    """Return (row - GRPO) / (GRPO - base) of every row with a seed of GRPO's; none where GRPO gains nothing."""
    means = {}
    for method, row in rows.items() if _gain(rows, column) > 0 else ():
        if method not in (SCALE, BASE) and set(row.seeds) & set(rows[SCALE].seeds):
            a, b = statistics.aligned(row.side(column), rows[SCALE].side(column))
            tables = statistics.share_of_gain(a.tables, b.tables, rows[BASE].column(column))
            means[method] = statistics.mean_over_seeds(*tables)
    return means


@dataclass(frozen=True)
class Comparison:
    """The difference a minus b in one column. margin: of equivalence, a fraction, NaN where there is none.

    adjusted: Holm's p over all pairs that are compared there; equivalence: likewise of an effect of the margin.
    """

    a: Result
    b: Result
    column: str
    difference: statistics.OverSeeds
    margin: float = NAN
    adjusted: float = NAN
    equivalence: float = NAN

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
        return verdict(self.difference, self.adjusted, self.equivalence, self.margin)


def columns_of(comparison: Comparison | None) -> Row:
    """Return the columns of the frame about a comparison, in points; NaN and "" where nothing is compared."""
    tested = comparison.difference.tested if comparison else None
    return {
        **text.columns("difference", tested, "se", "low", "high"),
        "p": tested.p if tested else NAN,
        "p_holm": comparison.adjusted if comparison else NAN,
        "paired_seeds": len(comparison.difference.by_seed) if comparison else NAN,
        "verdict": comparison.verdict if comparison else "",
    }


#: the columns of :func:`pairs` where there is one method alone
NO_PAIRS: Row = dict.fromkeys((*KEY[:2], "benchmark", "of", "minus", *columns_of(None)), ())
NO_PAIRS |= {f"{end}{of}": () for of in ("_problems", "_problems_and_seeds") for end in ("se", "low", "high", "p")}
NO_PAIRS |= {"these_models_differ": (), "real": np.array([], dtype=bool), "margin": ()}


def verdict(difference: statistics.OverSeeds, adjusted: float, equivalence: float, margin: float) -> str:
    """Return above, below, "no effect larger than" the margin, or else "not significant".

    difference, margin: fractions; adjusted, equivalence: Holm's p of no effect, and of one of the margin. One training
    seed of a side makes one model, so it shows no equivalence of methods.
    """
    if adjusted < LEVEL:
        return "above" if difference.mean > 0 else "below"
    if difference.several_seeds and equivalence < LEVEL:
        return f"no effect larger than {text.number(100 * margin)} points"
    return "not significant"


def difference(a: Result, b: Result, column: str, margin: float = NAN) -> Comparison:
    """Return a minus b in a benchmark or AVERAGE, not corrected. margin: of equivalence, a fraction."""
    return Comparison(a, b, column, statistics.difference(a.side(column), b.side(column)), margin)


def corrected(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """Return comparisons with Holm's p over all of them."""
    adjusted = statistics.holm([c.difference.tested.p for c in comparisons])
    within = statistics.holm([c.difference.tested.p_equivalent(c.margin) for c in comparisons])
    of_each = zip(comparisons, adjusted, within, strict=True)
    return [replace(c, adjusted=float(p), equivalence=float(inside)) for c, p, inside in of_each]


def compare(rows: Sequence[Result], column: str, margin: float = NAN) -> dict[tuple[str, str], Comparison]:
    """Return every row minus every row before it, keyed by (method, method before it), as :func:`difference`."""
    every = corrected([difference(b, a, column, margin) for a, b in combinations(rows, 2)])
    return {(c.a.method, c.b.method): c for c in every}


def against(rows: Mapping[str, Result], reference: str, column: str, margin: float = NAN) -> dict[str, Comparison]:
    """Return every trained row minus the reference by its method, as :func:`difference`. rows: by method."""
    trained = [row for row in rows.values() if row.method != reference and not row.is_base]
    return {c.a.method: c for c in corrected([difference(row, rows[reference], column, margin) for row in trained])}


def pairs(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a row a pair of rows of the frame in one benchmark: the later minus the earlier in points, and its tests.

    of, minus: the methods. The intervals have the suffixes of the frame's; that of the difference is the stricter one
    that the data allow.
    """
    every = (
        (*place, c)
        for place, rows in frame.groupby(["task", "model", "benchmark"], sort=False)
        for c in compare(list(rows["result"]), str(place[2]), rows["margin"].iloc[0] / 100).values()
    )
    rows = [
        {
            "task": task,
            "model": model,
            "benchmark": column,
            "of": c.a.method,
            "minus": c.b.method,
            **columns_of(c),
            **text.points(c.difference.problems, "se", "low", "high", suffix="_problems"),
            "p_problems": c.difference.problems.p,
            **text.points(c.difference.both, "se", "low", "high", suffix="_problems_and_seeds"),
            "p_problems_and_seeds": c.difference.both.p,
            "these_models_differ": c.differ,
            "real": c.real,
            "margin": 100 * c.margin,
        }
        for task, model, column, c in every
    ]
    return pd.DataFrame(rows or NO_PAIRS)


def of_pair(pairs: pd.DataFrame, block: Block, of: str, minus: str, benchmark: str = AVERAGE) -> Row:
    """Return the row of :func:`pairs` for ``of``, which comes later, minus ``minus`` in one benchmark of a block."""
    key = {"task": block.task, "model": block.model, "benchmark": benchmark, "of": of, "minus": minus}
    return pairs.set_index([*key]).loc[tuple(key.values())].to_dict()


def mirrored(pairs: pd.DataFrame) -> pd.DataFrame:
    """Return :func:`pairs` as table1_differences.csv has them: the earlier row a minus the later row b."""
    frame = pairs.rename(columns={"minus": "a", "of": "b"}).drop(columns=["p", *pairs.filter(like="difference_")])
    frame["difference"] = 0.0 - pairs["difference"]
    for suffix in ("_problems", "_problems_and_seeds"):
        frame[f"low{suffix}"], frame[f"high{suffix}"] = 0.0 - pairs[f"high{suffix}"], 0.0 - pairs[f"low{suffix}"]
    frame["verdict"] = pairs["verdict"].replace({"above": "below", "below": "above"})
    return frame


def marks(frame: pd.DataFrame, pairs: pd.DataFrame) -> list[str]:
    """Return the mark of each row of the frame, "" for none (:func:`marked`)."""
    place, marks = ["task", "model", "benchmark"], dict[tuple[str, ...], str]()
    real = pairs[pairs["real"]].set_index(place)
    for key, rows in frame.groupby(place):
        means = dict(zip(rows["method"], rows["mean"], strict=True))
        pairs_here = keys(real.loc[[key]], "of", "minus") if key in real.index else []
        marks |= {(*key, m): mark for m, mark in marked(means, pairs_here).items()}
    return [marks.get(key, "") for key in keys(frame, *place, "method")]


def marked(means: Mapping[str, float], real: Collection[tuple[str, str]]) -> dict[str, str]:
    """Mark the best method bold if it is significantly above all others, then the second, underlined, likewise.

    real: pairs of methods that differ, either way round.
    """
    ranked, marks = sorted(means, key=lambda method: -means[method]), dict[str, str]()
    for place, mark in enumerate((text.BOLD, text.UNDERLINE), start=1):
        others = ranked[place:]
        if not others or not all({(ranked[place - 1], m), (m, ranked[place - 1])} & {*real} for m in others):
            break
        marks[ranked[place - 1]] = mark
    return marks
