"""Advantages, relative to the group or from a critic's values."""

from __future__ import annotations

import numpy as np


def group_relative(
    rewards: np.ndarray, std: str = "population", eps: float = 1e-6, eps_inside: bool = True
) -> np.ndarray:
    """Return each response's advantage within its group, float32 [G]. rewards: float [G].

    - ``std="population", eps_inside=True``: (r - mean) / sqrt(var + eps), paper eq. 2.
    - ``std="unbiased", eps_inside=False``: (r - mean) / (std + eps) with variance over G - 1, as in verl's
      ``compute_grpo_outcome_advantage`` (eps 1e-6) and RePO (eps 1e-4).
    - ``std="none"``: r - mean (Dr. GRPO, Liu et al. 2503.20783; LUFFY and ReLIFT, ``grpo_use_std=False``).

    Equal rewards, or a single one, give zeros.
    """
    r = np.asarray(rewards, dtype=np.float64)
    centred = r - r.mean()
    if len(r) < 2 or not centred.any():
        return np.zeros(len(r), dtype=np.float32)
    if std == "none":
        return centred.astype(np.float32)
    variance = (centred**2).sum() / (len(r) - (std == "unbiased"))
    scale = np.sqrt(variance + eps) if eps_inside else np.sqrt(variance) + eps
    return (centred / scale).astype(np.float32)


def relative_to(rewards: np.ndarray, mean: float, eps: float = 1e-6) -> np.ndarray:
    """Return (r - mean) / (std + eps) for rewards of 0 or 1 and a stored mean of such rewards, float32 [G].

    The standard deviation is that of rewards with this mean, sqrt(mean (1 - mean)), at least 1e-6:
    ``compute_grpo_off_policy_advantage`` of waunx/BAPO_ICLR at 5a4e246.
    """
    std = max(np.sqrt(mean * (1 - mean)), 1e-6)
    return ((np.asarray(rewards, dtype=np.float64) - mean) / (std + eps)).astype(np.float32)


def gae(
    rewards: np.ndarray, values: np.ndarray, mask: np.ndarray, gamma: float = 1.0, lam: float = 1.0
) -> tuple[np.ndarray, np.ndarray]:
    """Estimate generalised advantages (Schulman et al. 2016) as verl's ``compute_gae_advantage_return`` does.

    Args:
        rewards: [N, T], of each token
        values: [N, T], the critic's, of the state before each token
        mask: [N, T], 1 on response tokens
        gamma: the discount
        lam: lambda

    Returns (advantages, returns), float32 [N, T], zero outside the mask: A_t = sum of (gamma * lam)^k * delta_(t+k),
    delta_t = r_t + gamma * V_(t+1) - V_t, V = 0 after the last token; the return is A_t + V_t. Not whitened.
    """
    r, v, inside = np.asarray(rewards, dtype=np.float64), np.asarray(values, dtype=np.float64), np.asarray(mask) > 0
    advantages = np.zeros_like(v)
    next_values, advantage = np.zeros(len(v)), np.zeros(len(v))
    for t in reversed(range(v.shape[1])):
        delta = r[:, t] + gamma * next_values - v[:, t]
        advantage = np.where(inside[:, t], delta + gamma * lam * advantage, advantage)
        next_values = np.where(inside[:, t], v[:, t], next_values)
        advantages[:, t] = advantage
    return (advantages * inside).astype(np.float32), ((advantages + v) * inside).astype(np.float32)


def whiten(values: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Scale to mean 0 and unbiased variance 1 in the mask, zero outside (verl's ``masked_whiten``); float32 [N, T]."""
    inside = np.asarray(mask) > 0
    real = np.asarray(values, dtype=np.float64)[inside]
    whitened = np.zeros(inside.shape, dtype=np.float32)
    if len(real) > 1:
        whitened[inside] = (real - real.mean()) / np.sqrt(real.var(ddof=1) + 1e-8)
    return whitened


def explained_variance(values: np.ndarray, returns: np.ndarray, mask: np.ndarray) -> float:
    """Return 1 - Var(returns - values) / Var(returns) in the mask, as verl logs it; nan for fewer than two values."""
    inside = np.asarray(mask) > 0
    target = np.asarray(returns, dtype=np.float64)[inside]
    if len(target) < 2:
        return float("nan")
    return float(1 - (target - np.asarray(values, dtype=np.float64)[inside]).var(ddof=1) / (target.var(ddof=1) + 1e-5))
