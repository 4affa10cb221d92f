"""Lays a step's groups out as verl's mini-batches: the order of the rows, what each carries, and the padding."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from bapo.algorithm.rollouts import Group
from bapo.engines.shared.loss_inputs import Denominators, RowMarks, denominators, origin_numbers
from bapo.experiments.schema import TrainConfig
from bapo.methods import Method

#: the field of a row in TransferQueue that describes the row and its mini-batch
LAYOUT = "bapo_layout"
#: the columns of that field. origin, weight and second_part (0 or 1) belong to the row, as in ``RowMarks``; the others
#: are equal in all rows of a mini-batch. token_advantages is 1 where each token has its own advantage
COLUMNS = (
    *("origin", "weight", "second_part", "step", "nominal_sequences", "first_sequences", "second_sequences"),
    *("first_tokens", "second_tokens", "token_advantages", "phase"),
)


@dataclass
class BatchLayout:
    """Holds the order in which verl must see the rows, and what they carry.

    Rows are numbered through all groups in the order of the mini-batches, and padding is numbered from ``rows`` on.

    order: the number of the row in each place
    rows: how many rows there are without padding
    rows_per_update: equal for all mini-batches, a multiple of the number of data-parallel ranks
    columns: float64 [places, 11], see COLUMNS
    advantages: float32 [places], or [places, T] where each token has its own; 0 for padding and behind the end; None
        for a method with a critic, which estimates them later
    """

    order: list[int]
    rows: int
    rows_per_update: int
    columns: np.ndarray
    advantages: np.ndarray | None


def marks_of(layout: Tensor) -> RowMarks:
    """Return the marks of the rows of a micro-batch. layout: [N, 11], see COLUMNS."""
    shared = dict(zip(COLUMNS[3:], map(int, layout[0, 3:].tolist()), strict=True))
    sequences, tokens = ((shared[f"first_{unit}"], shared[f"second_{unit}"]) for unit in ("sequences", "tokens"))
    counts = Denominators(shared["nominal_sequences"], sum(tokens), sequences, tokens)
    weights, second_part = layout[:, 1].float(), layout[:, 2] != 0
    return RowMarks(layout[:, 0], weights, second_part, shared["step"], shared["phase"], counts)


def has_token_advantages(layout: Tensor) -> bool:
    """Return whether each token has its own advantage. layout: [N, 11], see COLUMNS."""
    return bool(layout[0, COLUMNS.index("token_advantages")])


def lay_out(
    method: Method, parts: list[list[Group]], train: TrainConfig, ranks: int, step: int, phase: int = 0
) -> BatchLayout:
    """Order the rows of the mini-batches of a batch.

    verl gives rank r the r-th share of consecutive rows, and takes mini-batches from the front of each share. The order
    is therefore rank by rank, and mini-batch by mini-batch within a rank. Rows are dealt to the ranks in turn, the
    longest responses first.

    Args:
        method: gives the advantages, and marks the second part of the rows
        parts: the groups of each mini-batch
        train: the configuration's ``train``
        ranks: number of data-parallel processes
        step: the training step
        phase: of the batch
    """
    sizes = [sum(g.size for g in part) for part in parts]
    width = math.ceil(max(sizes) / ranks) * ranks
    total = next_padding = sum(sizes)
    advantages = None if method.uses_critic else _advantages(method, parts, width * len(parts))
    per_token = advantages is not None and advantages.ndim == 2
    shares: list[list[list[int]]] = []
    columns = np.empty((width * len(parts), len(COLUMNS)))
    start = 0
    for part, size in zip(parts, sizes, strict=True):
        lengths = np.concatenate([g.samples.lengths for g in part])
        rows = [start + int(i) for i in np.argsort(-lengths, kind="stable")]
        marks = [method.second_part(g) for g in part]
        second, counts = np.concatenate(marks), denominators(train, part, marks)
        shared = [step, counts.nominal_sequences, *counts.part_sequences, *counts.part_tokens, per_token, phase]
        real = slice(start, start + size)
        columns[real, 0] = np.concatenate([origin_numbers(g) for g in part])
        columns[real, 1] = np.concatenate([np.full(g.size, g.weight) for g in part])
        columns[real, 2], columns[real, 3:] = second, shared
        padding = range(next_padding, next_padding + width - size)
        columns[padding.start : padding.stop, :3] = -1, 1, second.all()  # padding must not look like a fresh response
        columns[padding.start : padding.stop, 3:] = shared
        next_padding, start = padding.stop, start + size
        numbers = [*rows, *padding]
        shares.append([numbers[r::ranks] for r in range(ranks)])
    order = [row for rank in range(ranks) for share in shares for row in share[rank]]
    return BatchLayout(order, total, width, columns[order], None if advantages is None else advantages[order])


def _advantages(method: Method, parts: list[list[Group]], places: int) -> np.ndarray:
    """Return the advantages of all rows in the order of the mini-batches, and zeros for the padding behind them."""
    groups = [method.advantages(group) for part in parts for group in part]
    if groups[0].ndim == 2:
        width = max(values.shape[1] for values in groups)
        groups = [np.pad(values, ((0, 0), (0, width - values.shape[1]))) for values in groups]
    values = np.concatenate(groups).astype(np.float32)
    return np.concatenate([values, np.zeros((places - len(values), *values.shape[1:]), dtype=np.float32)])


def kept_step_logprobs(parts: list[list[Group]]) -> list[Tensor]:
    """Return the ``Group.step_logprobs`` of each row up to its end, in the order of the mini-batches."""
    rows = []
    for group in (group for part in parts for group in part):
        assert group.step_logprobs is not None
        rows += [torch.from_numpy(group.step_logprobs[i, :n].copy()) for i, n in enumerate(group.samples.lengths)]
    return rows


def advantages_by_token(advantages: np.ndarray, response_mask: Tensor) -> Tensor:
    """Return advantages [N] or [N, T'] as [N, T], the shape of ``response_mask``, and 0 where the mask is 0."""
    values = torch.from_numpy(advantages)
    if values.dim() == 1:
        return values[:, None] * response_mask
    length = response_mask.shape[1]
    return torch.nn.functional.pad(values[:, :length], (0, max(0, length - values.shape[1]))) * response_mask
