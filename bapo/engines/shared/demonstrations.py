"""Expert solutions as groups that can be trained on."""

from __future__ import annotations

from typing import Any

import numpy as np

from bapo.algorithm.rollouts import DEMONSTRATED, Group, Prompt, Samples
from bapo.engines.shared import rewards
from bapo.engines.shared.sampler import SamplingParameters
from bapo.tasks.base import Task


def demonstrate(
    prompts: list[Prompt], tokenizer: Any, task: Task, parameters: SamplingParameters, step: int
) -> list[Group | None]:
    """Return for each prompt a group of the expert's response, or None; see ``bapo.methods.Sampler.demonstrate``.

    There is none if the task knows no solution, if it is longer than ``parameters.max_tokens`` with its end
    token, or if the verifier does not accept what the tokens say (a word that the vocabulary lacks).
    """
    responses = (_response(p, tokenizer, task, parameters) for p in prompts)
    return [
        None if tokens is None else _group(prompt, tokens, step)
        for prompt, tokens in zip(prompts, responses, strict=True)
    ]


def _response(prompt: Prompt, tokenizer: Any, task: Task, parameters: SamplingParameters) -> list[int] | None:
    row = prompt.row
    text = task.demonstration(prompt.id, tokenizer.decode(row.tokens, skip_special_tokens=True), row.ground_truth)
    if text is None:
        return None
    tokens = [*tokenizer(text, add_special_tokens=False)["input_ids"], *parameters.eos_ids[:1]]
    written = tokenizer.decode(tokens, skip_special_tokens=True)
    if not 0 < len(tokens) <= parameters.max_tokens or not rewards.judge(task, written, row.ground_truth).correct:
        return None
    return tokens


def _group(prompt: Prompt, tokens: list[int], step: int) -> Group:
    samples = Samples(
        np.array([tokens], dtype=np.int32),
        np.array([len(tokens)], dtype=np.int32),
        np.zeros((1, len(tokens)), dtype=np.float32),
    )
    return Group(prompt, np.ones(1, dtype=np.float32), step, step - 1, samples, DEMONSTRATED)
