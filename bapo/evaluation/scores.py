"""Scores of one problem from its K samples, and the standard error over problems. Pure functions."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence


def pass_at_k(correct: int, samples: int, k: int) -> float:
    """Return 1 - C(K - c, k) / C(K, k): the chance that k of the K samples, not replaced, hold a correct one.

    Chen et al. 2021, "Evaluating Large Language Models Trained on Code", equation 1.
    """
    if not 1 <= k <= samples:
        raise ValueError(f"pass@{k} needs between 1 and {samples} samples")
    return 1.0 - math.comb(samples - correct, k) / math.comb(samples, k)


def reported_ks(samples: int) -> list[int]:
    """Return the k of pass@k: 1, 8 and all samples, as far as there are that many."""
    return sorted({k for k in (1, 8, samples) if k <= samples})


def majority_vote(answers: Sequence[str | None], correct: Sequence[bool]) -> float:
    """Return 1 if the most frequent answer is correct, else 0; a tie gives the share of correct answers among the tied.

    answers: [K] in comparable form, None where there is none (it does not vote); correct: [K].
    """
    votes = Counter(a for a in answers if a is not None)
    if not votes:
        return 0.0
    most = max(votes.values())
    leaders = {a for a, n in votes.items() if n == most}
    right = {a for a, c in zip(answers, correct, strict=True) if c}
    return len(leaders & right) / len(leaders)


def problem_scores(verdicts: Sequence[tuple[bool, bool]], answers: Sequence[str | None]) -> dict[str, float]:
    """Return acc, pass@k, maj@K and the share of unparsed responses of one problem.

    verdicts: K pairs (correct, parsed); answers: [K], what of each response is voted on (None, or unparsed: nothing).
    """
    count = len(verdicts)
    bits = [correct for correct, _ in verdicts]
    votes = [a if parsed else None for a, (_, parsed) in zip(answers, verdicts, strict=True)]
    return {
        "acc": sum(bits) / count,
        **{f"pass@{k}": pass_at_k(sum(bits), count, k) for k in reported_ks(count)},
        f"maj@{count}": majority_vote(votes, bits),
        "unparsed": sum(not parsed for _, parsed in verdicts) / count,
    }


def standard_error(means: Sequence[float]) -> float | None:
    """Return the mean's standard error over new problems, clustered: sqrt(sum (p_i - p)^2 / (n (n - 1))).

    means: [n], each problem's share of correct samples. None for fewer than two problems. Miller 2024, "Adding Error
    Bars to Evals", section 2.2: the samples of a problem are one cluster.
    """
    n = len(means)
    if n < 2:
        return None
    mean = math.fsum(means) / n
    return math.sqrt(math.fsum((p - mean) ** 2 for p in means) / (n * (n - 1)))
