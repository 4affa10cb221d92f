"""Where the noise of an average accuracy comes from: variance.csv, .md and .tex.

The squared standard error of each method's average over the test benchmarks, split into what the choice of problems,
the training seeds and the samples add to it, and how many more of each would halve it. Source: Cornfield and Tukey 1956
(expected mean squares); symbols as in ``analysis.statistics``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from analysis import reading, text
from analysis.page import Page, Table, at_scale
from analysis.study import Block, Study

#: what falls with the number of each -> the components that it divides
FALLS = {
    "problems": ("problem", "problem_seed", "sample"),
    "seeds": ("seed", "problem_seed", "sample"),
    "samples": ("sample",),
}
TITLES = {"problem": "Problems", "seed": "Seeds", "problem_seed": "Problems x seeds", "sample": "Samples"}


# ------------------------------------------------------------------------------------------------ components


@dataclass(frozen=True)
class Components:
    """Variances of one 0/1 outcome (accuracies are fractions), each 0 or more; NaN where the design cannot tell.

    problem: between problems, the same for all trained models; seed: between training seeds; checkpoint: between the
    checkpoints of one training run; problem_seed, problem_checkpoint: a seed or checkpoint that is better at some
    problems than at others; sample: between samples of one problem from one checkpoint.
    """

    problem: float
    seed: float
    checkpoint: float
    problem_seed: float
    problem_checkpoint: float
    sample: float

    def of_mean(self, problems: int, seeds: int, checkpoints: int = 1, samples: int = 1) -> dict[str, float]:
        """Return what each part adds to the variance of a mean over a design: they sum to its squared standard error"""
        n, s, c, k = problems, seeds, checkpoints, samples
        return {
            "problem": self.problem / n,
            "seed": self.seed / s,
            "checkpoint": self.checkpoint / (s * c),
            "problem_seed": self.problem_seed / (n * s),
            "problem_checkpoint": self.problem_checkpoint / (n * s * c),
            "sample": self.sample / (n * s * c * k),
        }


def components(outcomes: np.ndarray) -> Components:
    """Split the variance of outcomes [S, C, n, K]: seeds, checkpoints of each, problems, samples.

    A random-effects analysis of variance: problems crossed with seeds and with the checkpoints inside them, samples
    inside all. With one checkpoint (C = 1) its parts are NaN and within the seeds'; with one seed likewise. Estimates
    below 0 are set to 0. Raises ValueError for another shape or fewer than two problems or samples.
    """
    y = np.asarray(outcomes, dtype=np.float64)
    if y.ndim != 4 or y.shape[2] < 2 or y.shape[3] < 2:
        raise ValueError(f"expected [seeds, checkpoints, problems >= 2, samples >= 2], got shape {y.shape}")
    s, c, n, k = y.shape
    cell = y.mean(axis=3)  # [S, C, n]
    grand, by_problem = cell.mean(), cell.mean(axis=(0, 1))
    by_seed, by_checkpoint, by_both = cell.mean(axis=(1, 2)), cell.mean(axis=2), cell.mean(axis=1)

    within = float(((y - cell[..., None]) ** 2).sum() / (s * c * n * (k - 1)))
    ms_problem = s * c * k * float(((by_problem - grand) ** 2).sum()) / (n - 1)
    ms_checkpoint = ms_problem_checkpoint = np.nan
    if c > 1:
        ms_checkpoint = n * k * float(((by_checkpoint - by_seed[:, None]) ** 2).sum()) / (s * (c - 1))
        rest = cell - by_both[:, None] - by_checkpoint[..., None] + by_seed[:, None, None]
        ms_problem_checkpoint = k * float((rest**2).sum()) / (s * (c - 1) * (n - 1))
    ms_seed = ms_problem_seed = np.nan
    if s > 1:
        ms_seed = n * c * k * float(((by_seed - grand) ** 2).sum()) / (s - 1)
        rest = by_both - by_problem - by_seed[:, None] + grand
        ms_problem_seed = c * k * float((rest**2).sum()) / ((s - 1) * (n - 1))

    # below the parts that the design cannot tell apart, the next finer one takes their place
    fine = ms_problem_checkpoint if c > 1 else within
    crossed = ms_problem_seed if s > 1 else fine
    between = (ms_checkpoint if c > 1 else fine) - fine  # what checkpoints add to the seeds' mean square
    return Components(
        problem=_positive((ms_problem - crossed) / (s * c * k)),
        seed=_positive((ms_seed - ms_problem_seed - between) / (n * c * k)),
        checkpoint=_positive((ms_checkpoint - ms_problem_checkpoint) / (n * k)),
        problem_seed=_positive((ms_problem_seed - fine) / (c * k)),
        problem_checkpoint=_positive((ms_problem_checkpoint - within) / k),
        sample=within,
    )


def _positive(value: float) -> float:
    return value if np.isnan(value) else max(0.0, float(value))


def contributions(benchmarks: Sequence[np.ndarray]) -> dict[str, float]:
    """Return what each component adds to the variance of the average accuracy of several benchmarks.

    benchmarks: outcomes [S, C, n, K] of each, with the same seeds and checkpoints. Problems and samples of benchmarks
    are independent; one trained model answers all of them, so seeds and checkpoints are split by their averages. NaN
    where the design cannot tell; the others sum to the squared standard error of the average.
    """
    means = np.mean([y.mean(axis=(2, 3)) for y in benchmarks], axis=0)  # [S, C]
    seeds, checkpoints = means.shape
    each = [components(y).of_mean(y.shape[2], seeds, checkpoints, y.shape[3]) for y in benchmarks]
    parts = {name: sum(e[name] for e in each) / len(each) ** 2 for name in each[0]}
    if checkpoints > 1:
        finer = parts["problem_checkpoint"] + parts["sample"]
        within = float(means.var(axis=1, ddof=1).mean()) / (seeds * checkpoints)
        parts["checkpoint"] = _positive(within - finer)
    if seeds > 1:
        names = ("checkpoint", "problem_seed", "problem_checkpoint", "sample")
        between = float(means.mean(axis=1).var(ddof=1)) / seeds
        parts["seed"] = _positive(between - np.nansum([parts[name] for name in names]))
    return parts


# ------------------------------------------------------------------------------------------------ of a method


@dataclass(frozen=True)
class Split:
    """The variance of one method's average accuracy, in fractions squared.

    parts: component -> what it adds, NaN where one seed or sample cannot tell. checkpoint: what the choice of one of
    the later half of a run's kept checkpoints adds, which is inside the seeds' part; NaN without curves. counts:
    problems of all benchmarks, seeds, samples a problem; checkpoints: how many were compared.
    """

    block: Block
    method: str
    accuracy: float
    parts: Mapping[str, float]
    checkpoint: float
    counts: Mapping[str, int]
    checkpoints: int

    @property
    def total(self) -> float:
        parts = list(self.parts.values())
        return math.nan if np.isnan(parts).all() else float(np.nansum(parts))

    def for_half(self, kind: str) -> int | None:
        """Return how many problems, seeds or samples alone halve the standard error; None where no number does."""
        falling = float(np.nansum([self.parts[name] for name in FALLS[kind]]))
        room = self.total / 4 - (self.total - falling)
        if not room > 0 or (kind == "seeds" and self.counts["seeds"] < 2):
            return None
        return math.ceil(self.counts[kind] * falling / room - 1e-9)


def split(block: Block, method: str, study: Study) -> Split:
    """Split the variance of one method. Raises UserError naming a run that is missing or broken."""
    cells = block.methods[method]
    outcomes = [reading.evaluations(cells, name, study).correct for name, _ in block.benchmarks]  # [S, n, K] each
    enough = all(min(y.shape[1:]) > 1 for y in outcomes)
    every = contributions([y[:, None] for y in outcomes]) if enough else {}
    checkpoint, later = math.nan, 0
    if method in study.curves:
        curves = [reading.curves(cells, name, study) for name, _ in block.benchmarks]
        steps = sorted(set.intersection(*(set(c.steps) for c in curves)))
        steps = [step for step in steps if 2 * step > steps[-1]]
        later = len(steps)
        tables = [_outcomes(c, steps) for c in curves]
        if later > 1 and all(min(y.shape[2:]) > 1 for y in tables):
            checkpoint = later * contributions(tables)["checkpoint"]
    return Split(
        block,
        method,
        float(np.mean([y.mean() for y in outcomes])),
        {name: every.get(name, math.nan) for name in TITLES},
        checkpoint,
        {"problems": sum(y.shape[1] for y in outcomes), "seeds": len(cells), "samples": outcomes[0].shape[2]},
        later,
    )


def _outcomes(curve: reading.Curve, steps: Sequence[int]) -> np.ndarray:
    """Return 0/1 outcomes [S, C, n, K] at the steps; which of a problem's samples are right is of no matter here."""
    counts = curve.correct[:, [curve.steps.index(step) for step in steps]]
    return (np.arange(curve.samples) < counts[..., None]).astype(np.uint8)


# ------------------------------------------------------------------------------------------------ as text


def _error(variance: float, total: float = math.nan) -> str:
    """Return a standard error in points and its share of the variance: "1.20 (64%)"."""
    if not math.isfinite(variance):
        return text.MISSING
    return f"{100 * math.sqrt(variance):.2f}" + (f" ({100 * variance / total:.0f}%)" if total > 0 else "")


def table(block: Block, splits: Sequence[Split]) -> Table:
    header = ["Method", "Avg", *TITLES.values(), "All", "Checkpoints", *(f"Half by {kind}" for kind in FALLS)]
    rows = []
    for s in splits:
        half = [f"{s.counts[kind]} -> {n}" if (n := s.for_half(kind)) else text.MISSING for kind in FALLS]
        errors = [*(_error(variance, s.total) for variance in s.parts.values()), _error(s.total), _error(s.checkpoint)]
        rows.append([block.method_title(s.method), text.number(100 * s.accuracy), *errors, *half])
    return Table(block.title, header, rows, "l" + "r" * (len(header) - 1))


def notes(study: Study, splits: Sequence[Split]) -> list[str]:
    seeds = text.counted([s.counts["seeds"] for s in splits], "training seed")
    return [
        *([study.note] if study.note else []),
        f"Avg: accuracy of the last checkpoint in percent, mean over benchmarks, {seeds} and "
        f"{text.span([s.counts['samples'] for s in splits])} samples a problem.",
        "Problems to Samples: the standard error in points that each adds, and its share of the variance; All: of all "
        f"parts. {text.MISSING}: one seed or one sample cannot tell.",
        "Checkpoints: the error from the choice of one checkpoint of a run's later half; it is part of the seeds'.",
        f"Half by: how many of these alone, from how many now, halve All; {text.MISSING}: no number does.",
    ]


def long_rows(s: Split) -> list[dict[str, Any]]:
    """Return a row for each source of the variance, in points."""
    counts = {"problem": "problems", "seed": "seeds", "sample": "samples"}
    sources = {**s.parts, "all": s.total, "checkpoint": s.checkpoint}
    return [
        {
            **s.block.keys(s.method),
            "accuracy": 100 * s.accuracy,
            "source": source,
            "variance": 1e4 * variance,
            "standard_error": 100 * math.sqrt(variance),
            "share": variance / s.total if s.total > 0 and source != "checkpoint" else math.nan,
            "count": s.checkpoints if source == "checkpoint" else s.counts.get(counts.get(source, "")),
            "count_for_half_of_all": s.for_half(counts[source]) if source in counts else None,
        }
        for source, variance in sources.items()
    ]


def write(study: Study, out: Path) -> list[Path]:
    """Write variance.csv, variance.md and variance.tex; returns the files.

    Raises UserError naming a run, or a curve that the study names, which is missing or broken.
    """
    import pandas as pd

    splits = {b: [split(b, m, study) for m in b.methods] for b in study.blocks}
    every = [s for group in splits.values() for s in group]
    page = Page(
        at_scale("Where the noise of an accuracy comes from", study.scale),
        [table(block, group) for block, group in splits.items()],
        notes(study, every),
    )
    return page.write(out, "variance", pd.DataFrame([row for s in every for row in long_rows(s)]))
