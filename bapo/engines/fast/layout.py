"""Where the tokens of a batch of sequences go, so that each different beginning is computed once.

A causal model gives the same hidden state to equal beginnings, whichever row they stand in. Responses to one prompt
share the prompt, and often their own first tokens: of 8 samples of a trained model many agree for a while, or entirely.
Padding is left out too.

All hidden states lie in one list of tokens, [tokens, hidden]. Attention alone needs rows: a row has a few computed
tokens that follow each other as queries, and their whole sequence so far as keys and values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from bapo.engines.shared.models.images import PromptView

#: the numbers of queries that a row of attention may have at most
_LENGTHS = (6, 8, 12, 16, 24)


@dataclass(eq=False)  # a layout equals no other object
class Layout:
    """Says where all tokens go. M tokens are computed, in R rows of attention with Q queries and K keys each; int64.

    words: the different ids among the computed tokens; each image token is one more word, behind them
    word: [M], the index of each token's word
    word_sums: the sums over the tokens of each word
    positions: [M], with images [3, M]
    queries: [R * Q], the computed token in each place; any token where the row is padded
    keys: [R * K], likewise
    query: [M], the place of each computed token among the queries
    key_sums: the sums over the places of each computed token among the keys
    mask: float32 [R, Q, K], 0 where a query sees a key, else -inf
    predictors: [U], the computed tokens from which a response token is predicted
    predictor: [N, T], the index in ``predictors`` for each response token
    targets: [N, T], the id of each response token
    image_rows: the rows whose images the image tokens are, in their order
    """

    words: Tensor
    word: Tensor
    word_sums: IndexedSums
    positions: Tensor
    queries: Tensor
    keys: Tensor
    query: Tensor
    key_sums: IndexedSums
    mask: Tensor
    predictors: Tensor
    predictor: Tensor
    targets: Tensor
    image_rows: Sequence[int] = ()

    def to(self, device: torch.device) -> Layout:
        """Return the layout on a device. ``key_sums`` stay on the CPU for :meth:`IndexedSums.of_heads`."""
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("key_sums", "image_rows")}
        return replace(self, **{name: value.to(device) for name, value in values.items()})


@dataclass(frozen=True)
class IndexedSums:
    """Describes sums of rows: result i is the sum of the rows ``index[offsets[i]:offsets[i + 1]]``. Both are int32."""

    index: Tensor
    offsets: Tensor

    @classmethod
    def by_owner(cls, owners: np.ndarray, count: int) -> IndexedSums:
        """Return the sums by owner. owners: int [n]; a row whose owner is ``count`` or more belongs to no sum."""
        index = np.argsort(owners, kind="stable").astype(np.int32)
        counts = np.bincount(owners, minlength=count)[:count]
        offsets = np.zeros(count, dtype=np.int32)
        np.cumsum(counts[:-1], out=offsets[1:])
        return cls(torch.from_numpy(index[: counts.sum()]), torch.from_numpy(offsets))

    def to(self, device: torch.device) -> IndexedSums:
        return IndexedSums(self.index.to(device), self.offsets.to(device))

    def of_heads(self, keys: int, rows: int, heads: int) -> IndexedSums:
        """Return these sums over places [rows, keys] for each head: over the rows [2, rows, heads, keys].

        Their results are [owners, 2, heads], one behind the other.
        """
        index, begins = self.index.numpy(), self.offsets.numpy()
        counts = np.diff(begins, append=len(index))
        parts = np.arange(2 * heads)
        places = (index // keys) * (heads * keys) + index % keys
        places = places[:, None] + (parts // heads) * (rows * heads * keys) + (parts % heads) * keys
        # an owner's places lie together, those of one part and head before those of the next
        within = np.arange(len(index)) - np.repeat(begins, counts)
        each = np.repeat(counts, counts)
        targets = np.repeat(begins, counts)[:, None] * len(parts) + parts * each[:, None] + within[:, None]
        spread = np.empty(places.size, dtype=np.int32)
        spread[targets] = places
        offsets = (begins[:, None] * len(parts) + parts * counts[:, None]).astype(np.int32)
        return IndexedSums(torch.from_numpy(spread), torch.from_numpy(offsets.ravel()))

    def of(self, rows: Tensor) -> Tensor:
        """Sum rows [n, width]. torch's other sums of indexed rows copy the rows first."""
        return torch.embedding_bag(rows, self.index, self.offsets, False, 0)[0]


def lay_out(
    ids: np.ndarray, starts: np.ndarray, lengths: np.ndarray, views: Sequence[PromptView | None] | None = None
) -> Layout:
    """Return the layout of N rows, each a prompt and a response.

    Args:
        ids: int64 [N, L], padded on the right
        starts: int64 [N], tokens of each prompt
        lengths: int64 [N], tokens of each response; T is the longest
        views: of each row's images, the same object for the same prompt
    """
    ends = starts + lengths - 1  # nothing follows a row's last token
    columns = np.arange(int(ends.max()))
    inside = columns < ends[:, None]
    keys = np.where(inside, ids[:, : len(columns)], -1)
    views_of_rows = np.zeros(len(ids), dtype=np.int64)
    if views is not None:
        numbers = {view: number for number, view in enumerate(views)}
        views_of_rows = np.array([numbers[view] for view in views])
    order = np.lexsort((*keys.T[::-1], views_of_rows))  # rows that begin alike lie side by side, the shorter first
    keys, inside, views_of_rows = keys[order], inside[order], views_of_rows[order]
    shared = np.zeros_like(inside)
    shared[1:] = np.logical_and.accumulate(
        (keys[1:] == keys[:-1]) & (views_of_rows[1:] == views_of_rows[:-1])[:, None], axis=1
    )
    computed = inside & ~shared  # the first row that has a beginning computes it
    count = int(computed.sum())
    number = np.zeros(computed.shape, dtype=np.int64)
    number[computed] = np.arange(count)
    owner = np.maximum.accumulate(np.where(computed, np.arange(len(ids))[:, None], 0), axis=0)
    gather = np.where(inside, number[owner, columns], count)
    steps, back = np.arange(int(lengths.max())), np.argsort(order)
    before = np.minimum(starts[:, None] + steps - 1, len(columns) - 1)
    at = np.minimum(starts[:, None] + steps, ids.shape[1] - 1)
    sources = np.minimum(np.take_along_axis(gather[back], before, 1), count - 1)
    is_predictor = np.zeros(count, dtype=bool)
    is_predictor[sources] = True
    firsts = inside.sum(1) - computed.sum(1)
    row, begins, stops, length = _cut(firsts, inside.sum(1))
    places = begins[:, None] + np.arange(length)
    real = places < stops[:, None]
    queries = np.where(real, gather[row[:, None], np.minimum(places, len(columns) - 1)], 0)
    query = np.empty(count, dtype=np.int64)
    query[queries[real]] = np.flatnonzero(real)
    columns = columns[: stops.max()]
    keys_of = np.where(columns < stops[:, None], gather[row, : len(columns)], count)
    positions, image_places = np.nonzero(computed)[1], np.empty(0, dtype=np.int64)
    image_rows: list[int] = []
    if views is not None and any(views):
        positions, image_rows, image_places = _place_images(views, starts, order, computed, number)
    words, word = np.unique(keys[computed], return_inverse=True)
    word[image_places] = len(words) + np.arange(len(image_places))
    mask = np.where(columns <= places[:, :, None], np.float32(0), -np.float32(np.inf))
    return Layout(
        words=torch.from_numpy(words),
        word=torch.from_numpy(word),
        word_sums=IndexedSums.by_owner(word, len(words) + len(image_places)),
        positions=torch.from_numpy(positions),
        queries=torch.from_numpy(queries.ravel()),
        keys=torch.from_numpy(np.where(keys_of < count, keys_of, 0).ravel()),
        query=torch.from_numpy(query),
        key_sums=IndexedSums.by_owner(keys_of.ravel(), count),
        mask=torch.from_numpy(mask),
        predictors=torch.from_numpy(np.flatnonzero(is_predictor)),
        predictor=torch.from_numpy((np.cumsum(is_predictor) - 1)[sources]),
        targets=torch.from_numpy(np.take_along_axis(ids, at, 1)),
        image_rows=image_rows,
    )


def _cut(firsts: np.ndarray, ends: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
    """Cut the computed columns ``firsts`` to ``ends`` (exclusive) of each sequence into rows of attention.

    Returns each row's sequence, first and last (exclusive) query, and the length of the longest row. Short rows have
    little padding and few scores that the mask hides, but each row has all its keys. The length is the one that costs
    least by a rough model of the time for a score, a key and a query.
    """
    counts, width = ends - firsts, int(ends.max())

    def cost(length: int) -> int:
        return int(np.sum(-(-counts // length))) * (12 * length * width + 70 * width + 90 * length)

    longest = int(counts.max())
    length = min((longest, *(n for n in _LENGTHS if n < longest)), key=cost)
    pieces = -(-counts // length)
    row = np.repeat(np.arange(len(counts)), pieces)
    number = np.arange(len(row)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    begins = firsts[row] + length * number
    return row, begins, np.minimum(begins + length, ends[row]), length


def _place_images(
    views: Sequence[PromptView | None], starts: np.ndarray, order: np.ndarray, computed: np.ndarray, number: np.ndarray
) -> tuple[np.ndarray, list[int], np.ndarray]:
    """Return positions [3, M], the rows whose images are embedded, and the computed tokens [K] that these are for.

    Args:
        views: of each row's images
        starts: int64 [N], tokens of each prompt
        order: int64 [N], the row that each of the following is about
        computed: bool [N, W], the tokens that are computed
        number: int64 [N, W], the number of each computed token
    """
    positions = np.broadcast_to(np.arange(computed.shape[1]), (3, *computed.shape)).copy()
    image_rows, places = [], []
    for row, source in enumerate(order):
        view, start = views[source], starts[source]
        if view is None:
            continue
        positions[:, row, :start] = view.positions
        positions[:, row, start:] += view.following - start
        if computed[row, view.places[0]]:  # the first row with this prompt
            places.append(number[row, view.places])
            image_rows.append(int(source))
    return positions[:, computed], image_rows, np.concatenate(places)
