"""Decoding with ``Qwen2ForCausalLM``, or the language model of ``Qwen2_5_VLForConditionalGeneration``, in float32 on
the CPU, written out by hand: a small model spends most of the library's forward in overheads, and nearly all of a
laptop run's rollouts and evaluations pass through here.

The same function as the library's forward, up to float rounding, on the module's own weights:

- query, key and value weights are one matrix, gate and up weights another; the factor 1/sqrt(head size) is in the
  query weights;
- within each head, query and key features i and i + size/2 (which RoPE rotates together) lie side by side, so that the
  rotation is one product of complex numbers; scalar products do not change under a common permutation;
- keys and values have a static place each. Attention runs over the buffer's written part, rounded up, with -inf on what
  is not written, because that keeps shapes and views the same from one token to the next and because batched products
  below 400 multiplications each go through a slow path of torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from bapo.engines.shared.images import View

#: Larger models gain little, and the joined copies of their weights cost memory and time on every call.
MAX_PARAMETERS = 64_000_000
#: torch.bmm leaves products smaller than this (rows x columns x contraction) to its unvectorised kernel.
_SMALL_PRODUCT = 400
#: Attention widths are multiples of this.
_WIDTH_STEP = 32


#: The classes, and where all modules of a plain model come from; an adapter, a quantised layer or another activation
#: does not.
_CLASSES = {"Qwen2ForCausalLM": "qwen2", "Qwen2_5_VLForConditionalGeneration": "qwen2_5_vl"}
_PLAIN_MODULES = (
    "transformers.models.qwen2.",
    "transformers.models.qwen2_5_vl.",
    "transformers.activations",
    "torch.nn.modules.",
)


def text_model(model: PreTrainedModel) -> nn.Module:
    """Return the layers of the language model, between embeddings and head."""
    return getattr(model.model, "language_model", model.model)


def supports(model: PreTrainedModel) -> bool:
    """Return whether :class:`Qwen2Decoder` computes what ``model`` computes, its vision tower aside."""
    config = model.config.get_text_config()
    if _CLASSES.get(type(model).__name__) != model.config.model_type:
        return False
    body, head = text_model(model), model.lm_head
    modules = list({model, model.model, *body.modules(), *head.modules()})
    parameters = [*body.parameters(), *head.parameters()]
    return (
        all(type(m).__module__.startswith(_PLAIN_MODULES) for m in modules)
        and not any(m._forward_hooks or m._forward_pre_hooks for m in modules)
        and set(config.layer_types) == {"full_attention"}
        and config.rope_parameters.get("rope_type", "default") == "default"
        and config.hidden_act == "silu"
        and body.layers[0].self_attn.head_dim % 2 == 0
        and all(p.dtype == torch.float32 and p.device.type == "cpu" for p in parameters)
        and sum(p.numel() for p in parameters) <= MAX_PARAMETERS
    )


@dataclass
class _Layer:
    """One block's weights, joined and transposed as the products want them, and what it remembers."""

    attention_norm: Tensor
    qkv: Tensor
    qkv_bias: Tensor
    out: Tensor
    mlp_norm: Tensor
    gate_up: Tensor
    down: Tensor
    cache: Tensor | None = None  # [keys and values, rows, heads, width, size]
    keys: Tensor | None = None  # [rows * heads, size, stop], what attention reads
    values: Tensor | None = None  # [rows * heads, stop, size]


def _pair_up(weight: Tensor, size: int) -> Tensor:
    """Reorder [heads * size, ...]: features (0, ..., size - 1) of each head become (0, size/2, 1, size/2 + 1, ...)."""
    return weight.unflatten(0, (-1, 2, size // 2)).transpose(1, 2).flatten(0, 2)


def joined_qkv(attention: nn.Module) -> tuple[Tensor, Tensor]:
    """Return the weight [(heads + 2 * kv_heads) * size, hidden] and bias of queries, keys, values, reordered."""
    q, k, v, size = attention.q_proj, attention.k_proj, attention.v_proj, attention.head_dim
    scale = size**-0.5
    return (
        torch.cat([_pair_up(q.weight, size) * scale, _pair_up(k.weight, size), v.weight]),
        torch.cat([_pair_up(q.bias, size) * scale, _pair_up(k.bias, size), v.bias]),
    )


def frequencies_of(model: PreTrainedModel) -> tuple[Tensor, Tensor | None]:
    """Return RoPE's frequencies [size / 2], and which of three positions each turns with [size / 2], None for one."""
    sections = model.config.get_text_config().rope_parameters.get("mrope_section")
    which = None if sections is None else torch.arange(3).repeat_interleave(torch.tensor(list(sections)))
    return text_model(model).rotary_emb.inv_freq.float(), which


class Qwen2Decoder:
    """Decodes as the module says. Rows are sequences; the interface is that of ``kv_cache.CachedDecoder``."""

    device = torch.device("cpu")

    def __init__(self, model: PreTrainedModel, max_tokens: int) -> None:
        config, body = model.config.get_text_config(), text_model(model)
        attention = body.layers[0].self_attn
        self.max_tokens, self.eps = max_tokens, config.rms_norm_eps
        self.heads, self.kv_heads, self.size = (
            config.num_attention_heads,
            config.num_key_value_heads,
            attention.head_dim,
        )
        self.hidden = config.hidden_size
        self.embedding, self.norm = body.embed_tokens.weight.detach(), body.norm.weight.detach()
        self.head = model.lm_head.weight.detach().t()
        self.frequencies, self.sections = frequencies_of(model)
        self.layers = [self._join(block) for block in body.layers]

    def _join(self, block: nn.Module) -> _Layer:
        attention, mlp = block.self_attn, block.mlp
        qkv, bias = joined_qkv(attention)
        return _Layer(
            attention_norm=block.input_layernorm.weight.detach(),
            qkv=qkv.t(),
            qkv_bias=bias,
            out=attention.o_proj.weight.detach().t(),
            mlp_norm=block.post_attention_layernorm.weight.detach(),
            gate_up=torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight]).t(),
            down=mlp.down_proj.weight.detach().t(),
        )

    def prefill(
        self, prompts: Sequence[Sequence[int]], group_size: int, views: Sequence[View | None] | None = None
    ) -> Tensor:
        """Run P prompts; returns the logits [P, vocabulary] of their next tokens. Rows are then P x group_size.

        views: of the prompts' images, where there are any.
        """
        count, longest = len(prompts), max(map(len, prompts))
        padding = torch.tensor([longest - len(p) for p in prompts])
        ids = torch.tensor([[0] * (longest - len(p)) + list(p) for p in prompts])
        views = views if views is not None and any(views) else [None] * count
        # an image has fewer positions than tokens: what follows it is closer
        shift = torch.tensor([v.following - len(p) if v else 0 for p, v in zip(prompts, views, strict=True)])
        uniform = not bool(padding.any()) and bool((shift == shift[0]).all())
        self.length, self.rows = longest, count * group_size
        # the last token that is sampled is never fed back
        self.width = max(longest + self.max_tokens - 1, -(-_SMALL_PRODUCT // self.size))
        angles = torch.arange(self.width)[:, None] * self.frequencies
        self.rotations = torch.polar(torch.ones_like(angles), angles)

        columns = torch.arange(longest)
        causal = columns <= columns[:, None]
        if uniform:
            rotations, mask = self.rotations[:longest], causal
            self.positions, self.shift = None, int(shift[0])
            self.bias = torch.full((1, 1, self.width), -torch.inf)
            self.bias[:, :, :longest] = 0
        else:
            written = columns >= padding[:, None]
            # padding looks at itself: a row of -inf would be NaN
            mask = (causal & written[:, None]) | torch.eye(longest, dtype=torch.bool)
            mask = mask[:, None]
            rotations = self.rotations[(columns - padding[:, None]).clamp(min=0)][:, :, None]
            self.positions = (longest - padding + shift).repeat_interleave(group_size)
            bias = torch.full((count, group_size * self.kv_heads, self.width), -torch.inf)
            bias[:, :, :longest].masked_fill_(written[:, None], 0)
            self.bias = bias.view(-1, 1, self.width)
        rotations = rotations if rotations.ndim == 4 else rotations[:, None]
        x = self.embedding[ids]
        if any(views):
            rotations = self._show_images(x, padding.tolist(), views)

        kv = slice(self.heads, self.heads + self.kv_heads)
        for layer in self.layers:
            qkv = self._qkv(x, layer, rotations)  # [P, longest, heads, size]
            q, k, v = (t.transpose(1, 2) for t in (qkv[:, :, : kv.start], qkv[:, :, kv], qkv[:, :, kv.stop :]))
            layer.cache = torch.zeros(2, count, group_size, self.kv_heads, self.width, self.size)
            layer.cache[0, :, :, :, :longest] = k[:, None]
            layer.cache[1, :, :, :, :longest] = v[:, None]
            layer.cache = layer.cache.flatten(1, 2)
            grouped = self.kv_heads != self.heads
            a = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=1.0, enable_gqa=grouped)
            x = self._rest(x, a.transpose(1, 2).flatten(2), layer)
        self._show()
        return self._logits(x[:, -1])

    def step(self, tokens: Tensor) -> Tensor:
        """Feed one token a row, int64 [n]; returns logits [n, vocabulary]."""
        at, rows, heads, kv_heads = self.length, self.rows, self.heads, self.kv_heads
        self.length += 1
        if self.length > self.stop:
            self._show()
        self.bias[:, :, at] = 0
        if self.positions is None:
            rotations = self.rotations[at + self.shift]
        else:
            rotations = self.rotations[self.positions][:, None]
            self.positions += 1
        bias = self.bias[:, :, : self.stop]
        x = F.embedding(tokens, self.embedding)
        for layer in self.layers:
            qkv = self._qkv(x, layer, rotations)  # [n, heads, size]
            layer.cache[:, :rows, :, at] = qkv[:, heads:].unflatten(1, (2, kv_heads)).transpose(0, 1)
            q = qkv[:, :heads].reshape(rows * kv_heads, heads // kv_heads, self.size)
            weights = torch.baddbmm(bias, q, layer.keys).softmax(-1)
            x = self._rest(x, torch.bmm(weights, layer.values).view(rows, -1), layer)
        return self._logits(x)

    def keep(self, rows: int, holes: Tensor, movers: Tensor) -> None:
        """Move the rows ``movers`` into the places ``holes`` and drop all but the first ``rows`` rows."""
        for layer in self.layers:
            for part in layer.cache:
                part.index_copy_(0, holes, part.index_select(0, movers))
        if self.positions is not None:
            self.positions[holes] = self.positions[movers]
            self.positions = self.positions[:rows]
            bias = self.bias.view(self.rows, -1)
            bias[holes] = bias[movers]
            self.bias = bias[:rows].view(-1, 1, self.width)
        self.rows = rows
        self._show()

    def _show_images(self, x: Tensor, padding: Sequence[int], views: Sequence[View | None]) -> Tensor:
        """Put image features into the embeddings, in place; returns the rotations [P, longest, 1, size / 2]."""
        columns = torch.arange(x.shape[1])
        positions = torch.stack([(columns - left).clamp(min=0) for left in padding]).expand(3, -1, -1).clone()
        for row, (left, view) in enumerate(zip(padding, views, strict=True)):
            if view is not None:
                x[row, left + torch.from_numpy(view.places)] = view.features
                positions[:, row, left:] = torch.from_numpy(view.positions)
        angles = positions[self.sections].permute(1, 2, 0) * self.frequencies
        return torch.polar(torch.ones_like(angles), angles)[:, :, None]

    def _show(self) -> None:
        """Fix what attention reads until ``length`` passes ``stop`` or rows are dropped."""
        least = max(self.length + 1, -(-_SMALL_PRODUCT // self.size))
        self.stop = min(self.width, -(-least // _WIDTH_STEP) * _WIDTH_STEP)
        for layer in self.layers:
            keys, values = (part[: self.rows].flatten(0, 1)[:, : self.stop] for part in layer.cache)
            layer.keys, layer.values = keys.transpose(1, 2), values

    def _qkv(self, x: Tensor, layer: _Layer, rotations: Tensor) -> Tensor:
        """Turn [..., hidden] into rotated queries and keys, and values: [..., heads + 2 * kv_heads, size]."""
        h = F.rms_norm(x, (self.hidden,), layer.attention_norm, self.eps)
        qkv = torch.addmm(layer.qkv_bias, h.view(-1, self.hidden), layer.qkv)
        qkv = qkv.view(*x.shape[:-1], -1, self.size)
        rotated = qkv[..., : self.heads + self.kv_heads, :].unflatten(-1, (-1, 2))
        torch.view_as_complex(rotated).mul_(rotations)
        return qkv

    def _rest(self, x: Tensor, attended: Tensor, layer: _Layer) -> Tensor:
        """Compute what follows attention in a block; x is changed in place."""
        flat = x.view(-1, self.hidden)
        flat.addmm_(attended.reshape(len(flat), -1), layer.out)
        h = F.rms_norm(flat, (self.hidden,), layer.mlp_norm, self.eps)
        gate, up = torch.mm(h, layer.gate_up).chunk(2, -1)
        flat.addmm_(F.silu(gate).mul_(up), layer.down)
        return x

    def _logits(self, x: Tensor) -> Tensor:
        return torch.mm(F.rms_norm(x, (self.hidden,), self.norm, self.eps), self.head)
