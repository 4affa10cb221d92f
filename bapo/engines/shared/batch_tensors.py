"""The groups of a batch as padded tensors, cut into micro-batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from bapo.algorithm.rollouts import Group
from bapo.engines.shared import models
from bapo.engines.shared.models.images import Images

if TYPE_CHECKING:
    from transformers import PreTrainedModel

#: the place of a response: the index of its group in the batch, and its index in the group
ResponsePlace = tuple[int, int]


@dataclass
class Rows:
    """Holds N responses with their prompts as tensors.

    ids: int64 [N, L], prompt and response, padded on the right
    starts, lengths: int64 [N], of the responses
    behaviour_logprobs: float32 [N, T], of the policies that sampled the responses
    images: of each row's prompt; None where no prompt has any
    index: the response of each row
    """

    ids: Tensor
    starts: Tensor
    lengths: Tensor
    behaviour_logprobs: Tensor
    images: list[Images | None] | None = None
    index: Sequence[ResponsePlace] = ()

    @property
    def width(self) -> int:
        return int(self.lengths.max())

    @property
    def mask(self) -> Tensor:
        return (torch.arange(self.width, device=self.ids.device) < self.lengths[:, None]).float()

    @property
    def tokens(self) -> int:
        """Count the tokens that a forward pass reads, without padding."""
        return int((self.starts + self.lengths).sum())

    def gather(self, values: Sequence[np.ndarray]) -> Tensor:
        """Return the values of these rows from ``values``, which has one array for each group.

        Arrays [G] give float32 [N]; arrays [G, T] give [N, width], 0 behind each response's end.
        """
        lengths = self.lengths.tolist()
        block = np.zeros((len(lengths), self.width) if values[0].ndim == 2 else len(lengths), dtype=np.float32)
        for row, ((g, i), length) in enumerate(zip(self.index, lengths, strict=True)):
            if block.ndim == 2:
                block[row, :length] = values[g][i, :length]
            else:
                block[row] = values[g][i]
        return torch.from_numpy(block).to(self.ids.device)


def index_of(groups: Sequence[Group]) -> list[ResponsePlace]:
    """Return every response of the groups, in order."""
    return [(g, i) for g, group in enumerate(groups) for i in range(group.size)]


def index_of_unfinished(groups: Sequence[Group]) -> list[ResponsePlace]:
    """Return the responses that were cut off, in order."""
    return [(g, i) for g, i in index_of(groups) if (marks := groups[g].unfinished) is not None and marks[i]]


def collate(groups: Sequence[Group], index: Sequence[ResponsePlace], device: torch.device) -> Rows:
    """Return the responses of ``index`` as one block, padded with token 0."""
    lengths = np.array([groups[g].samples.lengths[i] for g, i in index])
    starts = np.array([len(groups[g].prompt.row.tokens) for g, _ in index])
    ids = np.zeros((len(index), int((starts + lengths).max())), dtype=np.int64)
    logprobs = np.zeros((len(index), int(lengths.max())), dtype=np.float32)
    for row, (g, i) in enumerate(index):
        start, n, samples = starts[row], lengths[row], groups[g].samples
        ids[row, :start] = groups[g].prompt.row.tokens
        ids[row, start : start + n] = samples.tokens[i, :n]
        logprobs[row, :n] = samples.logprobs[i, :n]
    images = [groups[g].prompt.row.images for g, _ in index]
    block, firsts, ends, sampled = (torch.from_numpy(a).to(device) for a in (ids, starts, lengths, logprobs))
    return Rows(block, firsts, ends, sampled, images if any(i is not None for i in images) else None, index)


def micro_batches(groups: Sequence[Group], size: int | None, device: torch.device) -> Iterator[Rows]:
    """Yield all responses as blocks of at most ``size`` rows, similar lengths together so that padding stays short."""

    def length(place: ResponsePlace) -> tuple[int, ResponsePlace]:
        g, i = place
        return len(groups[g].prompt.row.tokens) + int(groups[g].samples.lengths[i]), place

    order = sorted(index_of(groups), key=length)
    step = size or max(1, len(order))
    for start in range(0, len(order), step):
        yield collate(groups, order[start : start + step], device)


def score_rows(model: PreTrainedModel, rows: Rows, temperature: float, entropy: bool = False) -> models.Scored:
    """Return the log-probabilities [N, width] of the rows' responses, as :func:`models.score` does."""
    return models.score(model, rows.ids, rows.starts, rows.width, temperature, entropy, rows.lengths, rows.images)


@torch.no_grad()
def by_group(groups: Sequence[Group], batches: Iterable[Rows], compute: Callable[[Rows], Tensor]) -> list[np.ndarray]:
    """Return what ``compute`` returns, [N, width] for each block, as float32 [G, T] for each group.

    Values behind a response's end are 0.
    """
    values = [np.zeros(group.samples.tokens.shape, dtype=np.float32) for group in groups]
    for rows in batches:
        block = compute(rows).cpu().numpy()
        for row, ((g, i), length) in enumerate(zip(rows.index, rows.lengths.tolist(), strict=True)):
            values[g][i, :length] = block[row, :length]
    return values
