"""The constants of a policy-improvement bound with binary rewards, and where the bound fails or says nothing."""

from __future__ import annotations

import math
from collections.abc import Iterator

from analysis.audit.published import Finding, Published
from bapo.algorithm import theory


def best_case(mu: float, factor: float) -> float:
    """Return the largest value of the bound, as a share of TV, over all policies: eq. 20 with J(pi) - J(alpha) = TV.

    A new policy cannot gain more than TV(pi, alpha) over alpha with rewards in [0, 1], so the bound is at most
    (1 / sigma - factor * K) TV, K = (1 - sigma) / sigma, even where alpha is the current policy itself. ``factor`` is
    2 as printed; the duality gives 1 for rewards in [0, 1].
    """
    sigma = math.sqrt(mu * (1 - mu))
    return 1 / sigma - factor * (1 - sigma) / sigma


def constants(published: Published) -> Iterator[Finding]:
    """K1 to K3 for the stated thresholds; premises that do not hold; how often the bound can be positive."""
    entry = published.setup.theorem
    if not entry:
        return
    group, c1, where = entry.group, entry.c1, entry.where
    k1, k2 = theory.k1(group), theory.k2(c1)
    ends = [(c2, c3) for c2, c3 in zip(entry.c2, entry.c3, strict=True)]
    k3 = [theory.k3(c2, c3) for c2, c3 in ends]
    widths = {round(c3 - c2, 6) * group for c2, c3 in ends}
    yield Finding(
        "theorem",
        where,
        f"G = {group}, c1 = {c1:g}: K1 = {k1:.3f}, K2 = {k2:.3f}"
        + (" (equal)" if math.isclose(k1, k2) else "")
        + f"; K3 = {k3[0]:.3f} at c2, c3 = {ends[0]} and {k3[1]:.3f} at {ends[1]} (epsilon -> 0)",
        {"K1": k1, "K2": k2, "K3_low": k3[0], "K3_high": k3[1]},
    )
    admitted = [k / group for k in range(1, group) if k / group > c1]
    floor = c1 * (1 - c1)
    broken = [mu for mu in admitted if mu * (1 - mu) <= floor + 1e-12]
    if broken:
        worst = theory.k2_worst(c1)
        yield Finding(
            "theorem",
            f"{where}, eq. 30",
            f"c1 (1 - c1) = {floor:.4f} is no strict lower bound of the variance of what X2 admits, c1 < mu < 1: at "
            f"mu = {', '.join(f'{m:g}' for m in broken)} it is {min(m * (1 - m) for m in broken):.4f}, and as mu tends "
            f"to 1 it tends to 0, where K2 is {worst}",
            {"floor": floor, "means": broken},
        )
    if len(widths) == 1:
        yield Finding(
            "theorem",
            f"{where}, eq. 8",
            f"both ranges shift together: c3 - c2 is always {widths.copy().pop() / group:g}, {widths.pop():g} step"
            f" of 1/{group}, so X3 takes one or two values of the group mean",
            {"width": ends[0][1] - ends[0][0]},
        )
    grid = [k / 1000 for k in range(1, 1000)]
    printed = max(best_case(mu, 2.0) for mu in grid)
    corrected = [best_case(mu, 1.0) for mu in grid]
    yield Finding(
        "theorem",
        where,
        "with the printed factor 2 the bound is never positive for 0/1 rewards: a policy gains at most TV, and "
        f"(1 - 2 (1 - sigma)) / sigma is at most {printed:.3g} since sigma <= 1/2; at mu = 1/{group} it is "
        f"{best_case(1 / group, 2.0):.2f} TV. With the factor 1 that rewards in [0, 1] allow it is at most "
        f"{max(corrected):.3g} TV for every mu",
        {"largest": printed, "at_one_of_g": best_case(1 / group, 2.0), "largest_with_factor_1": max(corrected)},
    )
