"""Sampling and grading, once: rollouts, probes, curves and evaluations all answer prompts by these functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from bapo import seeds
from bapo.algorithm.rollouts import Prompt, Samples
from bapo.engines.shared import models, rewards
from bapo.engines.shared.sampler import SamplingParameters, sample
from bapo.graders.verdict import Verdict
from bapo.tasks.base import Task

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class Response(str):
    """The text of a response. tokens: how many the model drew for it, the end token included."""

    __slots__ = ("tokens",)

    def __new__(cls, text: str, tokens: int) -> Response:
        response = super().__new__(cls, text)
        response.tokens = tokens
        return response


def parameters_of(
    tokenizer: Any, temperature: float, top_p: float, top_k: int, max_tokens: int, generation: Any | None = None
) -> SamplingParameters:
    """Return how to sample from a model with this tokenizer; generation: its ``generation_config``, if it counts."""
    eos_ids, pad_id = models.special_tokens(tokenizer, generation)
    return SamplingParameters(temperature, top_p, top_k, max_tokens, eos_ids, pad_id)


def draw(
    model: PreTrainedModel,
    prompts: Sequence[Prompt],
    count: int,
    key: int,
    parameters: SamplingParameters,
    keys: Sequence[int] | None = None,
    **options: Any,
) -> list[Samples]:
    """Sample ``count`` responses to each prompt; see :func:`sample`, which takes ``options``.

    keys: of the prompts' random numbers, by default of their ids.
    """
    keys = seeds.prompt_keys(p.id for p in prompts) if keys is None else keys
    rows = [p.row for p in prompts]
    images = [row.images for row in rows] if any(row.images is not None for row in rows) else None
    numbers = np.array(keys, dtype=np.uint64)
    return sample(model, [row.tokens for row in rows], count, numbers, key, parameters, images=images, **options)


def decode(tokenizer: Any, samples: Samples) -> list[Response]:
    """Return the texts of all responses, without special tokens; equal responses are decoded once."""
    drawn = [tuple(row[:n]) for row, n in zip(samples.tokens.tolist(), samples.lengths, strict=True)]
    different = list(dict.fromkeys(drawn))
    texts = _texts(tokenizer, different)
    known = {tokens: Response(text, len(tokens)) for tokens, text in zip(different, texts, strict=True)}
    return [known[tokens] for tokens in drawn]


def _texts(tokenizer: Any, sequences: Sequence[Sequence[int]]) -> list[str]:
    """Do what ``batch_decode`` does, in a third of the time where a tokenizer only asks its backend."""
    plain = type(tokenizer)._decode.__module__ == "transformers.tokenization_utils_tokenizers"
    if plain and not tokenizer.clean_up_tokenization_spaces:
        return tokenizer.backend_tokenizer.decode_batch(sequences, skip_special_tokens=True)
    return tokenizer.batch_decode(sequences, skip_special_tokens=True) if sequences else []


def grade(task: Task, responses: Sequence[str], ground_truth: str) -> list[Verdict]:
    """Return the verdict on each response; equal ones (a trained model repeats itself) are graded once."""
    known = {response: rewards.judge(task, response, ground_truth) for response in dict.fromkeys(responses)}
    return [known[response] for response in responses]


def answer(
    model: PreTrainedModel,
    tokenizer: Any,
    prompts: Sequence[Prompt],
    count: int,
    key: int,
    parameters: SamplingParameters,
    max_rows: int,
    advance: Callable[[int], None],
) -> list[list[Response]]:
    """Return ``count`` responses to each prompt, in order, with at most ``max_rows`` of them decoded at once.

    advance: called with the number of responses after each batch.
    """
    responses: list[list[Response]] = [[] for _ in prompts]
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i].row.tokens))  # equal lengths need no padding
    size = max(1, max_rows // count)
    for start in range(0, len(order), size):
        places = order[start : start + size]
        drawn = draw(model, [prompts[i] for i in places], count, key, parameters, max_rows=max_rows)
        for place, samples in zip(places, drawn, strict=True):
            responses[place] = decode(tokenizer, samples)
        advance(count * len(places))
    return responses
