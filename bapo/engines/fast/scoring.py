"""Log-probabilities of responses under small float32 Qwen2 and Qwen2.5-VL models on the CPU, for training.

The same numbers and gradients as the library's forward, up to float rounding, with less to compute: the responses to
one prompt share the prompt's hidden states, and nothing but attention sees padding. With 8 responses of 15 tokens to a
prompt of 7 that is 0.6 of the tokens, and forward and backward take 0.6 of the time.

All hidden states lie in one list of tokens, [tokens, hidden]: each different prompt once, then its responses. Attention
alone needs rows: its queries, keys and values are copied into [rows, width], where each row is a prompt and a response,
starting in column 0, so that the causal mask is all the mask there is. The layer's weights are joined as in
``bapo.engines.fast.sampler``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bapo.engines.fast import sampler
from bapo.engines.shared import images

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from bapo.engines.shared.images import Images, View


def supports(model: PreTrainedModel) -> bool:
    """Return whether :func:`score` computes what ``model`` computes."""
    return sampler.supports(model) and not model.config.get_text_config().attention_dropout


@dataclass
class _Layout:
    """The places of all tokens; all int64. M tokens are computed, for N rows of W columns and T response tokens.

    tokens, positions [M]: ids and columns of the computed tokens; gather [N * W]: for each place the computed token
    that belongs there (0 in the padding); scatter [M]: the place of each computed token; predicts [N, T]: the computed
    token whose distribution each response token comes from; targets [N, T]: the response tokens.

    With images positions are [3, M], features float [K, hidden], and places [K] the computed tokens that they are for.
    """

    tokens: Tensor
    positions: Tensor
    gather: Tensor
    scatter: Tensor
    predicts: Tensor
    targets: Tensor
    rows: int
    width: int
    features: Tensor | None = None
    places: Tensor | None = None


def _lay_out(
    ids: np.ndarray, starts: np.ndarray, lengths: np.ndarray, width: int, views: Sequence[View | None] | None = None
) -> _Layout:
    first: dict[tuple[bytes, int], int] = {}  # prompt and its images -> the first row that has them
    views = views or [None] * len(ids)
    owner = np.array(
        [
            first.setdefault((row[:s].tobytes(), id(view)), n)
            for n, (row, s, view) in enumerate(zip(ids, starts, views, strict=True))
        ]
    )
    columns = np.arange(int((starts + lengths).max()) - 1)  # nothing follows a row's last token
    in_prompt = columns < starts[:, None]
    inside = columns < (starts + lengths - 1)[:, None]
    computed = inside & (~in_prompt | (owner == np.arange(len(ids)))[:, None])
    number = np.zeros(computed.shape, dtype=np.int64)
    number[computed] = np.arange(computed.sum())
    gather = np.where(inside, np.where(in_prompt, number[owner], number), 0)
    steps = np.arange(width)
    before = np.minimum(starts[:, None] + steps - 1, len(columns) - 1)
    at = np.minimum(starts[:, None] + steps, ids.shape[1] - 1)
    arrays = (
        ids[:, : len(columns)][computed],
        np.broadcast_to(columns, computed.shape)[computed],
        gather.ravel(),
        np.flatnonzero(computed),
        np.take_along_axis(gather, before, 1),
        np.take_along_axis(ids, at, 1),
    )
    layout = _Layout(*(torch.from_numpy(np.ascontiguousarray(a)) for a in arrays), len(ids), len(columns))
    if any(views):
        _add_images(layout, views, starts, computed, number)
    return layout


def _add_images(
    layout: _Layout, views: Sequence[View | None], starts: np.ndarray, computed: np.ndarray, number: np.ndarray
) -> None:
    """Add features and three-dimensional positions; computed, number: [N, W], as in :func:`_lay_out`."""
    positions = np.broadcast_to(np.arange(computed.shape[1]), (3, *computed.shape)).copy()
    places, features = [], []
    for row, (start, view) in enumerate(zip(starts, views, strict=True)):
        if view is None:
            continue
        positions[:, row, :start] = view.positions
        positions[:, row, start:] += view.following - start
        if computed[row, view.places[0]]:  # the first row with this prompt
            places.append(number[row, view.places])
            features.append(view.features)
    layout.positions = torch.from_numpy(positions[:, computed])
    layout.places, layout.features = torch.from_numpy(np.concatenate(places)), torch.cat(features)


def score(
    model: PreTrainedModel,
    ids: Tensor,
    starts: Tensor,
    lengths: Tensor,
    width: int,
    temperature: float = 1.0,
    entropy: bool = False,
    pictures: Sequence[Images | None] | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Return log-probabilities [N, T] of the response tokens and, if asked for, the entropy [N, T] at each.

    ids: int64 [N, L], prompt then response, padded on the right; starts, lengths: int64 [N], where each response begins
    and how many tokens it has (both at least 1); width: T, the longest response; pictures: of each row's prompt, the
    same object for the same prompt. Places behind a response's end hold numbers without a meaning, which the caller
    masks.
    """
    layout = _lay_out(ids.numpy(), starts.numpy(), lengths.numpy(), width, _views(model, ids, starts, pictures))
    logits = model.lm_head(_hidden(model, layout))
    if temperature != 1.0:
        logits = logits / temperature
    logprobs = torch.log_softmax(logits, -1)
    chosen = logprobs.take(layout.predicts * logprobs.shape[1] + layout.targets)
    return chosen, -(logprobs.exp() * logprobs).sum(-1)[layout.predicts] if entropy else None


def values(
    model: PreTrainedModel,
    ids: Tensor,
    starts: Tensor,
    lengths: Tensor,
    width: int,
    pictures: Sequence[Images | None] | None = None,
) -> Tensor:
    """Return single output [N, T] of a head with one feature, at the place that each response token is predicted from.

    The arguments are those of :func:`score`; ``model`` has such a head in the place of its vocabulary's.
    """
    layout = _lay_out(ids.numpy(), starts.numpy(), lengths.numpy(), width, _views(model, ids, starts, pictures))
    return model.lm_head(_hidden(model, layout)).take(layout.predicts)


def _views(
    model: PreTrainedModel, ids: Tensor, starts: Tensor, pictures: Sequence[Images | None] | None
) -> list[View | None] | None:
    if pictures is None:
        return None
    prompts = [row[:start] for row, start in zip(ids.tolist(), starts.tolist(), strict=True)]
    return images.look_once(model, prompts, pictures)


def _hidden(model: PreTrainedModel, layout: _Layout) -> Tensor:
    """Return the last hidden state [M, hidden] of every computed token."""
    body, config = sampler.text_model(model), model.config.get_text_config()
    x = F.embedding(layout.tokens, body.embed_tokens.weight)
    if layout.features is not None:
        x = x.index_copy(0, layout.places, layout.features)
    if layout.positions.ndim == 1:
        angles = layout.positions[:, None] * body.rotary_emb.inv_freq
    else:
        frequencies, sections = sampler.frequencies_of(model)
        angles = layout.positions[sections].T * frequencies
    rotations = torch.polar(torch.ones_like(angles), angles)[:, None]
    group = config.num_attention_heads // config.num_key_value_heads
    causal = torch.full((layout.width, layout.width), -torch.inf).triu_(1).repeat(group, 1)
    for block in body.layers:
        h = block.input_layernorm(x)
        x = torch.addmm(x, _attention(block.self_attn, h, layout, rotations, causal), block.self_attn.o_proj.weight.t())
        mlp = block.mlp
        h = F.linear(block.post_attention_layernorm(x), torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight]))
        gate, up = h.chunk(2, -1)
        x = torch.addmm(x, F.silu(gate) * up, mlp.down_proj.weight.t())
    return body.norm(x)


def _attention(attention: nn.Module, h: Tensor, layout: _Layout, rotations: Tensor, causal: Tensor) -> Tensor:
    """Turn [M, hidden] into [M, heads * size], before the output projection."""
    size, rows, width = attention.head_dim, layout.rows, layout.width
    weight, bias = sampler.joined_qkv(attention)
    qkv = torch.addmm(bias, h, weight.t()).view(len(h), -1, size)
    kv_heads = attention.k_proj.out_features // size
    heads = qkv.shape[1] - 2 * kv_heads
    rotated = torch.view_as_complex(qkv[:, : heads + kv_heads].unflatten(-1, (-1, 2))) * rotations
    qkv = torch.cat([torch.view_as_real(rotated).flatten(-2), qkv[:, heads + kv_heads :]], 1)
    padded = F.embedding(layout.gather, qkv.flatten(1)).view(rows, width, -1, size).transpose(1, 2)
    q = padded[:, :heads].reshape(rows * kv_heads, -1, size)
    k, v = (part.reshape(-1, width, size) for part in padded[:, heads:].split(kv_heads, 1))
    weights = torch.baddbmm(causal, q, k.transpose(1, 2)).softmax(-1)
    attended = torch.bmm(weights, v).view(rows, heads, width, size).transpose(1, 2)
    return F.embedding(layout.scatter, attended.reshape(rows * width, -1))
