"""The predicted success rate of a prompt, from that of reference prompts with similar embeddings."""

from __future__ import annotations

import math

import numpy as np

from bapo.algorithm.rollouts import Prompt

#: success rates stay this far from 0 and 1 before their logit is taken, as in the reference
MARGIN = 1e-4
#: weight of the prior w = 1, b = 0 in Platt scaling, in reference prompts
PRIOR = 1.0


def distinct(drawn: list[Prompt], wanted: int) -> list[Prompt]:
    """Return each problem once, or all that was drawn where fewer than ``wanted`` are left and some must come twice."""
    once = list({p.id: p for p in drawn}.values())
    return once if len(once) >= wanted else drawn


def standardised(vectors: np.ndarray) -> np.ndarray:
    """Scale each dimension to mean 0 and deviation 1, float64 [n, d]: what all prompts share carries no signal."""
    vectors = np.asarray(vectors, dtype=np.float64)
    return (vectors - vectors.mean(0)) / np.maximum(vectors.std(0), 1e-8)


def attend(
    queries: np.ndarray, references: np.ndarray, values: np.ndarray, temperature: float, skip_self: bool = False
) -> np.ndarray:
    """Return each query's mean of the K references' values, float64 [n].

    The weights are softmax(query . reference / sqrt(d) / temperature).

    Args:
        queries: [n, d]
        references: [K, d]
        values: [K], of the references
        temperature: divides the scores
        skip_self: query i leaves out reference i
    """
    scores = queries @ references.T / math.sqrt(references.shape[1]) / temperature
    if skip_self:
        np.fill_diagonal(scores, -np.inf)
    weights = np.exp(scores - scores.max(1, keepdims=True))
    return weights @ values / weights.sum(1)


def fit_platt(predicted: np.ndarray, realised: np.ndarray) -> tuple[float, float]:
    """Fit (w, b) of sigmoid(w logit(predicted) + b) by the least cross-entropy to ``realised``; w >= 0.

    By Newton's method; (1, 0) weighs as much as ``PRIOR`` observations, so that few references change little.
    """
    x = logit(predicted)
    features = np.stack([x, np.ones_like(x)])
    theta = prior = np.array([1.0, 0.0])
    for free in (slice(0, 2), slice(1, 2)):
        for _ in range(50):
            p = sigmoid(theta @ features)
            gradient = features @ (p - realised) + PRIOR * (theta - prior)
            hessian = (features * p * (1 - p)) @ features.T + PRIOR * np.eye(2)
            change = np.zeros(2)
            change[free] = np.linalg.solve(hessian[free, free], gradient[free])
            theta = theta - change / max(1.0, float(np.abs(change).max()))
            if np.abs(change).max() < 1e-10:
                break
        if theta[0] >= 0:
            break
        theta = np.array([0.0, theta[1]])  # the references contradict the attention: only their mean remains
    return float(theta[0]), float(theta[1])


def calibrated(predicted: np.ndarray, w: float, b: float) -> np.ndarray:
    return sigmoid(w * logit(predicted) + b)


def logit(p: np.ndarray) -> np.ndarray:
    p = np.clip(p, MARGIN, 1 - MARGIN)
    return np.log(p / (1 - p))


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-np.clip(x, -700, 700)))


def agreement(predicted: np.ndarray, realised: np.ndarray) -> tuple[float, float]:
    """Return (correlation, mean absolute difference); the correlation is nan if either input is constant."""
    error = float(np.abs(predicted - realised).mean())
    if min(np.ptp(predicted), np.ptp(realised)) < 1e-9:
        return math.nan, error
    return float(np.corrcoef(predicted, realised)[0, 1]), error
