"""Where the noise of an average accuracy comes from: variance.csv, .md and .tex.

The squared standard error of each method's average over the test benchmarks, split into what the choice of problems,
the training seeds and the samples add to it, and how many more of each would halve it.
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
from analysis.variance import contributions

#: what falls with the number of each -> the components that it divides
FALLS = {
    "problems": ("problem", "problem_seed", "sample"),
    "seeds": ("seed", "problem_seed", "sample"),
    "samples": ("sample",),
}
TITLES = {"problem": "Problems", "seed": "Seeds", "problem_seed": "Problems x seeds", "sample": "Samples"}


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
        return float(np.nansum(list(self.parts.values()))) if self.known else math.nan

    @property
    def known(self) -> bool:
        return any(map(math.isfinite, self.parts.values()))

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


def _error(variance: float, total: float) -> str:
    """Return a standard error in points and its share of the variance: "1.20 (64%)"."""
    if not math.isfinite(variance):
        return text.MISSING
    return f"{100 * math.sqrt(variance):.2f}" + (f" ({100 * variance / total:.0f}%)" if total > 0 else "")


def _row(s: Split) -> list[str]:
    cells = [s.block.method_title(s.method), text.number(100 * s.accuracy)]
    cells += [_error(variance, s.total) for variance in s.parts.values()]
    cells += [text.number(100 * math.sqrt(s.total), 2), _error(s.checkpoint, math.nan)]
    needed = {kind: s.for_half(kind) for kind in FALLS}
    return [*cells, *(text.MISSING if n is None else f"{s.counts[kind]} -> {n}" for kind, n in needed.items())]


def table(block: Block, splits: Sequence[Split]) -> Table:
    header = ["Method", "Avg", *TITLES.values(), "All", "Checkpoints", *(f"Half by {kind}" for kind in FALLS)]
    return Table(block.title, header, [_row(s) for s in splits], "l" + "r" * (len(header) - 1))


def notes(study: Study, splits: Sequence[Split]) -> list[str]:
    """Return how to read the table."""
    samples = text.span([s.counts["samples"] for s in splits])
    return [
        *([study.note] if study.note else []),
        "Avg: accuracy of the last checkpoint in percent, mean over benchmarks, "
        f"{text.counted([s.counts['seeds'] for s in splits], 'training seed')} and {samples} samples a problem.",
        "Problems, Seeds, Samples: the standard error in points that the choice of the test problems, the training "
        "seeds and the sampling of answers add to it, and their share of its variance; Problems x seeds: seeds that "
        "are better at some problems than at others. All: the standard error of all parts that can be told. From a "
        "random-effects analysis of variance (Cornfield and Tukey); estimates below 0 are set to 0. With few seeds "
        f"the parts are rough; {text.MISSING}: one seed or one sample cannot tell.",
        "Checkpoints: the standard error from the choice of one checkpoint of the later half of a run, where the kept "
        "checkpoints were evaluated; what the runs still learn there is part of it. The seeds' part holds it already.",
        "Half by problems, seeds, samples: how many of these alone, from how many now, halve the standard error; "
        f"{text.MISSING}: no number does, because the other parts remain. Four times as many halve a part alone.",
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
