"""Rows of a training batch: responses of groups as padded tensors, cut into micro-batches, and values back by group."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from omegaconf import DictConfig
from torch import Tensor

from bapo.algorithm.rollouts import Group
from bapo.engines.shared.images import Images

#: A response: the places of its group in the batch and of itself in the group.
Pair = tuple[int, int]


@dataclass
class Rows:
    """N responses with their prompts as tensors.

    ids: int64 [N, L], prompt and response, padded on the right; starts, lengths: int64 [N], of the responses;
    behaviour_logprobs: float32 [N, T]; origins: of the groups, "" for another policy's response among fresh ones;
    images: of each row's prompt, None where no prompt has any; index: which response each row is.
    """

    ids: Tensor
    starts: Tensor
    lengths: Tensor
    behaviour_logprobs: Tensor
    origins: list[str]
    images: list[Images | None] | None = None
    index: Sequence[Pair] = ()

    @property
    def width(self) -> int:
        return int(self.lengths.max())

    @property
    def mask(self) -> Tensor:
        return (torch.arange(self.width, device=self.ids.device) < self.lengths[:, None]).float()

    @property
    def tokens(self) -> int:
        """The tokens that a forward pass reads, without padding."""
        return int((self.starts + self.lengths).sum())

    def gather(self, values: Sequence[np.ndarray]) -> Tensor:
        """Return the rows' share of ``values``, one array a group.

        From [G] it is float32 [N]; from [G, T] it is [N, width], 0 behind each response's end.
        """
        lengths = self.lengths.tolist()
        block = np.zeros((len(lengths), self.width) if values[0].ndim == 2 else len(lengths), dtype=np.float32)
        for row, ((g, i), length) in enumerate(zip(self.index, lengths, strict=True)):
            if block.ndim == 2:
                block[row, :length] = values[g][i, :length]
            else:
                block[row] = values[g][i]
        return torch.from_numpy(block).to(self.ids.device)


def index_of(groups: Sequence[Group]) -> list[Pair]:
    """Return every response of the groups, in order."""
    return [(g, i) for g, group in enumerate(groups) for i in range(group.size)]


def index_of_unfinished(groups: Sequence[Group]) -> list[Pair]:
    """Return the responses that were cut off, in order."""
    return [(g, i) for g, i in index_of(groups) if (marks := groups[g].unfinished) is not None and marks[i]]


def collate(groups: Sequence[Group], index: Sequence[Pair], pad: int, device: Any) -> Rows:
    """Return the responses of ``index`` as one padded block."""
    lengths = np.array([groups[g].samples.lengths[i] for g, i in index])
    starts = np.array([len(groups[g].prompt.row.tokens) for g, _ in index])
    ids = np.full((len(index), int((starts + lengths).max())), pad, dtype=np.int64)
    logprobs = np.zeros((len(index), int(lengths.max())), dtype=np.float32)
    for row, (g, i) in enumerate(index):
        start, n, samples = starts[row], lengths[row], groups[g].samples
        ids[row, :start] = groups[g].prompt.row.tokens
        ids[row, start : start + n] = samples.tokens[i, :n]
        logprobs[row, :n] = samples.logprobs[i, :n]
    images = [groups[g].prompt.row.images for g, _ in index]
    tensors = [torch.from_numpy(array).to(device) for array in (ids, starts, lengths, logprobs)]
    origins = [_origin(groups[g], i) for g, i in index]
    return Rows(*tensors, origins, images if any(i is not None for i in images) else None, index)


def _origin(group: Group, response: int) -> str:
    return "" if group.off_policy is not None and group.off_policy[response] else group.origin


def by_length(groups: Sequence[Group]) -> list[Pair]:
    """Return every response, similar lengths together."""

    def length(pair: Pair) -> tuple[int, Pair]:
        g, i = pair
        return len(groups[g].prompt.row.tokens) + int(groups[g].samples.lengths[i]), pair

    return sorted(index_of(groups), key=length)


def micro_batches(groups: Sequence[Group], size: int | None, pad: int, device: Any) -> Iterator[Rows]:
    """Yield all responses as blocks of at most ``size`` rows, similar lengths together so that padding stays short."""
    order = by_length(groups)
    step = size or max(1, len(order))
    for start in range(0, len(order), step):
        yield collate(groups, order[start : start + step], pad, device)


@torch.no_grad()
def by_group(groups: Sequence[Group], batches: Iterable[Rows], compute: Callable[[Rows], Tensor]) -> list[np.ndarray]:
    """Return what ``compute`` makes of each block, [N, width], as float32 [G, T] a group, 0 behind each response."""
    values = [np.zeros(group.samples.tokens.shape, dtype=np.float32) for group in groups]
    for rows in batches:
        block = compute(rows).cpu().numpy()
        for row, ((g, i), length) in enumerate(zip(rows.index, rows.lengths.tolist(), strict=True)):
            values[g][i, :length] = block[row, :length]
    return values


def denominators(
    train: DictConfig, groups: Sequence[Group], historical: Sequence[np.ndarray] | None = None
) -> dict[str, Any]:
    """Count what the losses of a mini-batch divide by, under the names of ``LossInputs``; parts: (fresh, replayed).

    historical: marks each group's responses of the second part (``Method.historical``); None: those replayed.
    """
    lengths = np.concatenate([g.samples.lengths for g in groups])
    replayed = np.concatenate([g.replayed for g in groups] if historical is None else historical)
    nominal = train.mini_batch_size * train.group_size if train.underfilled == "fewer-updates" else len(lengths)
    return {
        "nominal_sequences": nominal,
        "nominal_tokens": int(lengths.sum()),
        "part_sequences": (int((~replayed).sum()), int(replayed.sum())),
        "part_tokens": (int(lengths[~replayed].sum()), int(lengths[replayed].sum())),
    }


def learning_rate(full: float, warmup_updates: int, update: int) -> float:
    """Return the rate of an update (1-based), which rises linearly over the first ones."""
    return full * min(1.0, update / max(1, warmup_updates))
