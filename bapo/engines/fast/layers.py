"""The layers of small float32 Qwen2, Llama and Qwen2.5-VL models for training: forward and backward passes by hand.

The same numbers and gradients as the library's forward under autograd, up to float rounding, in half its time:

- query, key and value weights are one matrix, gate and up weights another; the weights of a norm and the factor
  1/sqrt(head size) are in the matrix that follows, so that a norm only scales each token;
- as in ``bapo.engines.fast.sampler``, the features of a head that RoPE rotates together lie side by side, so that the
  rotation is one product of complex numbers in place, and its gradient another;
- the backward pass keeps what it needs and nothing else, and writes no gradient of a view or a copy;
- the first layer's queries, keys and values are those of the different words;
- behind the last layer's attention only the tokens from which a token is predicted are computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bapo.engines.fast import attention, sampler
from bapo.engines.fast.attention import Heads, Places
from bapo.engines.fast.layout import Layout

if TYPE_CHECKING:
    from transformers import PreTrainedModel
    from transformers.models.qwen2.modeling_qwen2 import Qwen2DecoderLayer


# ------------------------------------------------------------------------------------------------ weights


def parameters_of(block: Qwen2DecoderLayer) -> list[Tensor]:
    """Return the parameters of a layer, of Llama's too, in the order that this module takes and gives them."""
    projections = (block.self_attn.q_proj, block.self_attn.k_proj, block.self_attn.v_proj)
    return [
        block.input_layernorm.weight,
        *(p.weight for p in projections),
        block.self_attn.o_proj.weight,
        block.post_attention_layernorm.weight,
        block.mlp.gate_proj.weight,
        block.mlp.up_proj.weight,
        block.mlp.down_proj.weight,
        *(p.bias for p in projections if p.bias is not None),  # Qwen2's; Llama has none
    ]


@dataclass
class Weights:
    """Holds a layer's matrices [out, in], or their gradients.

    The matrices behind a norm (queries, keys and values; gate and up) include the norm's weight.
    """

    q: Tensor
    kv: Tensor
    out: Tensor
    gate_up: Tensor
    down: Tensor
    q_bias: Tensor | None = None
    kv_bias: Tensor | None = None


@dataclass
class Joined:
    """Holds the matrices made of a layer's parameters; ``plain_qkv`` and ``plain_gate_up`` are without their norms."""

    heads: Heads
    norm: Tensor
    plain_qkv: Tensor
    mlp_norm: Tensor
    plain_gate_up: Tensor
    weights: Weights

    @classmethod
    def of(cls, parameters: Sequence[Tensor], heads: Heads) -> Joined:
        """Join the ``parameters_of`` a layer."""
        norm, q, k, v, out, mlp_norm, gate, up, down, *biases = parameters
        order, scales = _rows_of(heads, q.device)
        plain_qkv, plain_gate_up = torch.cat([q, k, v])[order].mul_(scales[:, None]), torch.cat([gate, up])
        qkv, cut = plain_qkv * norm, heads.queries * heads.size
        weights = Weights(qkv[:cut], qkv[cut:], out, plain_gate_up * mlp_norm, down)
        if biases:
            weights.q_bias, weights.kv_bias = torch.cat(biases)[order].mul_(scales).tensor_split([cut])
        return cls(heads, norm, plain_qkv, mlp_norm, plain_gate_up, weights)

    def split(self, gradients: Weights) -> list[Tensor]:
        """Return the gradients of the ``parameters_of`` the layer from those of its matrices."""
        order, scales = _rows_of(self.heads, self.norm.device)
        joined = torch.cat([gradients.q, gradients.kv])
        qkv = torch.empty_like(joined)
        qkv[order] = (joined * self.norm).mul_(scales[:, None])
        sizes = [n * self.heads.size for n in (self.heads.queries, self.heads.keys, self.heads.keys)]
        biases: Sequence[Tensor] = ()
        if gradients.q_bias is not None and gradients.kv_bias is not None:
            bias = joined.new_empty(len(joined))
            bias[order] = torch.cat([gradients.q_bias, gradients.kv_bias]).mul_(scales)
            biases = bias.split(sizes)
        return [
            joined.mul_(self.plain_qkv).sum(0),
            *qkv.split(sizes),
            gradients.out,
            (gradients.gate_up * self.plain_gate_up).sum(0),
            *gradients.gate_up.mul_(self.mlp_norm).chunk(2),
            gradients.down,
            *biases,
        ]


@cache
def _rows_of(heads: Heads, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the order of the joined rows of queries, keys and values, int64 [n], and each one's factor, [n]."""
    within = torch.arange(heads.size).view(2, -1).t().flatten()  # 0, size/2, 1, size/2 + 1, ...
    turned = heads.queries + heads.keys
    rotated = (torch.arange(turned)[:, None] * heads.size + within).flatten()
    order = torch.cat([rotated, torch.arange(turned * heads.size, (turned + heads.keys) * heads.size)])
    scales = torch.ones(len(order))
    scales[: heads.queries * heads.size] = heads.size**-0.5
    return order.to(device), scales.to(device)


# ------------------------------------------------------------------------------------------------ a layer


def normalise(x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return x [M, hidden] divided by its root mean square, and the factors [M, 1]."""
    scale = _means(x * x).add_(eps).rsqrt_()
    return x * scale, scale


def normalise_backward(gradient: Tensor, h: Tensor, scale: Tensor, into: Tensor) -> Tensor:
    """Add x's gradient to ``into``. h, scale: ``normalise``'s; the gradient [M, hidden] of h is overwritten."""
    mean = _means(gradient * h)
    return into.addcmul_(gradient.addcmul_(h, mean, value=-1), scale)


def _means(x: Tensor) -> Tensor:
    """Return the mean of each row, [M, 1]. A product is faster here than a sum of short rows."""
    return torch.mm(x, x.new_full((x.shape[1], 1), 1 / x.shape[1]))


@dataclass
class LayerTape:
    """What a layer's backward pass needs of its forward pass."""

    h: Tensor
    scale: Tensor
    rows: attention.AttentionTape
    attended: Tensor
    mlp_h: Tensor
    mlp_scale: Tensor
    gate: Tensor
    up: Tensor
    silu: Tensor
    activated: Tensor


def forward(
    x: Tensor, weights: Weights, eps: float, places: Places, first: bool, last: bool, keep: bool
) -> tuple[Tensor, LayerTape | None]:
    """Run a layer; returns its output, and what :func:`backward` needs.

    Args:
        x: hidden states [M, hidden]
        weights: the layer's
        eps: of its norms
        places: of the tokens
        first: the layer takes the embeddings of the layout's words
        last: the layer returns only the states from which a token is predicted
        keep: whether a backward pass follows
    """
    subset = places.layout.predictors if last else None
    h, scale = normalise(x, eps)
    q = sampler.product(weights.q_bias, h, weights.q.t())
    kv = sampler.product(weights.kv_bias, h, weights.kv.t())
    if first:
        x, q, kv = (t.index_select(0, places.layout.word) for t in (x, q, kv))
    attended, rows = attention.forward(q, kv, places, subset)
    if subset is not None:
        x = x.index_select(0, subset)
    x = torch.addmm(x, attended, weights.out.t())
    mlp_h, mlp_scale = normalise(x, eps)
    gate, up = torch.mm(mlp_h, weights.gate_up.t()).chunk(2, -1)
    silu = F.silu(gate)
    if not keep:  # the same numbers, so that a policy has no divergence from itself
        return x.addmm_(silu.mul_(up), weights.down.t()), None
    activated = silu * up
    tape = LayerTape(h, scale, rows, attended, mlp_h, mlp_scale, gate, up, silu, activated)
    return x.addmm_(activated, weights.down.t()), tape


def backward(
    gradient: Tensor, tape: LayerTape, weights: Weights, places: Places, first: bool, last: bool
) -> tuple[Tensor, Weights]:
    """Return the gradient of a layer's input, and its weights'.

    Args:
        gradient: of the layer's output, which is overwritten
        tape: what :func:`forward` returned
        weights, places, first, last: as :func:`forward` had them
    """
    subset = places.layout.predictors if last else None
    activated = torch.mm(gradient, weights.down)
    down = torch.mm(gradient.t(), tape.activated)
    gate_up = activated.new_empty(len(activated), 2 * activated.shape[1])
    gate, up = gate_up.chunk(2, -1)
    torch.mul(activated, tape.silu, out=up)
    torch.ops.aten.silu_backward(activated.mul_(tape.up), tape.gate, grad_input=gate)
    joined = torch.mm(gate_up.t(), tape.mlp_h)
    gradient = normalise_backward(torch.mm(gate_up, weights.gate_up), tape.mlp_h, tape.mlp_scale, gradient)
    out = torch.mm(gradient.t(), tape.attended)
    q, kv = attention.backward(torch.mm(gradient, weights.out), tape.rows, places, subset)
    if subset is not None:
        gradient = attention.spread(gradient, subset, len(places.layout.word))
    if first:
        gradient, q, kv = (places.layout.word_sums.of(t) for t in (gradient, q, kv))
    h = torch.mm(q, weights.q).addmm_(kv, weights.kv)
    gradients = Weights(torch.mm(q.t(), tape.h), torch.mm(kv.t(), tape.h), out, joined, down)
    if weights.q_bias is not None:
        gradients.q_bias, gradients.kv_bias = q.sum(0), kv.sum(0)
    return normalise_backward(h, tape.h, tape.scale, gradient), gradients


# ------------------------------------------------------------------------------------------------ all layers


def hidden(model: PreTrainedModel, layout: Layout, features: Tensor | None = None) -> Tensor:
    """Return the last hidden states [U, hidden] that the head takes; gradients flow to the parameters and ``features``.

    features: of the images of the rows ``layout.image_rows``, in their order.
    """
    body = sampler.text_model(model)
    parameters = [p for block in body.layers for p in parameters_of(block)]
    return _Hidden.apply(model, layout, features, body.embed_tokens.weight, body.norm.weight, *parameters)


class _Hidden(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, model: PreTrainedModel, layout: Layout, features: Tensor | None, *parameters: Tensor
    ) -> Tensor:
        embedding, norm, *rest = parameters
        config, keep = model.config.get_text_config(), any(ctx.needs_input_grad)
        size = sampler.text_model(model).layers[0].self_attn.head_dim
        heads = Heads(config.num_attention_heads, config.num_key_value_heads, size)
        count, tapes = len(rest) // config.num_hidden_layers, list[LayerTape]()
        layers = [Joined.of(rest[start : start + count], heads) for start in range(0, len(rest), count)]
        places = Places.of(model, layout, heads)
        x = F.embedding(layout.words, embedding)
        if features is not None:
            x = torch.cat([x, features])
        for layer in layers:
            first, last = layer is layers[0], layer is layers[-1]
            x, tape = forward(x, layer.weights, config.rms_norm_eps, places, first, last, keep)
            tapes += [] if tape is None else [tape]
        h, scale = normalise(x, config.rms_norm_eps)
        if keep:
            ctx.state = layers, tapes, places, h, scale, norm, len(embedding)
        return h * norm

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        layers, tapes, places, h, scale, norm, vocabulary = ctx.state
        del ctx.state
        layout = places.layout
        x = normalise_backward(gradient * norm, h, scale, torch.zeros_like(h))
        weights: list[Tensor] = []
        for layer, tape in zip(reversed(layers), reversed(tapes), strict=True):
            first, last = layer is layers[0], layer is layers[-1]
            x, gradients = backward(x, tape, layer.weights, places, first, last)
            weights = [*layer.split(gradients), *weights]
        words, features = x.tensor_split([len(layout.words)])
        embedding = attention.spread(words, layout.words, vocabulary)
        return None, None, features if layout.image_rows else None, embedding, (gradient * h).sum(0), *weights
