"""Log-probabilities of responses under small float32 Qwen2, Llama and Qwen2.5-VL models, for training, on any device.

The same numbers and gradients as the library's forward, up to float rounding, with less to compute: equal beginnings
are computed once and padding not at all (``layout``), and forward and backward passes are written by hand (``layers``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bapo.engines.fast import layers, sampler
from bapo.engines.fast.layout import Layout, lay_out
from bapo.engines.shared.models import images

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from bapo.engines.shared.models.images import Images, PromptView

#: The rows that were scored last, and their layout: policy and reference score the same rows one after the other.
_LATEST: list[Any] = []


def supports(model: PreTrainedModel) -> bool:
    """Return whether :func:`score` computes what ``model`` computes."""
    return sampler.is_plain(model) and not model.config.get_text_config().attention_dropout


def score(
    model: PreTrainedModel,
    ids: Tensor,
    starts: Tensor,
    lengths: Tensor,
    temperature: float = 1.0,
    entropy: bool = False,
    pictures: Sequence[Images | None] | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Return log-probabilities [N, T] of the response tokens and, if asked for, the entropy [N, T] at each.

    Places behind a response's end hold numbers without a meaning, which the caller masks.

    Args:
        model: one that :func:`supports` knows
        ids: int64 [N, L], prompt then response, padded on the right
        starts: int64 [N], where each response begins, at least 1
        lengths: int64 [N], the tokens of each response, at least 1; T is the longest
        temperature: divides the logits
        entropy: whether the entropy is returned
        pictures: of each row's prompt, the same object for the same prompt
    """
    layout, features = _look(model, ids, starts, lengths, pictures)
    hidden = layers.hidden(model, layout, features)
    logprobs, entropies = _Head.apply(layout, temperature, hidden, model.lm_head.weight)
    return logprobs, entropies if entropy else None


def values(
    model: PreTrainedModel,
    ids: Tensor,
    starts: Tensor,
    lengths: Tensor,
    pictures: Sequence[Images | None] | None = None,
) -> Tensor:
    """Return the value [N, T] of the state that each response token is predicted from.

    Args:
        model: its head has one output in place of the vocabulary
        ids, starts, lengths, pictures: as for :func:`score`
    """
    layout, features = _look(model, ids, starts, lengths, pictures)
    return model.lm_head(layers.hidden(model, layout, features)).take(layout.predictor)


def _look(
    model: PreTrainedModel, ids: Tensor, starts: Tensor, lengths: Tensor, pictures: Sequence[Images | None] | None
) -> tuple[Layout, Tensor | None]:
    """Return the layout of the rows and the features of their images. The arguments are those of :func:`score`."""
    views: list[PromptView | None] | None = None
    if pictures is not None:
        prompts = [row[:start] for row, start in zip(ids.tolist(), starts.tolist(), strict=True)]
        views = images.look(model, prompts, pictures)
    rows = ids, starts, lengths, pictures
    if not (_LATEST and all(a is b for a, b in zip(_LATEST[0], rows, strict=True))):
        layout = lay_out(ids.cpu().numpy(), starts.cpu().numpy(), lengths.cpu().numpy(), views)
        _LATEST[:] = rows, layout.to(ids.device)
    layout = _LATEST[1]
    features = [view.features for row in layout.image_rows if views is not None and (view := views[row]) is not None]
    return layout, torch.cat(features) if features else None


class _Head(torch.autograd.Function):
    """Log-probabilities [N, T] of the targets and entropies [N, T] from hidden states [U, hidden] and the head."""

    @staticmethod
    def forward(ctx: Any, layout: Layout, temperature: float, hidden: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        logits = F.linear(hidden, weight)
        if temperature != 1.0:
            logits.div_(temperature)
        logits.sub_(logits.amax(1, keepdim=True))
        shares = logits.exp()
        totals = shares.sum(1, keepdim=True)
        logits.sub_(totals.log())
        shares.div_(totals)
        entropies = (shares * logits).sum(1).neg_()
        places = layout.predictor * len(weight) + layout.targets
        if any(ctx.needs_input_grad):
            ctx.state = layout, temperature, hidden, weight, logits, shares, entropies, places
        return logits.take(places), entropies[layout.predictor]

    @staticmethod
    def backward(ctx: Any, logprobs: Tensor, entropy: Tensor) -> tuple[None, None, Tensor, Tensor]:
        layout, temperature, hidden, weight, logits, shares, entropies, places = ctx.state
        del ctx.state
        totals = hidden.new_zeros(2, len(hidden))
        for total, gradient in zip(totals, (logprobs, entropy), strict=True):
            _add(total, layout.predictor, gradient)
        # d entropy / d logits = -p (log p + entropy); d log p(target) / d logits = 1[target] - p
        logits.add_(entropies[:, None]).mul_(totals[1][:, None]).add_(totals[0][:, None]).mul_(shares).neg_()
        _add(logits.view(-1), places, logprobs)
        if temperature != 1.0:
            logits.div_(temperature)
        return None, None, torch.mm(logits, weight), torch.mm(logits.t(), hidden)


def _add(total: Tensor, places: Tensor, values: Tensor) -> None:
    """Add values to the places of a flat tensor, in the same order each time, on a GPU too: not so ``index_add_``."""
    total.index_put_((places.flatten(),), values.flatten(), accumulate=True)
