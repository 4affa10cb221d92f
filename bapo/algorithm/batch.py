"""The filters that select X1 (paper, eq. 5 and A.3), the thresholds of X3 (eq. 8), and the cut into mini-batches."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Protocol

import numpy as np

from bapo import seeds
from bapo.algorithm.rollouts import Group, between

if TYPE_CHECKING:
    from bapo.experiments.schema import TrainConfig


class Cutting(Protocol):
    """Lists the hooks that decide how a method's batch is cut; ``Method`` describes them."""

    def passes(self, step: int) -> int: ...
    def units(self, groups: list[Group]) -> list[list[Group]]: ...
    def separate(self, group: Group) -> int: ...


def informative(group: Group) -> bool:
    """Return whether 1/G <= mu <= (G-1)/G: some responses right, some wrong."""
    return between(group.mean, 1 / group.size, (group.size - 1) / group.size)


def online_filter(
    groups: list[Group], kind: str, mean: float, std: float, share: float, rng: np.random.Generator
) -> list[Group]:
    """Filter fresh groups by one of A.3's kinds.

    "range" (mode 1) drops only the groups without an advantage. "gaussian" (mode 2) draws from the others with weights
    exp(-((mu - mean) / std)^2 / 2), without replacement. "uniform" (mode 3) draws from all groups alike.

    Args:
        groups: those of the rollout, whose order is kept
        kind: "range", "gaussian" or "uniform"
        mean, std: of the weights of mode 2
        share: of all groups, which modes 2 and 3 draw; mode 2 draws all informative groups where these are fewer
        rng: for modes 2 and 3

    The paper gives mean 0.5 and std 0.2 (Table 3) but no formula; its glossary calls the density a sampling weight.
    A.3 says that modes 1 and 2 retain about 40% to 60% of the fresh samples, which mode 3's default of 60% follows.
    """
    indices, count = [i for i, g in enumerate(groups) if informative(g)], round(share * len(groups))
    if kind == "gaussian":
        # the largest of log weight + Gumbel noise are a weighted draw without replacement, also for weights near 0
        keys = np.array([-0.5 * ((g.mean - mean) / std) ** 2 for g in groups]) + rng.gumbel(size=len(groups))
        indices = sorted(indices, key=lambda i: -keys[i])[:count]
    elif kind == "uniform":
        indices = rng.choice(len(groups), size=count, replace=False).tolist() if count else []
    return [groups[i] for i in sorted(indices)]


def linear_threshold(r_tot: float, low: float, high: float, direction: str = "rising") -> float:
    """Return c_i = r_tot * (c_high - c_low) + c_low (eq. 8).

    As printed, the threshold *rises* with the average reward, toward easier groups. The sentence above eq. 8 says
    "from easier to harder", and the authors' code falls; ``direction="falling"`` gives that.
    """
    share = r_tot if direction == "rising" else 1.0 - r_tot
    return share * (high - low) + low


def next_average_reward(previous: float | None, batch_mean: float, kind: str, decay: float) -> float:
    """Return the new r_tot of eq. 8, which the paper calls "global average performance" and does not define.

    Args:
        previous: r_tot before; None in the first step, where the result is ``batch_mean``
        batch_mean: the mean reward of this step
        kind: "moving-average" is exponential; any other gives ``batch_mean``
        decay: the weight of the past
    """
    if kind != "moving-average" or previous is None:
        return batch_mean
    return decay * previous + (1.0 - decay) * batch_mean


def mini_batches(method: Cutting, train: TrainConfig, seed: int, step: int, groups: list[Group]) -> list[list[Group]]:
    """Shuffle the batch of a step and cut it into mini-batches, anew for each pass that the method makes over it.

    An underfilled batch gives fewer updates of the usual size, or the usual number of updates on smaller mini-batches;
    an empty one gives none.

    Args:
        method: says which groups stay together, and how many passes there are
        train: the configuration's ``train``
        seed: of the run
        step: 1-based
        groups: of the batch
    """
    keys = sorted({method.separate(g) for g in groups})
    cuts: list[list[Group]] = []
    for number in range(method.passes(step)):
        purpose = ("mini-batches", step) if number == 0 else ("mini-batches", step, "pass", number)
        rng = seeds.generator(seed, *purpose)
        for key in keys:
            cuts += _cut(method.units([g for g in groups if method.separate(g) == key]), train, rng)
    return cuts


def _cut(units: list[list[Group]], train: TrainConfig, rng: np.random.Generator) -> list[list[Group]]:
    """Shuffle the units and cut them into mini-batches."""
    units = [units[i] for i in rng.permutation(len(units))]
    if train.underfilled == "fewer-updates":
        size = train.mini_batch_size
        cut = [units[i : i + size] for i in range(0, len(units), size)]
    else:
        count = min(train.batch_size // train.mini_batch_size, len(units))
        edges = [round(i * len(units) / count) for i in range(count + 1)]
        cut = [units[a:b] for a, b in pairwise(edges)]
    return [[g for unit in mini_batch for g in unit] for mini_batch in cut]
