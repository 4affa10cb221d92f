"""Where the noise of a benchmark's accuracy comes from: pure functions; symbols as in ``analysis.statistics``.

Source: Cornfield and Tukey 1956 (expected mean squares).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


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
