"""The numbers of Table 1: what each of its sections compares, and the two CSV tables."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from analysis import paper, results, statistics, text
from analysis.results import AVERAGE, Comparison, Result
from analysis.study import Block, Study
from analysis.tables.table1.replay import Replay, replays


@dataclass(frozen=True)
class Section:
    """One block with everything that its rows need."""

    block: Block
    rows: list[Result]
    columns: list[tuple[str, str]]
    comparisons: dict[str, dict[tuple[str, str], Comparison]]  # by column
    marks: dict[str, dict[str, str]]  # by column, by method
    paper: paper.Block | None
    replays: dict[str, Replay]  # by method, of those that replay

    @staticmethod
    def of(block: Block, study: Study, compared: bool = True) -> Section:
        """compared: with what is said of rows beside each other; not of rows that are to change."""
        rows, columns = results.collect(block, study), results.columns(block)
        comparisons = {name: results.compare(rows, name) for name, _ in columns if compared}
        marks = {name: results.marks(rows, name, pairs) for name, pairs in comparisons.items()}
        printed = paper.match(block.task, block.model, block.paper_model)
        replayed = replays(block, study) if compared else {}
        return Section(block, rows, columns, comparisons, marks, printed, replayed)

    def comparison(self, column: str, a: str, b: str) -> Comparison | None:
        """a minus b, whichever way round the pair is kept."""
        pairs = self.comparisons[column]
        if (a, b) in pairs:
            return pairs[(a, b)]
        if (b, a) not in pairs:
            return None
        c = pairs[(b, a)]
        flip = [statistics.Estimate(-e.mean, e.se, e.df) for e in (c.difference.problems, c.difference.both)]
        return Comparison(c.b, c.a, column, statistics.SeedDifference(*flip, c.difference.falling), c.adjusted)

    def printed(self, method: str, column: str) -> str | None:
        """Return the paper's number in a column of ours ("avg", "rollouts" and "type" among them), or None."""
        return self.paper.printed(method, self.block.roles.get(column, column)) if self.paper else None


# ------------------------------------------------------------------------------------------------ CSV


def long_table(sections: list[Section]) -> Any:
    """Return a DataFrame, one row a model x method x column (percent; costs are means over seeds)."""
    import pandas as pd

    frame = pd.DataFrame([row for s in sections for row in _long_rows(s)])
    seeds = sorted((c for c in frame if c.startswith("seed_") and c[5:].isdigit()), key=lambda c: int(c[5:]))
    return frame[[c for c in frame if c not in seeds] + seeds]


def _long_rows(section: Section) -> Iterator[dict[str, Any]]:
    block = section.block
    for row in section.rows:
        replay = section.replays.get(row.method)
        for name, title in section.columns:
            m = row.mean(name)
            outcomes = [row.outcomes[b] for b, _ in block.benchmarks if name in (b, AVERAGE)]
            role = block.roles.get(name, name)
            value = section.paper.value(row.method, role) if section.paper else None
            yield {
                **block.keys(row.method),
                "method_title": row.title,
                "type": row.kind,
                "benchmark": name,
                "benchmark_title": title,
                "problems": sum(len(o.problems) for o in outcomes),
                "samples": outcomes[0].samples,
                "seeds": 0 if row.is_base else len(row.seeds),
                **text.points(m.problems, "mean", "se", "low", "high"),
                "seed_sd": 100 * m.seed_sd,
                **text.points(m.both, "se", "low", "high", suffix="_problems_and_seeds"),
                "sampling_se": 100 * _sampling(outcomes),
                **_pass_at_k(outcomes),
                "unparsed": 100 * (1 - np.mean([o.parsed.mean() for o in outcomes])),
                "mark": section.marks[name].get(row.method, ""),
                **row.costs,
                "replayed": 100 * replay.share if replay else 0.0,
                "replaying_steps": replay.steps if replay else 0.0,
                "paper_model": section.paper.title if section.paper else "",
                "paper_benchmark": role,
                "paper": value,
                **({} if row.is_base else {f"seed_{s}": 100 * v for s, v in zip(row.seeds, m.seed_means, strict=True)}),
            }


def _sampling(outcomes: list[Any]) -> float:
    """Standard error from sampling alone, on these problems and trained models."""
    per_benchmark = [
        statistics.average_standard_error([statistics.sampling_noise(bits) for bits in o.correct]) for o in outcomes
    ]
    return statistics.average_standard_error(per_benchmark)


def _pass_at_k(outcomes: list[Any]) -> dict[str, float]:
    """pass@8 and pass@32 in percent, where there are that many samples; the mean over seeds, problems, benchmarks."""
    percents = {}
    for k in (8, 32):
        enough = all(o.samples >= k for o in outcomes)
        values = [
            np.mean([statistics.pass_at_k(bits.sum(axis=1), o.samples, k).mean() for bits in o.correct])
            for o in outcomes
            if enough
        ]
        percents[f"pass@{k}"] = 100 * float(np.mean(values)) if values else float("nan")
    return percents


def differences(sections: list[Section]) -> Any:
    """Return a DataFrame, one row a pair of rows and column: the difference a - b in points and its tests."""
    import pandas as pd

    rows = []
    for s in sections:
        for (a, b), c in ((pair, c) for column in s.comparisons.values() for pair, c in column.items()):
            for_problems, both = c.difference.problems, c.difference.both
            rows.append(
                {
                    "task": s.block.task,
                    "model": s.block.model,
                    "benchmark": c.column,
                    "a": a,
                    "b": b,
                    "difference": 100 * c.difference.mean,
                    **text.points(for_problems, "se", "low", "high", suffix="_problems"),
                    "p_problems": for_problems.p,
                    **text.points(both, "se", "low", "high", suffix="_problems_and_seeds"),
                    "p_problems_and_seeds": both.p,
                    "p_holm": c.adjusted,
                    "these_models_differ": c.differ,
                    "real": c.real,
                }
            )
    return pd.DataFrame(rows)
