"""Decoding with Qwen2, Llama or the language model of Qwen2.5-VL, in float32 on the CPU, written out by hand.

A small model spends most of the library's forward in overheads, and nearly all rollouts and evaluations of a laptop run
pass through here. This is the same function, up to float rounding, on the module's own weights:

- query, key and value weights are one matrix, gate and up weights another; the factor 1/sqrt(head size) is in the
  query weights, the weight of each norm in the matrix that follows it;
- within each head, query and key features i and i + size/2 (which RoPE rotates together) lie side by side, so that the
  rotation is one product of complex numbers; scalar products do not change under a common permutation;
- what the first layer makes of a token is looked up where the vocabulary is small: nothing came before it;
- what all prompts of a batch begin with, such as the examples of a few-shot prompt, is computed and kept once;
- each key and value has a static place. Attention runs over the written columns, and over more where a batched
  product would take a slow path of torch; columns that are not written get -inf.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bapo.engines.shared.models import images

if TYPE_CHECKING:
    from transformers import PreTrainedModel
    from transformers.models.qwen2.modeling_qwen2 import Qwen2Attention, Qwen2DecoderLayer, Qwen2RMSNorm

    from bapo.engines.shared.models.images import PromptView

#: Larger models gain little, and the joined copies of their weights cost memory and time on every call.
MAX_PARAMETERS = 400_000_000
#: the largest vocabulary for which the first layer's queries, keys and values are computed beforehand
_LOOKED_UP = 8192
#: the fewest tokens of a common beginning
_LEAST_COMMON = 32
#: torch.bmm leaves products smaller than this (rows x columns x contraction) to its unvectorised kernel.
_SMALL_PRODUCT = 400

_CLASSES = {
    "Qwen2ForCausalLM": "qwen2",
    "LlamaForCausalLM": "llama",
    "Qwen2_5_VLForConditionalGeneration": "qwen2_5_vl",
}
#: Where the modules of a plain model come from. Adapters, quantised layers and other activations come from elsewhere.
_PLAIN_MODULES = (
    "transformers.models.llama.",
    "transformers.models.qwen2.",
    "transformers.models.qwen2_5_vl.",
    "transformers.activations",
    "torch.nn.modules.",
)


def text_model(model: PreTrainedModel) -> Any:
    """Return the layers of the language model, between embeddings and head; the items of its lists have no type."""
    return getattr(model.model, "language_model", model.model)


def supports(model: PreTrainedModel) -> bool:
    """Return whether :class:`HandDecoder` computes what ``model`` computes, its vision tower aside."""
    return model.device.type == "cpu" and is_plain(model)


def is_plain(model: PreTrainedModel) -> bool:
    """Return whether the language model of ``model`` has the layers of Qwen2 or Llama and nothing else, in float32."""
    config = model.config.get_text_config()
    if _CLASSES.get(type(model).__name__) != model.config.model_type:
        return False
    body, head = text_model(model), model.lm_head
    modules = {model, model.model, *body.modules(), *head.modules()}
    return (
        are_plain(modules, [*body.parameters(), *head.parameters()], MAX_PARAMETERS)
        and set(getattr(config, "layer_types", None) or ["full_attention"]) == {"full_attention"}
        and not any(m.bias is not None for block in body.layers for m in _unbiased(block))
        and config.rope_parameters.get("rope_type", "default") == "default"
        and config.hidden_act == "silu"
        and body.layers[0].self_attn.head_dim % 2 == 0
    )


def are_plain(modules: Collection[nn.Module], parameters: Sequence[Tensor], most: int) -> bool:
    """Return whether modules are the library's own, without hooks, in float32, with at most ``most`` parameters."""
    return (
        all(type(m).__module__.startswith(_PLAIN_MODULES) for m in modules)
        and not any(m._forward_hooks or m._forward_pre_hooks for m in modules)
        and all(p.dtype == torch.float32 for p in parameters)
        and sum(p.numel() for p in parameters) <= most
    )


def _unbiased(block: Qwen2DecoderLayer) -> list[nn.Linear]:
    """Return the projections that have no bias here; those of queries, keys and values have all or none."""
    attention, mlp = block.self_attn, block.mlp
    return [attention.o_proj, mlp.gate_proj, mlp.up_proj, mlp.down_proj]


def common_beginning(sequences: Sequence[Sequence[int]]) -> int:
    """Return how many tokens all sequences begin with, their last tokens aside; 0 if a shared pass would not pay."""
    first, last = min(sequences, key=tuple), max(sequences, key=tuple)  # all others lie between these
    most = min(map(len, sequences)) - 1
    common = next((i for i in range(most) if first[i] != last[i]), most)
    return common if common >= _LEAST_COMMON else 0


@dataclass
class _Layer:
    """One block's weights, joined and transposed as the products want them."""

    qkv: Tensor
    qkv_bias: Tensor | None
    out: Tensor
    gate_up: Tensor
    down: Tensor


def _pair_up(weight: Tensor, size: int) -> Tensor:
    """Reorder [heads * size, ...]: features (0, ..., size - 1) of each head become (0, size/2, 1, size/2 + 1, ...)."""
    return weight.unflatten(0, (-1, 2, size // 2)).transpose(1, 2).flatten(0, 2)


def joined_qkv(attention: Qwen2Attention) -> tuple[Tensor, Tensor | None]:
    """Return the weight [(heads + 2 * kv_heads) * size, hidden] of queries, keys, values, reordered, and the bias."""
    projections, size = (attention.q_proj, attention.k_proj, attention.v_proj), attention.head_dim

    def join(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.cat([_pair_up(q, size) * size**-0.5, _pair_up(k, size), v])

    biased = attention.q_proj.bias is not None
    return join(*(p.weight for p in projections)), join(*(p.bias for p in projections)) if biased else None


def product(bias: Tensor | None, x: Tensor, weight: Tensor) -> Tensor:
    """Return x @ weight, with the bias where there is one."""
    return torch.mm(x, weight) if bias is None else torch.addmm(bias, x, weight)


def frequencies_of(model: PreTrainedModel) -> tuple[Tensor, Tensor | None]:
    """Return RoPE's frequencies [size / 2], and which of three positions each turns with [size / 2], None for one."""
    sections = model.config.get_text_config().rope_parameters.get("mrope_section")
    which = None if sections is None else torch.arange(3).repeat_interleave(torch.tensor(list(sections)))
    return text_model(model).rotary_emb.inv_freq.float(), which


class HandDecoder:
    """Decodes as the module says. Rows are sequences; the interface is that of ``cache.Decoder``."""

    device = torch.device("cpu")

    def __init__(self, model: PreTrainedModel, max_tokens: int) -> None:
        config, body = model.config.get_text_config(), text_model(model)
        self.model, self.max_tokens, self.hidden = model, max_tokens, config.hidden_size
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.size = body.layers[0].self_attn.head_dim
        self.least = -(-_SMALL_PRODUCT // self.size)
        #: x / hypot(|x|, floor) is x / sqrt(mean(x^2) + eps) / sqrt(hidden)
        self.floor = torch.tensor((self.hidden * config.rms_norm_eps) ** 0.5)
        self.embedding = body.embed_tokens.weight.detach()
        self.head = self._after_norm(body.norm, model.lm_head.weight)
        self.frequencies, self.sections = frequencies_of(model)
        self.layers = [self._join(block) for block in body.layers]
        looked_up = len(self.embedding) <= _LOOKED_UP
        self.first = self._qkv(self.embedding, self.layers[0]) if looked_up else None

    def _join(self, block: Qwen2DecoderLayer) -> _Layer:
        mlp, (qkv, bias) = block.mlp, joined_qkv(block.self_attn)
        gate_up = torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight])
        return _Layer(
            qkv=self._after_norm(block.input_layernorm, qkv),
            qkv_bias=bias,
            out=block.self_attn.o_proj.weight.detach().t(),
            gate_up=self._after_norm(block.post_attention_layernorm, gate_up),
            down=mlp.down_proj.weight.detach().t(),
        )

    def _after_norm(self, norm: Qwen2RMSNorm, weight: Tensor) -> Tensor:
        return (weight.detach() * (norm.weight.detach() * self.hidden**0.5)).t()

    def prefill(
        self, prompts: Sequence[Sequence[int]], group_size: int, views: Sequence[PromptView | None] = ()
    ) -> Tensor:
        """Run P prompts, a row each, and return the logits [P, vocabulary] of their next tokens.

        group_size: the most rows that a prompt will have; views: of the prompts' images, where there are any.
        """
        with_images = any(views)
        head = 0 if with_images else common_beginning(prompts)
        count, longest = len(prompts), max(map(len, prompts)) - head
        rests = [p[head:] for p in prompts]
        padding = torch.tensor([longest - len(p) for p in rests])
        ids = torch.tensor([[0] * (longest - len(p)) + list(p) for p in rests])
        # an image has fewer positions than tokens, so the text behind it is closer
        pairs = zip(prompts, views or [None] * count, strict=True)
        shift = torch.tensor([v.following - len(p) if v else 0 for p, v in pairs])
        self.uniform = not bool(padding.any()) and bool((shift == shift[0]).all())
        self.length, self.rows = longest, count
        # the last token that is sampled is never fed back
        width = max(longest + self.max_tokens - 1, self.least)
        self._make_room(count * group_size, width)
        angles = torch.arange(head + width)[:, None] * self.frequencies
        self.rotations = torch.polar(torch.ones_like(angles), angles)
        self.positions[:count] = (head + longest - padding + shift).numpy()

        self.bias[:count, :, :longest] = 0
        columns = torch.arange(longest)
        mask, rotations = columns <= columns[:, None], self.rotations[head : head + longest, None]
        if not self.uniform:
            written = columns >= padding[:, None]
            # padding looks at itself: a row of -inf would be NaN
            mask = ((mask & written[:, None]) | torch.eye(longest, dtype=torch.bool))[:, None]
            rotations = self.rotations[(columns - padding[:, None]).clamp(min=0) + head][:, :, None]
            self.bias[:count, :, :longest].masked_fill_(~written[:, None], -torch.inf)
        if with_images:
            x, positions = images.embed(self.model, ids, padding.tolist(), [len(p) for p in prompts], views)
            angles = positions[self.sections].permute(1, 2, 0) * self.frequencies
            rotations = torch.polar(torch.ones_like(angles), angles)[:, :, None]
        else:
            x = self.embedding[ids]
        self.common = None
        if head:
            self.common = self._run_common(prompts[0][:head])
            mask = torch.cat([mask.new_ones(*mask.shape[:-1], head), mask], -1)
        self._run(x, mask, rotations, self.cache)
        return self._logits(x[:, -1])

    def _run_common(self, tokens: Sequence[int]) -> Tensor:
        """Run what all prompts begin with; returns its keys and values [layers, 2, 1, kv_heads, n, size]."""
        columns = torch.arange(len(tokens))
        x = self.embedding[torch.tensor([list(tokens)])]
        cache = torch.empty(len(self.layers), 2, 1, self.kv_heads, len(tokens), self.size)
        self._run(x, columns <= columns[:, None], self.rotations[: len(tokens), None], cache)
        return cache

    def _run(self, x: Tensor, mask: Tensor, rotations: Tensor, caches: Tensor) -> None:
        """Run tokens [P, n, hidden], which are changed in place, behind the columns of ``common``.

        Args:
            x: the tokens' embeddings
            mask: bool [..., n, common + n], True where a token sees a column
            rotations: complex, broadcast to [P, n, heads, size / 2]
            caches: gets the keys and values of each layer
        """
        (count, longest, _), kv, grouped = x.shape, self.heads + self.kv_heads, self.kv_heads != self.heads
        for number, layer in enumerate(self.layers):
            qkv = self._qkv(x.view(-1, self.hidden), layer).view(count, longest, -1, self.size)
            torch.view_as_complex(qkv[:, :, :kv].unflatten(-1, (-1, 2))).mul_(rotations)
            q, k, v = (part.transpose(1, 2) for part in qkv.split([self.heads, self.kv_heads, self.kv_heads], 2))
            for cache, new in zip(caches[number], (k, v), strict=True):
                cache[:count, :, :longest] = new
                cache[:count, :, longest : self.least] = 0  # 0 x NaN is NaN
            if self.common is not None:
                before = self.common[number].expand(-1, count, -1, -1, -1)
                k, v = (torch.cat(parts, 2) for parts in zip(before, (k, v), strict=True))
            a = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=1.0, enable_gqa=grouped)
            self._rest(x.view(-1, self.hidden), a.transpose(1, 2).reshape(count * longest, -1), layer)

    def step(self, tokens: Tensor) -> Tensor:
        """Feed one token per row, int64 [n]; returns logits [n, vocabulary]."""
        rows, at, heads, kv_heads, size = self.rows, self.length, self.heads, self.kv_heads, self.size
        self.length += 1
        width = max(self.length, self.least)
        self.bias[:rows, :, at] = 0
        bias = self.bias[:rows].view(rows * kv_heads, 1, -1)[:, :, :width]
        rotations = self.rotations[self.positions[0]]
        if not self.uniform:
            rotations = self.rotations.index_select(0, torch.from_numpy(self.positions[:rows]))[:, None]
        self.positions[:rows] += 1
        x = F.embedding(tokens, self.embedding)
        queries = self.queries[:rows]
        q = queries.view(rows * kv_heads, -1, size)
        rotated_queries = _complex(queries, rows, heads, -1)
        for number, layer in enumerate(self.layers):
            table = None if number else self.first
            qkv = self._qkv(x, layer) if table is None else F.embedding(tokens, table)
            keys, values, new_keys, new_values = self._places(number, width, at)
            pairs = _complex(qkv, rows, heads + 2 * kv_heads, -1)
            torch.mul(pairs[:, :heads], rotations, out=rotated_queries)
            torch.mul(pairs[:, heads:-kv_heads], rotations, out=new_keys)
            new_values.copy_(qkv.view(rows, -1, size)[:, -kv_heads:])
            scores = torch.baddbmm(bias, q, keys)
            if self.common is None:
                attended = torch.bmm(scores.softmax(-1), values)
            else:
                attended = self._attend(queries, scores, values, *self.common[number, :, 0])
            self._rest(x, attended.view(rows, -1), layer)
        return self._logits(x)

    def _attend(self, queries: Tensor, scores: Tensor, values: Tensor, keys: Tensor, more_values: Tensor) -> Tensor:
        """Return what the queries attend to, [rows, kv_heads, ..., size], with a common beginning.

        Args:
            queries: [rows, heads, size]
            scores, values: of the columns that each row has for itself, [rows * kv_heads, ...]
            keys, more_values: of the common beginning, [kv_heads, n, size]
        """
        rows, kv_heads, share = len(queries), self.kv_heads, self.heads // self.kv_heads
        by_row, by_head = (rows, kv_heads, share, -1), (kv_heads, rows, share, -1)
        q = queries.view(by_row).transpose(0, 1).reshape(kv_heads, -1, self.size)
        before = torch.bmm(q, keys.transpose(1, 2)).view(by_head).transpose(0, 1)
        before, behind = torch.cat([before, scores.view(by_row)], -1).softmax(-1).tensor_split([keys.shape[1]], -1)
        before = torch.bmm(before.transpose(0, 1).reshape(kv_heads, q.shape[1], -1), more_values)
        return torch.bmm(behind.flatten(0, 1), values).view(by_row).add_(before.view(by_head).transpose(0, 1))

    def _places(self, number: int, width: int, at: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return views of one layer's cache: keys [rows * kv_heads, size, width], values [rows * kv_heads, width,
        size], and of column ``at`` the keys, complex [rows, kv_heads, size / 2], and the values [rows, kv_heads, size].

        Made of strides, because each slicing of a tensor takes as long as writing one of these columns.
        """
        layer, part, row, head, column, _ = self.cache.stride()
        rows, kv_heads, size, begin = self.rows, self.kv_heads, self.size, number * layer
        keys = self.cache.as_strided((rows * kv_heads, size, width), (head, 1, column), begin)
        values = self.cache.as_strided((rows * kv_heads, width, size), (head, column, 1), begin + part)
        begin += at * column
        new_keys = self.pairs.as_strided((rows, kv_heads, size // 2), (row // 2, head // 2, 1), begin // 2)
        new_values = self.cache.as_strided((rows, kv_heads, size), (row, head, 1), begin + part)
        return keys, values, new_keys, new_values

    def branch(self, sources: np.ndarray, places: np.ndarray, rows: int) -> None:
        """Copy the rows ``sources``, as they are, into ``places`` and keep the first ``rows`` rows."""
        width = max(self.length, self.least)
        for part in self.cache.flatten(0, 1).numpy():  # numpy copies such runs at several times torch's speed
            part[places, :, :width] = part[sources, :, :width]
        self.positions[places] = self.positions[sources]
        bias = self.bias.numpy()
        bias[places] = bias[sources]
        self.rows = rows

    def _make_room(self, rows: int, width: int) -> None:
        """Allocate what belongs to rows. Nothing is read before it has been written."""
        self.cache = torch.empty(len(self.layers), 2, rows, self.kv_heads, width, self.size)  # keys, values
        self.pairs = _complex(self.cache, *self.cache.shape[:-1], -1)
        self.queries = torch.empty(rows, self.heads, self.size)
        self.positions = np.zeros(rows, dtype=np.int64)  # of the next token
        self.bias = torch.full((rows, self.kv_heads, width), -torch.inf)  # 0 on what is written

    def _qkv(self, x: Tensor, layer: _Layer) -> Tensor:
        """Return queries, keys and values of [n, hidden], one behind the other."""
        return product(layer.qkv_bias, self._norm(x), layer.qkv)

    def _norm(self, x: Tensor) -> Tensor:
        return x / torch.hypot(torch.linalg.vector_norm(x, dim=-1, keepdim=True), self.floor)

    def _rest(self, x: Tensor, attended: Tensor, layer: _Layer) -> None:
        """Compute what follows attention in a block: x and attended are [n, hidden], x is changed in place."""
        x.addmm_(attended, layer.out)
        gate, up = torch.mm(self._norm(x), layer.gate_up).chunk(2, -1)
        x.addmm_(F.silu(gate, inplace=True).mul_(up), layer.down)

    def _logits(self, x: Tensor) -> Tensor:
        return torch.mm(self._norm(x), self.head)


def _complex(x: Tensor, *shape: int) -> Tensor:
    """Return neighbours of a contiguous tensor as complex numbers of this shape."""
    return torch.view_as_complex(x.view(*shape, 2))
