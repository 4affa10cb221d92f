"""Attention between tokens in a list, forward and backward by hand, over the rows of a ``Layout``."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from bapo.engines.fast import sampler
from bapo.engines.fast.layout import IndexedSums, Layout

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class Heads(NamedTuple):
    """Counts the heads of every layer: queries', keys' (and values'), and the features of each."""

    queries: int
    keys: int
    size: int


@dataclass
class Places:
    """Fits a layout to a model's heads, with the vector of each head as a row [size]. Indices of rows are int64.

    turns: complex [M, query heads, size / 2], RoPE's rotation of every token's queries
    queries: [R * query heads * Q], the row of each place among the queries of all tokens
    keys, values: [R * key heads * K], the row of each place among the keys and values of all tokens
    query: [M, query heads], the place of each token's queries
    key_sums: the sums over a token's places among keys, then values
    """

    layout: Layout
    heads: Heads
    turns: Tensor
    queries: Tensor
    keys: Tensor
    values: Tensor
    query: Tensor
    key_sums: IndexedSums

    @cached_property
    def inverse_turns(self) -> Tensor:
        return self.turns.conj().resolve_conj()  # once: a product with a lazy conjugate makes it each time

    @classmethod
    def of(cls, model: PreTrainedModel, layout: Layout, heads: Heads) -> Places:
        frequencies, sections = sampler.frequencies_of(model)
        return cls._of(
            layout, heads, tuple(frequencies.tolist()), None if sections is None else tuple(sections.tolist())
        )

    @classmethod
    @lru_cache(maxsize=1)  # policy and reference score the same tokens one after the other
    def _of(
        cls, layout: Layout, heads: Heads, frequencies: tuple[float, ...], sections: tuple[int, ...] | None
    ) -> Places:
        device = layout.mask.device
        rates = torch.tensor(frequencies, device=device)
        if layout.positions.ndim == 1:
            angles = torch.arange(layout.mask.shape[2], device=device)[:, None] * rates
            turns = torch.polar(torch.ones_like(angles), angles)[layout.positions]
        else:
            assert sections is not None
            angles = layout.positions[list(sections)].T * rates
            turns = torch.polar(torch.ones_like(angles), angles)
        rows, queries, keys = layout.mask.shape
        key_heads, query_heads = (torch.arange(n, device=device) for n in (heads.keys, heads.queries))
        of_keys = layout.keys.view(rows, 1, keys) * (2 * heads.keys) + key_heads[:, None]
        row, column = layout.query // queries, layout.query % queries
        return cls(
            layout,
            heads,
            turns[:, None].expand(-1, heads.queries, -1).contiguous(),
            queries=(layout.queries.view(rows, 1, queries) * heads.queries + query_heads[:, None]).flatten(),
            keys=of_keys.flatten(),
            values=(of_keys + heads.keys).flatten(),
            query=(row[:, None] * heads.queries + query_heads) * queries + column[:, None],
            key_sums=layout.key_sums.of_heads(keys, rows, heads.keys).to(device),
        )

    def rotate(self, x: Tensor, heads: int, back: bool = False) -> None:
        """Rotate the first ``heads`` heads of [M, features] in place, or back."""
        turns = self.inverse_turns if back else self.turns
        vectors = x.view(x.shape[0], -1, self.heads.size // 2, 2)[:, :heads]
        torch.view_as_complex(vectors).mul_(turns[:, :heads])

    def vectors(self, x: Tensor, rows: Tensor) -> Tensor:
        """Copy the vectors ``rows`` of the heads in x [..., features] into [R * key heads, n, size]."""
        size = self.heads.size
        return x.view(-1, size).index_select(0, rows).view(self.layout.mask.shape[0] * self.heads.keys, -1, size)

    def query_of(self, subset: Tensor | None) -> Tensor:
        """Return ``query`` of the tokens ``subset`` (None: all), one behind the other."""
        return (self.query if subset is None else self.query[subset]).flatten()


@dataclass
class AttentionTape:
    """What the backward pass needs: queries, keys and values in rows, and the attention weights."""

    q: Tensor
    k: Tensor
    v: Tensor
    weights: Tensor


def forward(q: Tensor, kv: Tensor, places: Places, subset: Tensor | None) -> tuple[Tensor, AttentionTape]:
    """Return what the tokens' queries attend to, [M, query heads * size], of the tokens ``subset`` (None: all).

    q: [M, query heads * size]; kv: keys, then values, [M, 2 * key heads * size]; both are rotated in place.
    """
    heads, mask = places.heads, places.layout.mask[:, None]
    places.rotate(q, heads.queries)
    places.rotate(kv, heads.keys)
    q = places.vectors(q, places.queries)
    k, v = (places.vectors(kv, rows) for rows in (places.keys, places.values))
    scores = torch.bmm(q, k.transpose(1, 2))
    scores.view(len(mask), heads.queries, *mask.shape[2:]).add_(mask)
    weights = torch.softmax(scores, -1)  # in place it takes twice as long
    attended = torch.bmm(weights, v).view(-1, heads.size).index_select(0, places.query_of(subset))
    return attended.view(-1, heads.queries * heads.size), AttentionTape(q, k, v, weights)


def backward(gradient: Tensor, tape: AttentionTape, places: Places, subset: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the gradients of q and kv from that of the result. tape, places, subset: those of :func:`forward`."""
    heads = places.heads
    attended = spread(gradient.view(-1, heads.size), places.query_of(subset), len(places.queries)).view_as(tape.q)
    scores = torch.bmm(attended, tape.v.transpose(1, 2))
    scores = torch._softmax_backward_data(scores, tape.weights, -1, torch.float32)
    q = torch.bmm(scores, tape.k).view(-1, heads.size).index_select(0, places.query_of(None))
    kv = tape.k.new_empty(2, *tape.k.shape)
    torch.bmm(scores.transpose(1, 2), tape.q, out=kv[0])
    torch.bmm(tape.weights.transpose(1, 2), attended, out=kv[1])
    q = q.view(-1, heads.queries * heads.size)
    kv = places.key_sums.of(kv.view(-1, heads.size)).view(len(places.query), -1)
    places.rotate(q, heads.queries, back=True)
    places.rotate(kv, heads.keys, back=True)
    return q, kv


def spread(rows: Tensor, places: Tensor, count: int) -> Tensor:
    """Put rows into their places among ``count`` rows of zeros."""
    return rows.new_zeros(count, rows.shape[1]).index_copy_(0, places, rows)
