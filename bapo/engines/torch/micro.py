"""Micro-batches that fit into a given memory, and the recomputation of layers that makes room for more.

Counted is what a forward pass keeps for its backward pass: the larger part of what a step takes beside weights,
gradients and the optimiser's state. What the fast forward keeps is known exactly (``fast.scoring.kept_bytes``); of the
library's forward it is estimated, for decoders with a gated MLP and fused attention, and rather too high for others.
Images are not counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from bapo.algorithm.rollouts import Group
from bapo.engines.shared.rows import Pair, Rows, by_length, collate
from bapo.engines.shared.shortcuts import shortcut
from bapo.errors import UserError

GIGABYTE = 1e9
#: numbers that a layer keeps of each token, as multiples of the hidden size and of the MLP's: inputs of norms, of
#: projections and of attention; of gate, its sigmoid's product, up and their product
HIDDEN, MLP = 14, 4
#: bytes of each response token and entry of the vocabulary: float32 logits, log-probabilities and probabilities, and
#: the gradient of one
LOGITS = 16


def recompute_layers(model: Any) -> None:
    """Let each layer of ``model`` keep its input alone and be computed again in the backward pass.

    The library does so in training mode only. Only the layers enter it, not what is in them, so that nothing drops out.
    Raises UserError for a model whose layers cannot.
    """
    from torch.utils.checkpoint import checkpoint
    from transformers import modeling_layers

    kind = modeling_layers.GradientCheckpointingLayer
    layers = [module for module in model.modules() if isinstance(module, kind)]
    if not layers:
        raise UserError(
            f"train.gradient_checkpointing=true: {type(model).__name__} has no layers that can; leave it out"
        )
    for layer in layers:
        layer.training = layer.gradient_checkpointing = True
        layer._gradient_checkpointing_func = partial(checkpoint, use_reentrant=False, preserve_rng_state=False)


def fitting(
    model: Any, groups: list[Group], gigabytes: float, pad: int, device: Any, gradient: bool = True
) -> Iterator[Rows]:
    """Yield all responses as blocks of which each fits into ``gigabytes``, or is a single response.

    Neighbours of a block are similar in length, or begin alike where the forward pass computes beginnings once. More
    fit where no gradient is wanted.
    """
    fast = shortcut("scoring", model)
    order = by_length(groups) if fast is None else _alike(groups)

    def cut(pairs: list[Pair]) -> Iterator[Rows]:
        rows = collate(groups, pairs, pad, device)
        if fast is None:
            needed = _kept_bytes(model, rows, gradient)
        else:
            needed = fast.kept_bytes(model, rows.ids, rows.starts, rows.lengths, rows.width, gradient)
        parts = min(len(pairs), -int(-needed // (gigabytes * GIGABYTE)))
        if parts <= 1:
            yield rows
            return
        for part in range(parts):
            yield from cut(pairs[part * len(pairs) // parts : (part + 1) * len(pairs) // parts])

    if order:
        yield from cut(order)


def _alike(groups: list[Group]) -> list[Pair]:
    """Order responses by prompt and tokens."""

    def tokens(pair: Pair) -> tuple[list[int], list[int], Pair]:
        samples = groups[pair[0]].samples
        response = samples.tokens[pair[1], : samples.lengths[pair[1]]].tolist()
        return list(groups[pair[0]].prompt.row.tokens), response, pair

    return sorted(by_length(groups), key=tokens)


def _kept_bytes(model: Any, rows: Rows, gradient: bool = True) -> int:
    """Estimate the bytes that the library's forward keeps of a block, or has at once without a gradient."""
    config = model.config.get_text_config()
    hidden, layers = config.hidden_size, config.num_hidden_layers
    mlp = getattr(config, "intermediate_size", None) or 4 * hidden
    layer = (HIDDEN * hidden + MLP * mlp) * model.dtype.itemsize
    inputs = layers * hidden * model.dtype.itemsize if model.is_gradient_checkpointing else (layers - 1) * layer
    token = layer + (inputs if gradient else 0)
    count, longest = rows.ids.shape
    vocabulary = model.get_output_embeddings().weight.shape[0]
    return count * (longest * token + rows.width * LOGITS * vocabulary)
