"""Computes the scores of a problem from its K samples, and the accuracy and standard error of a table."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from bapo.store.files import Json

if TYPE_CHECKING:
    import pandas as pd


def pass_at_k(correct: int, samples: int, k: int) -> float:
    """Return 1 - C(K - c, k) / C(K, k), the chance that k of the K samples, without replacement, include a correct one.

    Chen et al. 2021, "Evaluating Large Language Models Trained on Code", equation 1.
    """
    return 1.0 - math.comb(samples - correct, k) / math.comb(samples, k)


def problem_scores(verdicts: Sequence[tuple[bool, bool]]) -> dict[str, float]:
    """Return acc, pass@k for 1, 8 and all samples, and the share of unparsed responses of one problem.

    verdicts: K pairs (correct, parsed).
    """
    count = len(verdicts)
    bits = [correct for correct, _ in verdicts]
    return {
        "acc": sum(bits) / count,
        **{f"pass@{k}": pass_at_k(sum(bits), count, k) for k in sorted({1, 8, count}) if k <= count},
        "unparsed": sum(not parsed for _, parsed in verdicts) / count,
    }


def standard_error(means: Sequence[float]) -> float | None:
    """Return the clustered standard error of the mean over new problems: sqrt(sum (p_i - p)^2 / (n (n - 1))).

    The samples of a problem are one cluster, as in Miller 2024, "Adding Error Bars to Evals", section 2.2. Returns None
    for fewer than two problems. means: [n], the share of correct samples of each problem.
    """
    n = len(means)
    if n < 2:
        return None
    mean = math.fsum(means) / n
    return math.sqrt(math.fsum((p - mean) ** 2 for p in means) / (n * (n - 1)))


def summarise(frame: pd.DataFrame) -> Json:
    """Return the accuracy of a table, its standard error, pass@k, and the shares of unparsed and disputed samples."""
    problems = [
        problem_scores(list(zip(rows["correct"], rows["parsed"], strict=True)))
        for _, rows in frame.groupby("problem_id", sort=False)
    ]
    means = {key: sum(p[key] for p in problems) / len(problems) for key in problems[0]}
    # what the machine was too busy to grade has no second verdict
    both = frame.dropna(subset="second_correct") if "second_correct" in frame else frame[:0]
    if len(both):
        means["second_grader_disagreement"] = float((both["second_correct"] != both["correct"]).mean())
    return {
        "accuracy": means.pop("acc"),
        "standard_error": standard_error([p["acc"] for p in problems]),
        "problems": len(problems),
        "samples": len(frame) // len(problems),
        **means,
    }
