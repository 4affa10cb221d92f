"""Where the noise of an average accuracy comes from: problems, training seeds, and samples.

Source: Cornfield and Tukey 1956 (expected mean squares of a random-effects analysis of variance, problems crossed with
seeds and samples inside both).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from analysis import results, text
from analysis.page import Page, Table
from analysis.results import Result
from analysis.study import StudyFile
from bapo.errors import UserError

#: source of variance -> its column
SOURCES = {"problem": "Problems", "seed": "Seeds", "problem_seed": "Problems x seeds", "sample": "Samples"}
#: what can be increased -> the sources whose part of the variance falls with it
FALLS = {"problems": ("problem", "problem_seed", "sample"), "seeds": ("seed", "problem_seed", "sample")}
HEADER = ("Method", *SOURCES.values(), "All", *(f"Half by {kind}" for kind in FALLS))


def components(outcomes: np.ndarray) -> dict[str, float]:
    """Split the variance of one outcome of [S, n, K] by source; each is 0 or more, NaN where one seed cannot tell.

    Raises UserError for fewer than two problems or samples.
    """
    y = np.asarray(outcomes, dtype=np.float64)
    s, n, k = y.shape
    if n < 2 or k < 2:
        cure = "evaluate with more evaluation.samples" if n > 1 else "take benchmarks with more problems"
        raise UserError(f"variance: it takes two problems with two samples each, and here are {n} and {k}; {cure}")
    cell = y.mean(axis=2)
    by_problem, by_seed = cell.mean(axis=0), cell.mean(axis=1)
    within = ((y - cell[..., None]) ** 2).sum() / (s * n * (k - 1))
    ms_problem, ms_seed, ms_both = s * k * by_problem.var(ddof=1), math.nan, math.nan
    if s > 1:
        rest = cell - by_problem - by_seed[:, None] + cell.mean()
        ms_seed, ms_both = n * k * by_seed.var(ddof=1), k * (rest**2).sum() / ((s - 1) * (n - 1))
    parts = {
        "problem": (ms_problem - (ms_both if s > 1 else within)) / (s * k),
        "seed": (ms_seed - ms_both) / (n * k),
        "problem_seed": (ms_both - within) / k,
        "sample": within,
    }
    return {source: float(np.maximum(0.0, part)) for source, part in parts.items()}


def contributions(benchmarks: Sequence[np.ndarray]) -> dict[str, float]:
    """Return what each source adds to the variance of the average of several benchmarks, outcomes [S, n, K] each.

    Problems and samples of benchmarks are independent; one trained model answers all of them, so the seeds' part is of
    their averages. The parts sum to the squared standard error of the average. Raises UserError as components.
    """
    parts = dict.fromkeys(SOURCES, 0.0)
    for y in benchmarks:
        s, n, k = y.shape
        sizes = {"problem": n, "seed": math.inf, "problem_seed": n * s, "sample": n * s * k}
        for source, variance in components(y).items():
            parts[source] += variance / sizes[source] / len(benchmarks) ** 2
    averages = np.mean([y.mean(axis=(1, 2)) for y in benchmarks], axis=0)
    if len(averages) > 1:
        between = float(averages.var(ddof=1)) / len(averages)
        parts["seed"] = max(0.0, between - parts["problem_seed"] - parts["sample"])
    return parts


def for_half(parts: Mapping[str, float], kind: str, now: int) -> float:
    """Return how many problems or seeds (kind) alone halve the standard error; NaN where no number does.

    parts: of :func:`contributions`; now: how many there are.
    """
    total, falling = float(np.nansum(list(parts.values()))), float(np.nansum([parts[source] for source in FALLS[kind]]))
    room = total / 4 - (total - falling)
    return math.ceil(now * falling / room - 1e-9) if room > 0 and not math.isnan(parts["seed"]) else math.nan


def split(row: Result) -> dict[str, float]:
    """Return one row of the CSV file: standard errors, in points, and counts of a method's average accuracy."""
    benchmarks = [outcome.correct for outcome in row.outcomes.values()]
    parts, (seeds, _, samples) = contributions(benchmarks), benchmarks[0].shape
    counts = {"problems": sum(y.shape[1] for y in benchmarks), "seeds": seeds, "samples": samples}
    half = {f"{kind}_for_half": for_half(parts, kind, counts[kind]) for kind in FALLS}
    errors = {f"se_{source}": 100 * math.sqrt(value) for source, value in parts.items()}
    return {**errors, "se": 100 * math.sqrt(np.nansum(list(parts.values()))), **counts, **half}


def _cells(title: str, row: Mapping[str, float]) -> list[str]:
    errors = [row[f"se_{source}"] for source in SOURCES]
    shares = [100 * (error / (row["se"] or math.nan)) ** 2 for error in errors]
    parts = [
        text.number(error, 2) + ("" if math.isnan(share) else f" ({share:.0f}%)")
        for error, share in zip(errors, shares, strict=True)
    ]
    half = [f"{row[kind]} -> {text.number(row[f'{kind}_for_half'], 0)}" for kind in FALLS]
    return [title, *parts, text.number(row["se"], 2), *half]


def write(study: StudyFile, out: Path) -> list[Path]:
    """Write variance.csv, variance.md and variance.tex. Raises UserError naming a run that is missing or broken."""
    tables, numbers = [], []
    for block in study.blocks:
        rows = [(row, split(row)) for row in results.collect(block, study).values() if not row.is_base]
        tables.append(Table(block.title, HEADER, [_cells(row.title, parts) for row, parts in rows]))
        numbers += [{**block.keys(row.method), **parts} for row, parts in rows]
    page = Page.of(study, "Where the noise of an accuracy comes from", tables, text.words("variance"))
    return page.write(out, "variance", numbers)
