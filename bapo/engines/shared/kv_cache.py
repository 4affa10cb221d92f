"""Decoding with any Hugging Face causal language model: its own forward, and a cache that is allocated once.

Three ways to remember the past, chosen by :func:`decoder_for`:

- full attention layers: keys and values lie in buffers of the final length, written in place (:class:`StaticLayer`);
- layers of another kind (sliding windows, linear attention): the library's own growing layers, one by one;
- models whose forward takes no ``past_key_values``: the whole sequence is computed again for each token.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from bapo.engines.shared import images
from bapo.engines.shared.imports import load_transformers

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from bapo.engines.shared.images import View

_cache_utils = load_transformers().cache_utils
DynamicCache, DynamicLayer = _cache_utils.DynamicCache, _cache_utils.DynamicLayer


class StaticLayer(DynamicLayer):
    """Keys and values of one attention layer, each in a buffer [rows, heads, width, head size] allocated once.

    It starts as the library's DynamicLayer, takes the prompts (one row a prompt), and gets room for the responses by
    :meth:`make_room`. Unlike the library's own StaticLayer it returns only the part that is written, so that attention
    costs no more than it must and needs no mask where all prompts have the same length.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width
        self.buffers: tuple[Tensor, Tensor] | None = None

    def make_room(self, rows: int) -> None:
        """Copy what is there into buffers of the final width and ``rows`` rows."""
        written, (count, heads, length, size) = (self.keys, self.values), self.keys.shape
        self.buffers = tuple(x.new_empty(rows, heads, self.width, size) for x in written)
        for buffer, old in zip(self.buffers, written, strict=True):
            buffer[:count, :, :length] = old
        self._show(count, length)

    def branch(self, sources: Tensor, places: Tensor, rows: int) -> None:
        """Copy the rows ``sources`` into ``places`` and go on with the first ``rows`` rows."""
        length = self.keys.shape[-2]
        for buffer in self.buffers:
            buffer[places, :, :length] = buffer[sources, :, :length]
        self._show(rows, length)

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Append [rows, heads, new tokens, head size]; returns all keys and values so far (the library's interface)."""
        if self.buffers is None:
            return super().update(key_states, value_states, *args, **kwargs)
        rows, end = len(key_states), self.keys.shape[-2] + key_states.shape[-2]
        for buffer, new in zip(self.buffers, (key_states, value_states), strict=True):
            buffer[:rows, :, end - new.shape[-2] : end] = new
        self._show(rows, end)
        return self.keys, self.values

    def _show(self, rows: int, length: int) -> None:
        self.keys, self.values = (buffer[:rows, :, :length] for buffer in self.buffers)


def bytes_of_row(model: PreTrainedModel, length: int) -> int:
    """Return the bytes of keys and values of a sequence in float32; a model without attention counts as one byte."""
    config = model.config.get_text_config()
    heads = getattr(config, "num_key_value_heads", None) or getattr(config, "num_attention_heads", 0)
    size = getattr(config, "head_dim", None) or config.hidden_size // max(1, getattr(config, "num_attention_heads", 1))
    return max(1, 8 * config.num_hidden_layers * heads * size * length)


def pads_left(model: PreTrainedModel) -> bool:
    """Return whether prompts of different lengths may share a batch, padded on the left: the model takes a mask and
    positions, and all its layers are plain attention."""
    accepted = inspect.signature(model.forward).parameters.keys()
    layers = DynamicCache(config=model.config).layers
    takes_places = {"past_key_values", "attention_mask", "position_ids"} <= accepted
    return takes_places and all(type(x) is DynamicLayer for x in layers)


def decoder_for(model: PreTrainedModel, max_tokens: int) -> CachedDecoder | RecomputingDecoder:
    """Return the decoder for this model: with a cache where its forward takes one."""
    cached = "past_key_values" in inspect.signature(model.forward).parameters
    return CachedDecoder(model, max_tokens) if cached else RecomputingDecoder(model)


class CachedDecoder:
    """Runs the model's own forward, one prefill a prompt, then one token a row and call."""

    def __init__(self, model: PreTrainedModel, max_tokens: int) -> None:
        self.model, self.max_tokens = model, max_tokens
        self.device = model.get_input_embeddings().weight.device
        accepted = inspect.signature(model.forward).parameters
        self.takes_positions = "position_ids" in accepted
        self.extra = {"logits_to_keep": 1} if "logits_to_keep" in accepted else {}

    def prefill(
        self, prompts: Sequence[Sequence[int]], group_size: int, views: Sequence[View | None] | None = None
    ) -> Tensor:
        """Run P prompts; returns the logits [P, vocabulary] of their next tokens. Rows are then the prompts.

        group_size: there will be at most so many rows a prompt; views: of the prompts' images, where there are any.
        """
        longest = max(map(len, prompts))
        padding = torch.tensor([longest - len(p) for p in prompts], device=self.device)
        ids = torch.tensor([[0] * (longest - len(p)) + list(p) for p in prompts], device=self.device)
        columns = torch.arange(longest + self.max_tokens, device=self.device)
        uniform = all(len(p) == longest for p in prompts)
        mask = None if uniform else columns >= padding[:, None]
        positions = (columns - padding[:, None]).clamp(min=0)

        # the last token that is sampled is never fed back
        self.cache, self.length = DynamicCache(config=self.model.config), longest
        width = longest + self.max_tokens - 1
        layers = self.cache.layers
        layers[:] = [StaticLayer(width) if type(x) is DynamicLayer else x for x in layers]
        if views is None or not any(views):
            logits = self._forward(ids, mask, positions)
        else:
            x, where = images.embed(self.model, ids, padding.tolist(), [len(p) for p in prompts], views)
            logits = self._forward(ids, mask, where, x)
            # an image has fewer positions than tokens: what follows it is closer
            behind = [v.following if v is not None else len(p) for p, v in zip(prompts, views, strict=True)]
            shift = torch.tensor([n - len(p) for p, n in zip(prompts, behind, strict=True)], device=self.device)
            positions = positions + shift[:, None]

        for layer in layers:
            if isinstance(layer, StaticLayer):
                layer.make_room(len(prompts) * group_size)
        self.mask, self.positions = None if uniform else mask, positions
        return logits

    def step(self, tokens: Tensor) -> Tensor:
        """Feed one token a row, int64 [n]; returns logits [n, vocabulary]."""
        self.length += 1
        return self._forward(tokens[:, None], self.mask, self.positions)

    def branch(self, sources: np.ndarray, places: np.ndarray, rows: int) -> None:
        """Copy the rows ``sources``, as they are, into ``places`` and go on with the first ``rows`` rows."""
        order = _order(sources, places, rows).to(self.device)
        copied, into = (torch.from_numpy(x).to(self.device) for x in (sources, places))
        for layer in self.cache.layers:
            if isinstance(layer, StaticLayer):
                layer.branch(copied, into, rows)
            else:
                layer.reorder_cache(order)
        self.positions = self.positions[order]
        self.mask = None if self.mask is None else self.mask[order]

    def _forward(self, ids: Tensor, mask: Tensor | None, positions: Tensor, embeddings: Tensor | None = None) -> Tensor:
        inputs = dict(self.extra)
        if self.takes_positions:
            inputs["position_ids"] = positions[..., self.length - ids.shape[1] : self.length]
        if mask is not None:
            inputs["attention_mask"] = mask[:, : self.length].long()
        inputs |= {"input_ids": ids} if embeddings is None else {"inputs_embeds": embeddings}
        return self.model(past_key_values=self.cache, use_cache=True, return_dict=True, **inputs).logits[:, -1]


class RecomputingDecoder:
    """Decodes with models that cache no keys and values: correct, and slow. Prompts must have the same length."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.model, self.device = model, model.get_input_embeddings().weight.device

    def prefill(self, prompts: Sequence[Sequence[int]], group_size: int, views: None = None) -> Tensor:
        ids = torch.tensor([list(p) for p in prompts], device=self.device)
        self.tokens = ids
        return self.model(input_ids=ids, return_dict=True).logits[:, -1]

    def step(self, tokens: Tensor) -> Tensor:
        self.tokens = torch.cat([self.tokens, tokens[:, None]], 1)
        return self.model(input_ids=self.tokens, return_dict=True).logits[:, -1]

    def branch(self, sources: np.ndarray, places: np.ndarray, rows: int) -> None:
        self.tokens = self.tokens[_order(sources, places, rows).to(self.device)]


def _order(sources: np.ndarray, places: np.ndarray, rows: int) -> Tensor:
    """Return int64 [rows], the row that each row goes on from."""
    order = torch.arange(rows)
    order[torch.from_numpy(places)] = torch.from_numpy(sources)
    return order
