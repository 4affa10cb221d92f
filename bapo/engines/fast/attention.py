"""Attention between tokens in a list, forward and backward by hand, over the rows of a ``Layout``."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from bapo.engines.fast import sampler
from bapo.engines.fast.layout import Layout

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class Heads(NamedTuple):
    """The heads of every layer: queries', keys' (and values'), and features of each."""

    queries: int
    keys: int
    size: int


@dataclass
class Places:
    """A layout for a model's heads.

    turns: RoPE's rotations of every token's queries, complex [M, query heads, size / 2]; mask: float32 [R * key heads,
    Q times the queries' heads that share a key, K], 0 where a query sees a key, else -inf.
    """

    layout: Layout
    heads: Heads
    turns: Tensor
    mask: Tensor

    @cached_property
    def turns_back(self) -> Tensor:
        return self.turns.conj().resolve_conj()  # once: a product with a lazy conjugate makes it each time

    @classmethod
    def of(cls, model: PreTrainedModel, layout: Layout, heads: Heads) -> Places:
        frequencies, sections = sampler.frequencies_of(model)
        if layout.positions.ndim == 1:
            angles = torch.arange(layout.mask.shape[2])[:, None] * frequencies
            turns = torch.polar(torch.ones_like(angles), angles)[layout.positions]
        else:
            angles = layout.positions[sections].T * frequencies
            turns = torch.polar(torch.ones_like(angles), angles)
        rows, queries, keys = layout.mask.shape
        shared = heads.queries // heads.keys
        mask = layout.mask[:, None].expand(rows, heads.queries, queries, keys)
        return cls(
            layout,
            heads,
            turns[:, None].expand(-1, heads.queries, -1).contiguous(),
            mask.reshape(rows * heads.keys, shared * queries, keys),
        )

    def rotate(self, x: Tensor, heads: int, back: bool = False) -> None:
        """Rotate the first ``heads`` heads of [M, features] in place, or back."""
        turns = self.turns_back if back else self.turns
        vectors = x.view(len(x), -1, self.heads.size // 2, 2)[:, :heads]
        torch.view_as_complex(vectors).mul_(turns[:, :heads])

    def to_rows(self, x: Tensor) -> Tensor:
        """Copy [R * width, heads * size] into [R * key heads, shared * width, size]."""
        rows = len(self.layout.mask)
        vectors = x.view(rows, len(x) // rows, -1, self.heads.size)
        return vectors.transpose(1, 2).reshape(len(self.mask), -1, self.heads.size)

    def from_rows(self, x: Tensor, heads: int) -> Tensor:
        """Undo :meth:`to_rows` for this many heads."""
        vectors = x.view(len(self.layout.mask), heads, -1, self.heads.size)
        return vectors.transpose(1, 2).reshape(-1, heads * self.heads.size)


@dataclass
class Kept:
    """What the backward pass needs: queries, keys and values in rows, and the attention weights."""

    q: Tensor
    k: Tensor
    v: Tensor
    weights: Tensor


def forward(q: Tensor, kv: Tensor, places: Places, only: Tensor | None) -> tuple[Tensor, Kept]:
    """Return what the tokens' queries attend to, [M, query heads * size], of the tokens ``only`` (None: all).

    q: [M, query heads * size]; kv: keys, then values, [M, 2 * key heads * size]; both are rotated in place.
    """
    layout, heads = places.layout, places.heads
    places.rotate(q, heads.queries)
    places.rotate(kv, heads.keys)
    q = places.to_rows(q.index_select(0, layout.queries))
    k, v = (places.to_rows(part) for part in kv.index_select(0, layout.keys).tensor_split(2, 1))
    scores = torch.baddbmm(places.mask, q, k.transpose(1, 2))
    weights = torch.softmax(scores, -1, out=scores)
    attended = places.from_rows(torch.bmm(weights, v), heads.queries)
    chosen = layout.query if only is None else layout.query[only]
    return attended.index_select(0, chosen), Kept(q, k, v, weights)


def backward(gradient: Tensor, kept: Kept, places: Places, only: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the gradients of :func:`forward`'s q and kv from that of its result."""
    layout, heads = places.layout, places.heads
    chosen = layout.query if only is None else layout.query[only]
    attended = places.to_rows(spread(gradient, chosen, len(layout.queries)))
    scores = torch.bmm(attended, kept.v.transpose(1, 2))
    scores = torch._softmax_backward_data(scores, kept.weights, -1, torch.float32)
    q = places.from_rows(torch.bmm(scores, kept.k), heads.queries).index_select(0, layout.query)
    kv = torch.empty(len(layout.mask), layout.mask.shape[2], 2, heads.keys, heads.size)
    parts = torch.bmm(scores.transpose(1, 2), kept.q), torch.bmm(kept.weights.transpose(1, 2), attended)
    for number, part in enumerate(parts):
        kv[:, :, number] = part.view(len(kv), heads.keys, -1, heads.size).transpose(1, 2)
    kv = layout.uses.of(kv.view(len(layout.keys), -1))
    places.rotate(q, heads.queries, back=True)
    places.rotate(kv, heads.keys, back=True)
    return q, kv


def spread(rows: Tensor, places: Tensor, count: int) -> Tensor:
    """Put rows into their places among ``count`` rows of zeros."""
    return rows.new_zeros(count, rows.shape[1]).index_copy_(0, places, rows)
