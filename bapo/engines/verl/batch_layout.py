"""A step's groups as verl's mini-batches: which row goes where, what each row carries, and padding to equal sizes."""

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

#: the field of a row in TransferQueue that says what it is, with the denominators of its mini-batch
LAYOUT = "bapo_layout"
#: its columns. origin, weight and second_part (0 or 1) are the row's own, as ``RowMarks`` has them; all rows of a
#: mini-batch have the same in the rest. token_advantages is 1 where each token has an advantage of its own
COLUMNS = (
    *("origin", "weight", "second_part", "step", "nominal_sequences", "first_sequences", "second_sequences"),
    *("first_tokens", "second_tokens", "token_advantages", "phase"),
)


@dataclass
class BatchLayout:
    """Rows in the order in which verl must see them.

    order: for each place the row's number (rows of all groups in the order of the mini-batches), or a number from
        ``rows`` on for padding
    rows: their number without padding
    rows_per_update: the same for every mini-batch, a multiple of the number of data-parallel ranks
    columns: float64 [places, 11], see COLUMNS
    advantages: float32 [places], or [places, T] where each token has its own; 0 for padding and behind the end. A
        method with a critic has none yet.
    """

    order: list[int]
    rows: int
    rows_per_update: int
    columns: np.ndarray
    advantages: np.ndarray | None


def marks_of(layout: Tensor) -> RowMarks:
    """Return what the rows [N, 11] of a micro-batch say, see COLUMNS."""
    shared = dict(zip(COLUMNS[3:], map(int, layout[0, 3:].tolist()), strict=True))
    sequences, tokens = ((shared[f"first_{unit}"], shared[f"second_{unit}"]) for unit in ("sequences", "tokens"))
    counts = Denominators(shared["nominal_sequences"], sum(tokens), sequences, tokens)
    weights, second_part = layout[:, 1].float(), layout[:, 2] != 0
    return RowMarks(layout[:, 0], weights, second_part, shared["step"], shared["phase"], counts)


def has_token_advantages(layout: Tensor) -> bool:
    """Return whether each token of the rows [N, 11] has an advantage of its own."""
    return bool(layout[0, COLUMNS.index("token_advantages")])


def lay_out(
    method: Method, parts: list[list[Group]], train: TrainConfig, ranks: int, step: int, phase: int = 0
) -> BatchLayout:
    """Order the rows of the mini-batches of a batch.

    Args:
        method: gives the advantages, and marks the second part of the rows
        parts: the groups of each mini-batch
        train: the configuration's ``train``
        ranks: data-parallel processes
        step: the training step
        phase: the batch's

    verl gives rank r the r-th run of rows and takes mini-batches from the front of each rank's own run. So the order
    is: rank by rank, mini-batch by mini-batch. Long and short responses are dealt to the ranks in turn.
    """
    sizes = [sum(g.size for g in part) for part in parts]
    width = math.ceil(max(sizes) / ranks) * ranks
    total, padding = sum(sizes), sum(sizes)
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
        extra = range(padding, padding + width - size)
        columns[extra.start : extra.stop, :3] = -1, 1, second.all()  # padding must not look like a fresh response
        columns[extra.start : extra.stop, 3:] = shared
        padding, start = extra.stop, start + size
        places = [*rows, *extra]
        shares.append([places[r::ranks] for r in range(ranks)])
    order = [row for rank in range(ranks) for share in shares for row in share[rank]]
    return BatchLayout(order, total, width, columns[order], None if advantages is None else advantages[order])


def _advantages(method: Method, parts: list[list[Group]], places: int) -> np.ndarray:
    """Return the advantages of all rows, in the order of the mini-batches, and zeros for padding behind them."""
    groups = [method.advantages(group) for part in parts for group in part]
    if groups[0].ndim == 2:
        width = max(values.shape[1] for values in groups)
        groups = [np.pad(values, ((0, 0), (0, width - values.shape[1]))) for values in groups]
    values = np.concatenate(groups).astype(np.float32)
    return np.concatenate([values, np.zeros((places - len(values), *values.shape[1:]), dtype=np.float32)])


def kept_step_logprobs(parts: list[list[Group]]) -> list[Tensor]:
    """Return each row's share of ``Group.step_logprobs``, up to its end, in the order of the mini-batches."""
    rows = []
    for group in (group for part in parts for group in part):
        assert group.step_logprobs is not None
        rows += [torch.from_numpy(group.step_logprobs[i, :n].copy()) for i, n in enumerate(group.samples.lengths)]
    return rows


def spread(advantages: np.ndarray, response_mask: Tensor) -> Tensor:
    """Return advantages [N] or [N, T'] as [N, T], like ``response_mask``, and zero where that is."""
    values = torch.from_numpy(advantages)
    if values.dim() == 1:
        return values[:, None] * response_mask
    length = response_mask.shape[1]
    return torch.nn.functional.pad(values[:, :length], (0, max(0, length - values.shape[1]))) * response_mask
