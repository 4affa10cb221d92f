"""Online filters: which fresh groups make up X1 (paper, eq. 5 and A.3)."""

from __future__ import annotations

import numpy as np

from bapo.rollouts import Group, between


def informative(group: Group) -> bool:
    """1/G <= mu <= (G-1)/G: not all wrong and not all correct."""
    return between(group.mean, 1 / group.size, (group.size - 1) / group.size)


def range_filter(groups: list[Group]) -> list[Group]:
    """Mode 1: drop only the groups without an advantage."""
    return [g for g in groups if informative(g)]


def gaussian_filter(groups: list[Group], mean: float, std: float, rng: np.random.Generator) -> list[Group]:
    """Mode 2: of the informative groups, keep each with probability N(mu | mean, std) / N(mean | mean, std).

    The paper gives mean 0.5 and std 0.2 (Table 3) and no formula; its glossary calls the density a weight for sampling.
    """
    draws = rng.random(len(groups))
    return [
        g for g, u in zip(groups, draws, strict=True)
        if informative(g) and u < np.exp(-0.5 * ((g.mean - mean) / std) ** 2)
    ]  # fmt: skip


def uniform_filter(groups: list[Group], share: float, rng: np.random.Generator) -> list[Group]:
    """Mode 3: ``share`` of all groups at random, also those without an advantage, in their order."""
    count = round(share * len(groups))
    chosen = sorted(rng.choice(len(groups), size=count, replace=False)) if count else []
    return [groups[i] for i in chosen]
