"""Group-relative advantages."""

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

    A group of equal rewards gets zeros; so does a group of one.
    """
    r = np.asarray(rewards, dtype=np.float64)
    centred = r - r.mean()
    if len(r) < 2 or not centred.any():
        return np.zeros(len(r), dtype=np.float32)
    variance = (centred**2).sum() / (len(r) - (std == "unbiased"))
    scale = np.sqrt(variance + eps) if eps_inside else np.sqrt(variance) + eps
    return (centred / scale).astype(np.float32)
