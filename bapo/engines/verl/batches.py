"""How a step's groups become verl's mini-batches: which row goes where, and the padding that equal sizes need."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from omegaconf import DictConfig

from bapo.algorithm.rollouts import ORIGINS, Group, Samples
from bapo.engines.shared.rows import denominators

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


@dataclass
class Rows(Samples):
    """A group's responses and the keys of their rows in TransferQueue ("" if they are no longer in it)."""

    keys: list[str]

    def select(self, index: Sequence[int]) -> Rows:
        return Rows.of(super().select(index), [self.keys[i] for i in index])

    @staticmethod
    def concatenate(parts: Sequence[Samples]) -> Rows:
        keys = [key for part in parts for key in getattr(part, "keys", [""] * len(part.lengths))]
        return Rows.of(Samples.concatenate(parts), keys)

    @staticmethod
    def of(samples: Samples, keys: list[str] | None = None) -> Rows:
        return Rows(samples.tokens, samples.lengths, samples.logprobs, keys or [""] * len(samples.lengths))


@dataclass
class Layout:
    """Rows in the order in which verl must see them.

    order: for each place the row's number (rows of all groups in the order of the mini-batches), or a number from
    ``rows`` on for padding. rows: without padding. rows_per_update: the same for every mini-batch, a multiple of the
    number of data-parallel ranks. columns: float64 [places, 11], see ``losses.COLUMNS``.
    """

    order: list[int]
    rows: int
    rows_per_update: int
    columns: np.ndarray


def numbers_of(group: Group) -> np.ndarray:
    """Return [G]: the place of each response's origin in ORIGINS; one behind for what is none of X1, X2 and X3."""
    number = ORIGINS.index(group.origin) if group.origin in ORIGINS else len(ORIGINS)
    numbers = np.full(group.size, number)
    if group.off_policy is not None:
        numbers[group.off_policy] = len(ORIGINS)
    return numbers


def lay_out(
    parts: list[list[Group]],
    train: DictConfig,
    ranks: int,
    step: int = 0,
    weight: Callable[[Group], float] = lambda group: 1.0,
    phase: int = 0,
    historical: Callable[[Group], np.ndarray] = lambda group: group.replayed,
) -> Layout:
    """verl gives rank r the r-th run of rows and takes mini-batches from the front of each rank's own run.

    So the order is: rank by rank, mini-batch by mini-batch. Long and short responses are dealt to the ranks in turn.
    """
    sizes = [sum(g.size for g in part) for part in parts]
    width = math.ceil(max(sizes) / ranks) * ranks
    total, padding = sum(sizes), sum(sizes)
    shares: list[list[list[int]]] = []
    columns = np.empty((width * len(parts), 11))
    start = 0
    for part, size in zip(parts, sizes, strict=True):
        lengths = np.concatenate([g.samples.lengths for g in part])
        rows = [start + int(i) for i in np.argsort(-lengths, kind="stable")]
        marks = [historical(g) for g in part]
        replayed, parted = np.concatenate(marks), denominators(train, part, marks)
        counts = [step, parted["nominal_sequences"], *parted["part_sequences"], *parted["part_tokens"], 0, phase]
        rows_of_part = slice(start, start + size)
        columns[rows_of_part, 0] = np.concatenate([numbers_of(g) for g in part])
        columns[rows_of_part, 1] = np.concatenate([np.full(g.size, weight(g)) for g in part])
        columns[rows_of_part, 2], columns[rows_of_part, 3:] = replayed, counts
        extra = range(padding, padding + width - size)
        columns[extra.start : extra.stop, :3] = -1, 1, replayed.all()  # padding must not look like a fresh response
        columns[extra.start : extra.stop, 3:] = counts
        padding, start = extra.stop, start + size
        dealt = [*rows, *extra]
        shares.append([dealt[r::ranks] for r in range(ranks)])
    order = [row for rank in range(ranks) for share in shares for row in share[rank]]
    return Layout(order, total, width, columns[order])
