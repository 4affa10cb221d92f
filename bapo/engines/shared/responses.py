"""Responses to prompts: sampled, decoded and graded, or an expert's.

Rollouts, probes and evaluations all answer prompts by these functions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from bapo import seeds
from bapo.algorithm.rollouts import DEMONSTRATED, Group, Prompt, Samples
from bapo.engines.shared.sampling import SamplingParameters, sample
from bapo.errors import UserError
from bapo.graders.verdict import Verdict
from bapo.tasks.base import Task

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


class Response(str):
    """Holds the text of a response. tokens: how many tokens the model drew for it, the end token included."""

    __slots__ = ("tokens",)
    tokens: int

    def __new__(cls, text: str, tokens: int) -> Response:
        response = super().__new__(cls, text)
        response.tokens = tokens
        return response


def sample_responses(
    model: PreTrainedModel,
    prompts: Sequence[Prompt],
    count: int,
    key: int,
    parameters: SamplingParameters,
    keys: Sequence[int] | None = None,
    **options: Any,
) -> list[Samples]:
    """Sample ``count`` responses to each prompt.

    Args:
        model, key, parameters, options: as for :func:`sample`
        prompts: any number
        count: responses to each
        keys: of the prompts' random numbers, by default those of their ids

    Raises UserError as :func:`sample` does.
    """
    keys = seeds.prompt_keys(p.id for p in prompts) if keys is None else keys
    rows = [p.row for p in prompts]
    images = [row.images for row in rows] if any(row.images is not None for row in rows) else None
    numbers = np.array(keys, dtype=np.uint64)
    return sample(model, [row.tokens for row in rows], count, numbers, key, parameters, images=images, **options)


def decode(tokenizer: PreTrainedTokenizerBase, samples: Samples) -> list[Response]:
    """Return the texts of all responses, without special tokens; equal responses are decoded once."""
    rows = [tuple(row[:n]) for row, n in zip(samples.tokens.tolist(), samples.lengths, strict=True)]
    unique = list(dict.fromkeys(rows))
    texts = tokenizer.batch_decode([list(tokens) for tokens in unique], skip_special_tokens=True)
    responses = {tokens: Response(text, len(tokens)) for tokens, text in zip(unique, texts, strict=True)}
    return [responses[tokens] for tokens in rows]


def grade(
    task: Task,
    responses: Sequence[str],
    ground_truth: str,
    count: Callable[[Verdict], Verdict] = lambda verdict: verdict,
) -> list[Verdict]:
    """Return the verdict on each response; equal ones (a trained model repeats itself) are graded once.

    Args:
        task: has the verifier
        responses: to one problem
        ground_truth: what the verifier compares them with
        count: is called with each new verdict, and returns it
    """
    verdicts = {response: count(task.verify(response, ground_truth)) for response in dict.fromkeys(responses)}
    return [verdicts[response] for response in responses]


def demonstrate(
    prompts: Sequence[Prompt], tokenizer: PreTrainedTokenizerBase, task: Task, parameters: SamplingParameters, step: int
) -> list[Group | None]:
    """Return for each prompt a group of the expert's response, or None; see ``bapo.methods.Sampler.demonstrate``.

    It is None if the task knows no solution, if the solution with its end token is longer than
    ``parameters.max_tokens``, or if the verifier rejects the decoded tokens (the vocabulary may lack a word).

    Args:
        prompts: with their ``PromptTokens``
        tokenizer: the policy's
        task: has the expert, and the verifier
        parameters: of the policy's sampling
        step: of the groups

    Raises UserError for a task without an expert.
    """
    if type(task).demonstration is Task.demonstration:
        raise UserError(f"task {task.name}: its class has no method demonstration, which gives an expert's solutions")
    groups: list[Group | None] = []
    for prompt in prompts:
        row = prompt.row
        question = str(tokenizer.decode(list(row.tokens), skip_special_tokens=True))
        text = task.demonstration(prompt.id, question, row.ground_truth)
        tokens = [] if text is None else tokenizer(text, add_special_tokens=False)["input_ids"]
        tokens = [*tokens, *parameters.eos_ids[:1]]
        decoded = str(tokenizer.decode(tokens, skip_special_tokens=True))
        fits = text is not None and 0 < len(tokens) <= parameters.max_tokens
        if not fits or not task.verify(decoded, row.ground_truth).correct:
            groups.append(None)
            continue
        ids, length = np.array([tokens], dtype=np.int32), np.array([len(tokens)], dtype=np.int32)
        samples = Samples(ids, length, np.zeros(ids.shape, dtype=np.float32))
        groups.append(Group(prompt, np.ones(1, dtype=np.float32), step, step - 1, samples, DEMONSTRATED))
    return groups
