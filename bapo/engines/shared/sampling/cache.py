"""The state of a decoder: keys and values of each row, and the row that each unfinished response continues.

Keys and values are in the library's own cache, which has layers of every kind (full attention, sliding windows, linear
attention).

Responses with a common beginning share its computation (:class:`Branches`). All responses to a prompt share the prompt,
and a trained model repeats itself: GRPO's policy on Countdown computes 0.44 of the tokens of 32 responses, and 0.66 of
the tokens of 8. Each row holds a different beginning. Where responses part, the first one keeps the row, and the others
get copies of it, in rows that are no longer needed if there are any.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache, DynamicLayer

from bapo.engines.shared.models import images
from bapo.store.files import Json

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from bapo.engines.shared.models.images import PromptView

#: Rows that are no longer needed are dropped once they are this share of all; until then they are computed in vain.
DROP_SHARE = 1 / 8


def bytes_of_row(model: PreTrainedModel, length: int) -> int:
    """Return the bytes of keys and values of a sequence in float32; a model without attention counts as one byte."""
    config = model.config.get_text_config()
    heads = getattr(config, "num_key_value_heads", None) or getattr(config, "num_attention_heads", None) or 0
    size = getattr(config, "head_dim", None) or config.hidden_size // max(1, getattr(config, "num_attention_heads", 1))
    layers = getattr(config, "num_hidden_layers", None) or 1
    return max(1, 8 * layers * heads * size * length)


def pads_left(model: PreTrainedModel) -> bool:
    """Return whether prompts of different lengths may share a batch, padded on the left.

    The model must take a cache, a mask and positions, and all its layers must be plain attention.
    """
    accepted = inspect.signature(model.forward).parameters.keys()
    return {"past_key_values", "attention_mask", "position_ids"} <= accepted and all(
        type(layer) is DynamicLayer for layer in DynamicCache(config=model.config).layers
    )


class Decoder:
    """Runs the model's own forward: a prefill for each prompt, then one token for each row and call.

    A model that takes no cache computes every token of its rows again: correct, and slow.
    """

    def __init__(self, model: PreTrainedModel, max_tokens: int) -> None:
        self.model, self.max_tokens = model, max_tokens
        self.device = model.device
        accepted = inspect.signature(model.forward).parameters
        self.caches, self.takes_positions = "past_key_values" in accepted, "position_ids" in accepted
        self.extra = {"logits_to_keep": 1} if "logits_to_keep" in accepted else {}

    def prefill(
        self, prompts: Sequence[Sequence[int]], group_size: int, views: Sequence[PromptView | None] = ()
    ) -> Tensor:
        """Run P prompts, a row each, and return the logits [P, vocabulary] of their next tokens.

        group_size: the most rows that a prompt will have; views: of the prompts' images, where there are any.
        """
        longest = max(map(len, prompts))
        padding = torch.tensor([longest - len(p) for p in prompts], device=self.device)
        ids = torch.tensor([[0] * (longest - len(p)) + list(p) for p in prompts], device=self.device)
        columns = torch.arange(longest + self.max_tokens, device=self.device)
        uniform = all(len(p) == longest for p in prompts)
        self.mask = None if uniform else columns >= padding[:, None]
        positions = (columns - padding[:, None]).clamp(min=0)
        self.length, self.ids = longest, ids[:, :0]
        self.cache = DynamicCache(config=self.model.config) if self.caches else DynamicCache()
        if not any(views):
            logits = self._forward(ids, positions)
        else:
            x, image_positions = images.embed(self.model, ids, padding.tolist(), [len(p) for p in prompts], views)
            logits = self._forward(ids, image_positions, x)
            # an image has fewer positions than tokens, so the text behind it is closer
            shifts = [v.following - len(p) if v is not None else 0 for p, v in zip(prompts, views, strict=True)]
            shift = torch.tensor(shifts, device=self.device)
            positions = positions + shift[:, None]
        self.positions = positions
        return logits

    def step(self, tokens: Tensor) -> Tensor:
        """Feed one token per row, int64 [n]; returns logits [n, vocabulary]."""
        self.length += 1
        return self._forward(tokens[:, None], self.positions)

    def branch(self, sources: np.ndarray, places: np.ndarray, rows: int) -> None:
        """Copy the rows ``sources``, as they are, into ``places`` and keep the first ``rows`` rows."""
        order = torch.arange(rows)
        order[torch.from_numpy(places)] = torch.from_numpy(sources)
        order = order.to(self.device)
        self.cache.reorder_cache(order)  # type: ignore[arg-type]  # its LongTensor is this type
        self.positions, self.ids = self.positions[order], self.ids[order]
        self.mask = None if self.mask is None else self.mask[order]

    def _forward(self, ids: Tensor, positions: Tensor, embeddings: Tensor | None = None) -> Tensor:
        if not self.caches:
            self.ids = torch.cat([self.ids, ids], 1)
            return self.model(input_ids=self.ids, return_dict=True).logits[:, -1]
        inputs: Json = dict(self.extra)
        if self.takes_positions:
            inputs["position_ids"] = positions[..., self.length - ids.shape[1] : self.length]
        if self.mask is not None:
            inputs["attention_mask"] = self.mask[:, : self.length].long()
        inputs |= {"input_ids": ids} if embeddings is None else {"inputs_embeds": embeddings}
        return self.model(past_key_values=self.cache, use_cache=True, return_dict=True, **inputs).logits[:, -1]


@dataclass
class Branch:
    """Describes the next step of a decoder.

    sources, places: int64, may be empty; row ``places[i]`` becomes a copy of row ``sources[i]`` as it was
    rows: the number of rows, from the first, that are kept
    tokens: int64 [rows], the token that each row is fed
    """

    sources: np.ndarray
    places: np.ndarray
    rows: int
    tokens: np.ndarray


class Branches:
    """Maps the unfinished responses to the rows that they continue.

    places: int64 [n], the numbers of the unfinished responses; row: int64 [n], the row of each.
    """

    def __init__(self, prompts: int, group_size: int, vocabulary: int) -> None:
        self.places = np.arange(prompts * group_size)
        self.row = np.repeat(np.arange(prompts), group_size)
        self.rows, self.vocabulary = prompts, vocabulary

    def grow(self, tokens: np.ndarray, ended: np.ndarray) -> Branch | None:
        """Append one token to each response, int64 [n], and drop those that ended, bool [n]. None: all ended."""
        if ended.any():
            on = np.flatnonzero(~ended)
            self.places, self.row, tokens = self.places[on], self.row[on], tokens[on]
        if not len(tokens):
            return None
        child, firsts = _numbered(self.row * self.vocabulary + tokens)
        parents = self.row[firsts]
        needed = np.zeros(self.rows, dtype=bool)
        needed[parents] = True
        free, count = np.flatnonzero(~needed), len(parents)

        target = parents.copy()  # the first child of a row stays in it
        staying = _numbered(parents)[1]
        if len(staying) < count:
            moved = np.delete(np.arange(count), staying)
            new = max(0, len(moved) - len(free))
            target[moved] = np.concatenate([free, np.arange(self.rows, self.rows + new)])[: len(moved)]
            self.rows, free = self.rows + new, free[len(moved) :]
        if len(free) > DROP_SHARE * self.rows:
            target[target >= count] = free[free < count]
            self.rows = count

        self.row = target[child]
        copied = np.flatnonzero(target != parents)
        fed = np.zeros(self.rows, dtype=np.int64)
        fed[target] = tokens[firsts]
        return Branch(parents[copied], target[copied], self.rows, fed)


def _numbered(keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Number different keys, int64 [n], in the order in which they come.

    Returns the number of each key, int64 [n], and the first place of each number, int64 [numbers]. It does not sort as
    np.unique does: keys are indices of an uninitialised table, which is read only where it was written.
    """
    table, index = np.empty(int(keys.max()) + 1, dtype=np.int64), np.arange(len(keys))
    table[keys[::-1]] = index[::-1]  # the last assignment counts, which is the first place of a key
    first = np.flatnonzero(table[keys] == index)
    table[keys[first]] = index[: len(first)]
    return table[keys], first
