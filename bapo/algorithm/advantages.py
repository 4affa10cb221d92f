"""Advantages: relative to the group, or to a critic's values."""

from __future__ import annotations

import numpy as np


def group_relative(
    rewards: np.ndarray, std: str = "population", eps: float = 1e-6, eps_inside: bool = True
) -> np.ndarray:
    """Advantage of each response against its own group.

    rewards: float [G]. Returns float32 [G].

    - ``std="population", eps_inside=True``: (r - mean) / sqrt(var + eps), paper eq. 2.
    - ``std="unbiased", eps_inside=False``: (r - mean) / (std + eps) with G-1 below, verl's
      ``compute_grpo_outcome_advantage`` (eps 1e-6) and RePO (eps 1e-4).

    - ``std="none"``: r - mean (Dr. GRPO, Liu et al. 2503.20783; LUFFY and ReLIFT, ``grpo_use_std=False``).

    A group of equal rewards gets zeros; so does a group of one.
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


def gae(
    rewards: np.ndarray, values: np.ndarray, mask: np.ndarray, gamma: float = 1.0, lam: float = 1.0
) -> tuple[np.ndarray, np.ndarray]:
    """Generalised advantage estimation (Schulman et al. 2016), as verl's ``compute_gae_advantage_return``.

    rewards, values, mask [N, T]: reward of each token, the critic's value of the state before it, 1 on response tokens.
    Returns (advantages, returns), float32 [N, T], zero where the mask is: A_t = sum of (gamma * lam)^k * delta_(t+k),
    delta_t = r_t + gamma * V_(t+1) - V_t, V after the last token 0; the return is A_t + V_t. Not whitened.
    """
    r, v, inside = np.float64(rewards), np.float64(values), np.asarray(mask) > 0
    found = np.zeros_like(v)
    following, carried = np.zeros(len(v)), np.zeros(len(v))
    for t in reversed(range(v.shape[1])):
        delta = r[:, t] + gamma * following - v[:, t]
        carried = np.where(inside[:, t], delta + gamma * lam * carried, carried)
        following = np.where(inside[:, t], v[:, t], following)
        found[:, t] = carried
    return (found * inside).astype(np.float32), ((found + v) * inside).astype(np.float32)


def whiten(values: np.ndarray, mask: np.ndarray, eps: float = 1e-8) -> np.ndarray:
    """Mean 0 and unbiased variance 1 over the masked places (verl's ``masked_whiten``); float32 [N, T], else zero."""
    inside = np.asarray(mask) > 0
    chosen = np.float64(values)[inside]
    found = np.zeros(inside.shape, dtype=np.float32)
    if len(chosen) > 1:
        found[inside] = (chosen - chosen.mean()) / np.sqrt(chosen.var(ddof=1) + eps)
    return found


def explained_variance(values: np.ndarray, returns: np.ndarray, mask: np.ndarray) -> float:
    """1 - Var(returns - values) / Var(returns) over the masked places, as verl logs it; nan for fewer than two."""
    inside = np.asarray(mask) > 0
    target = np.float64(returns)[inside]
    if len(target) < 2:
        return float("nan")
    return float(1 - (target - np.float64(values)[inside]).var(ddof=1) / (target.var(ddof=1) + 1e-5))
