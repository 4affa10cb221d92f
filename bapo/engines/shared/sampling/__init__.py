"""Sampling responses from a causal language model, many at a time, with reproducible random numbers.

:func:`sample` works with any Hugging Face causal model (``cache.py``: the model's own forward and cache) and is faster
with small Qwen2 and Llama models on the CPU (``bapo.engines.fast``). Both ways share what is in this file: one prefill
per prompt, one row of the batch for all responses that begin alike, one uniform number per token and inversion of the
cumulative distribution.

A response depends on (key, prompt key, number of the sample), on the prompt and on the weights, and not on the other
prompts, their order or the batch size, up to float rounding: a matrix product may round differently in another batch,
which changes a token only where its uniform number lies within that rounding of a boundary (about once in a million).
The same call on the same machine gives the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from bapo import seeds
from bapo.algorithm.rollouts import Group, Samples
from bapo.engines.shared import shortcut
from bapo.engines.shared.models.images import Images, PromptView, look
from bapo.engines.shared.sampling.cache import Branches, Decoder, bytes_of_row, pads_left
from bapo.errors import UserError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from bapo.engines.fast.sampler import HandDecoder

#: The memory on the CPU for keys and values of all rows; beyond it, rows are decoded in several batches.
CACHE_BYTES = 2**30


@dataclass(frozen=True)
class SamplingParameters:
    """Says how to draw the next token, and when to stop.

    Filters apply in the order temperature, top_k, top_p, as in vLLM and Hugging Face.

    temperature: above 0, divides the logits
    top_p: keeps the smallest set of tokens with at least this probability
    top_k: keeps the k most probable tokens; -1: all
    max_tokens: the longest response
    eos_ids: tokens that end a response, and are part of it; without one every response has max_tokens
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    max_tokens: int = 1
    eos_ids: tuple[int, ...] = ()


def sample(
    model: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    group_size: int,
    prompt_keys: np.ndarray,
    key: int,
    parameters: SamplingParameters,
    max_rows: int = 1024,
    first_sample: int | Sequence[int] = 0,
    fast: bool = True,
    images: Sequence[Images | None] | None = None,
    beginnings: Sequence[Sequence[int]] | None = None,
) -> list[Samples]:
    """Draw ``group_size`` responses to each prompt.

    Args:
        model: a Hugging Face causal language model; it is put into evaluation mode
        prompts: P sequences of at least one token id
        group_size: responses to each prompt
        prompt_keys: uint64 [P], one number per prompt (``bapo.seeds.key64`` of its id)
        key: 64 bits, from (seed, purpose, step)
        parameters: how a token is drawn, and when a response ends
        max_rows: the most responses that are decoded at once; on the CPU CACHE_BYTES bounds them, too
        first_sample: the number of each prompt's first response, one for all or P of them, so that 8 responses and
            later 24 more are the same as 32 at once
        fast: False takes the general way for every model
        images: of each prompt, where there are any; the vision tower reads them once, however many responses there are
        beginnings: P sequences of tokens that the responses continue. They are not returned, and neither
            ``max_tokens`` nor the random numbers count them.

    Returns P Samples in the order of ``prompts``: tokens int32 [G, T], where T is the longest response of that group;
    lengths int32 [G], the end token included; logprobs float32 [G, T], the log-probability of each token under the
    distribution that it was drawn from (after temperature and filters, so with top_k and top_p off it is
    log_softmax(logits / temperature)). Behind the end both are 0.

    Raises UserError for a prompt that leaves no room for the response, and for a model whose logits are not finite.
    """
    if not prompts:
        return []
    keys = np.asarray(prompt_keys, dtype=np.uint64)
    first = np.broadcast_to(np.asarray(first_sample, dtype=np.int64), len(prompts))
    starts = [()] * len(prompts) if beginnings is None else [tuple(b) for b in beginnings]
    sequences = [[*p, *b] for p, b in zip(prompts, starts, strict=True)]
    longest = max(map(len, sequences)) + parameters.max_tokens
    positions = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    if positions and longest > positions:
        cure = "lower sampling.max_prompt_tokens or sampling.max_response_tokens"
        raise UserError(f"a prompt and its response may take {longest} tokens, but the model has {positions}; {cure}")
    by_hand = shortcut("sampler", model) if fast else None
    if model.device.type == "cpu":
        columns = longest - (by_hand.common_beginning(sequences) if by_hand is not None and images is None else 0)
        max_rows = max(1, min(max_rows, CACHE_BYTES // bytes_of_row(model, columns)))
    model.eval()
    # inference_mode would leave tensors in modules that keep some (long-context RoPE), and break their training
    with torch.no_grad() if by_hand is None else torch.inference_mode():
        decoder_class = Decoder if by_hand is None else by_hand.HandDecoder
        decoder = decoder_class(model, parameters.max_tokens)
        mixed_lengths = by_hand is not None or pads_left(model)
        views: list[PromptView | None] = [None] * len(prompts)
        if images is not None:  # beginnings are text, even where they hold the id of an image token
            views = [v and v.followed(len(b)) for v, b in zip(look(model, prompts, images), starts, strict=True)]
        parts: list[list[Samples]] = [[] for _ in prompts]
        for start in range(0, group_size, max_rows):
            size = min(max_rows, group_size - start)
            for chunk in _chunks(sequences, max(1, max_rows // size), mixed_lengths):
                numbers = first[chunk, None] + start + np.arange(size)
                batch, batch_views = [sequences[i] for i in chunk], [views[i] for i in chunk]
                responses = _decode(decoder, batch, keys[chunk], key, numbers, parameters, batch_views)
                for i, samples in zip(chunk, responses, strict=True):
                    parts[i].append(samples)
    return [each[0] if len(each) == 1 else Samples.concatenate(each) for each in parts]


def unfinished(samples: Samples, parameters: SamplingParameters) -> np.ndarray:
    """Return bool [G]: the responses that did not end and have fewer than ``max_tokens`` tokens."""
    return (samples.lengths < parameters.max_tokens) & ~_ended(samples, parameters)


def cut_off(groups: Sequence[Group], parameters: SamplingParameters) -> float:
    """Return the share of responses with ``max_tokens`` tokens and no end; nan without a response."""
    if not groups:
        return float("nan")
    marks = [(g.samples.lengths >= parameters.max_tokens) & ~_ended(g.samples, parameters) for g in groups]
    return float(np.concatenate(marks).mean())


def _ended(samples: Samples, parameters: SamplingParameters) -> np.ndarray:
    """Return bool [G]: the responses whose last token is one that ends a response."""
    last = samples.tokens[np.arange(len(samples.lengths)), samples.lengths - 1]
    return np.isin(last, parameters.eos_ids)


def _chunks(prompts: Sequence[Sequence[int]], count: int, mixed_lengths: bool) -> list[np.ndarray]:
    """Return indices of prompts to decode together, at most ``count``: neighbours in length, for little padding."""
    lengths = np.array([len(p) for p in prompts])
    order = np.argsort(lengths, kind="stable")
    cuts = np.flatnonzero(np.diff(lengths[order])) + 1 if not mixed_lengths else np.empty(0, dtype=np.int64)
    return [run[i : i + count] for run in np.split(order, cuts) for i in range(0, len(run), count)]


def _decode(
    decoder: HandDecoder | Decoder,
    prompts: Sequence[Sequence[int]],
    prompt_keys: np.ndarray,
    key: int,
    numbers: np.ndarray,
    parameters: SamplingParameters,
    views: Sequence[PromptView | None],
) -> list[Samples]:
    """Decode one batch from the prefill to the last token. Response i is i % G of prompt i // G.

    Args:
        decoder: runs the model
        prompts: P sequences of token ids
        prompt_keys: uint64 [P]
        key: of the draw
        numbers: [P, G], the number of each response
        parameters: how a token is drawn, and when a response ends
        views: P, of the prompts' images
    """
    (groups, size), longest, device = numbers.shape, parameters.max_tokens, decoder.device
    uniforms = seeds.uniforms(key, np.repeat(prompt_keys, size), numbers.ravel(), longest).T
    tokens = np.zeros((longest, numbers.size), dtype=np.int32)
    probabilities = np.ones((longest, numbers.size), dtype=np.float32)
    lengths = np.full(numbers.size, longest, dtype=np.int32)
    logits = decoder.prefill(prompts, size, views)
    branches = Branches(groups, size, logits.shape[1])
    is_end = np.isin(np.arange(logits.shape[1]), parameters.eos_ids)
    for t in range(longest):
        places = branches.places
        u, row = (torch.from_numpy(x).to(device) for x in (uniforms[t, places], branches.row))
        token, probability = (x.cpu().numpy() for x in sample_tokens(logits, u, parameters, row))
        tokens[t, places], probabilities[t, places] = token, probability
        ended = is_end[token]
        lengths[places[ended]] = t + 1
        branch = branches.grow(token, ended) if t < longest - 1 else None
        if branch is None:
            break
        if len(branch.sources) or branch.rows != len(logits):
            decoder.branch(branch.sources, branch.places, branch.rows)
        logits = decoder.step(torch.from_numpy(branch.tokens).to(device))
    logprobs = np.log(probabilities)
    if not np.isfinite(logprobs).all():
        raise UserError("the model's logits are not finite; its weights have diverged: lower the learning rate")
    groups_of_samples = []
    for start in range(0, numbers.size, size):
        rows = slice(start, start + size)
        width = lengths[rows].max()
        groups_of_samples.append(Samples(tokens[:width, rows].T.copy(), lengths[rows], logprobs[:width, rows].T.copy()))
    return groups_of_samples


def sample_tokens(
    logits: Tensor, uniforms: Tensor, parameters: SamplingParameters, rows: Tensor
) -> tuple[Tensor, Tensor]:
    """Draw one token a number: the first whose cumulative probability, in the order of ids, exceeds it.

    logits [R, V]; uniforms float32 [n] in (0, 1); rows: int64 [n], whose logits each number is for. Returns tokens
    int64 [n] and their probabilities float32 [n].
    """
    probabilities = _distribution(logits, parameters)
    cumulative = probabilities.cumsum(-1).index_select(0, rows)
    total = cumulative[:, -1]
    # u * total < total for the greatest float32 below 1, and equal steps of the sum are passed over: a token of
    # probability 0 is never the first to exceed it. The clamp only guards the lookup against NaN.
    token = torch.searchsorted(cumulative, (uniforms * total)[:, None], right=True)[:, 0]
    token.clamp_(max=logits.shape[1] - 1)
    probability = probabilities.take(rows * logits.shape[1] + token)
    if logits.is_cuda:  # a parallel sum may step down by a rounding error, and then lead to such a token
        best = probabilities.max(-1)
        token = torch.where(probability == 0, best.indices[rows], token)
        probability = torch.where(probability == 0, best.values[rows], probability)
    return token, probability / total if parameters.top_p < 1.0 else probability


def _distribution(logits: Tensor, parameters: SamplingParameters) -> Tensor:
    """Return the probabilities [n, V] after temperature and filters; with top_p their sum may be below 1."""
    logits = logits.float()
    if parameters.temperature != 1.0:
        logits = logits / parameters.temperature
    if 0 < parameters.top_k < logits.shape[1]:
        least = logits.topk(parameters.top_k).values[:, -1:]
        logits = logits.masked_fill(logits < least, -torch.inf)
    probabilities = logits.softmax(-1)
    if parameters.top_p < 1.0:
        ordered, index = probabilities.sort(dim=-1, descending=True, stable=True)
        above = ordered.cumsum(-1) - ordered >= parameters.top_p
        probabilities = probabilities.masked_fill(torch.zeros_like(above).scatter_(1, index, above), 0.0)
    return probabilities
