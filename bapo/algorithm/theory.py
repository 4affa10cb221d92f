"""The constants and terms of Theorem 3.2 (paper, section 3.3 and A.2), to watch along a run.

There, mu is an *expected* reward; a group of G responses only estimates it, so a constant computed from group means
describes the samples that were admitted, not the theorem's guarantee. Binary rewards: sigma^2 = mu (1 - mu).
"""

from __future__ import annotations

import numpy as np


def stability(mu: float) -> float:
    """Return K(mu) = (1 - sigma) / sigma, sigma = sqrt(mu (1 - mu)) (eq. 36); at least 1, at mu = 1/2, inf at 0 and 1.

    eq. 36's epsilon is 0 here.
    """
    return _constant(mu * (1.0 - mu))


def _constant(variance: float) -> float:
    sigma = float(np.sqrt(variance))
    return (1.0 - sigma) / sigma if sigma > 0 else float("inf")


def k1(group_size: int) -> float:
    """Return K1 of the fresh samples, 1/G <= mu <= (G-1)/G (eq. 11, 17)."""
    return _constant((group_size - 1) / group_size**2)


def k2(c1: float) -> float:
    """Return K2 of the re-evaluated samples as printed (eq. 12, 18).

    Its premise sigma^2 > c1 (1 - c1) (eq. 30) does not hold for 1 - c1 <= mu < 1: see :func:`k2_worst`.
    """
    return stability(c1)


def k2_worst(c1: float, group_size: int) -> float:
    """Return the largest K over the means of G binary rewards that eq. 6 admits, c1 < mu < 1.

    The worst lies at one end of {k/G : c1 < k/G < 1}; as an expected reward, mu may come as near to 1 as it likes, and
    K has no bound. Raises ValueError if no mean is admitted.
    """
    admitted = [k / group_size for k in range(1, group_size) if k / group_size > c1 + 1e-6]
    if not admitted:
        raise ValueError(f"no mean of {group_size} responses lies strictly between c1={c1} and 1")
    return max(stability(admitted[0]), stability(admitted[-1]))


def k3(c2: float, c3: float) -> float:
    """Return K3 of the replayed samples, c2 <= mu <= c3 (eq. 13, 19): mu (1 - mu) is concave, so worst at an end."""
    return max(stability(c2), stability(c3))


def lower_bound(surrogate: float, k: float, tv: float, factor: float = 2.0) -> float:
    """Return L - 2 K TV(pi, alpha): L_i of Theorem 3.2 for one subset, but for its term -2 TV(pi_t, alpha).

    The sum over the subsets bounds E[I(x) (J(pi) - J(pi_t))] once each is weighted by its share of the prompts, which
    eq. 34 leaves out.

    Args:
        surrogate: L = E_alpha[pi/alpha * A] (eq. 22)
        k: K of the subset
        tv: TV of the new policy to alpha_i
        factor: replaces both 2s of eq. 20 and 21, which hold for |r| <= 1; rewards in [0, 1], as here, allow 1
            (|E_p r - E_q r| <= TV then, not 2 TV)
    """
    return surrogate - factor * k * tv if tv > 0 else surrogate  # no inf * 0


def ceiling(k: float, tv: float, factor: float = 2.0) -> float:
    """Return the largest value that :func:`lower_bound` of one subset can take, whatever its policies gain.

    With rewards in [0, 1] J(pi) - J(alpha) <= TV(pi, alpha), and sigma >= 1 / (1 + K) in the subset that K belongs to,
    so L <= (1 + K) TV (eq. 24) and the bound is at most (1 + K - factor K) TV(pi, alpha). As printed (factor 2) that is
    (1 - K) TV and never positive, since K >= 1 for 0/1 rewards (sigma <= 1/2). k, tv, factor: as for
    :func:`lower_bound`.
    """
    return tv if factor == 1 else (1.0 + (1.0 - factor) * k) * tv if tv > 0 else 0.0
