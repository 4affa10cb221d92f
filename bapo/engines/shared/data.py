"""Problems as prompts of a model: tokenised, and drawn in a seeded order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bapo import seeds
from bapo.algorithm.rollouts import Prompt
from bapo.engines.shared.images import Images, prepare, to_messages
from bapo.errors import UserError
from bapo.tasks.base import Problem
from bapo.tasks.files import read_problems


@dataclass(frozen=True)
class Row:
    """The torch engine's side of a prompt: its tokens and the verifier's ground truth.

    images: prepared, for a prompt that has some; the tokens then hold a placeholder for each image token.
    """

    tokens: tuple[int, ...]
    ground_truth: str
    images: Images | None = None


def read_prompts(path: Path, tokenizer: Any, max_prompt_tokens: int, processor: Any | None = None) -> list[Prompt]:
    """Return the problems of one parquet file, tokenised, in order; see :func:`tokenised`."""
    return tokenised(read_problems(path), tokenizer, max_prompt_tokens, processor, path)


def tokenised(
    problems: Sequence[Problem], tokenizer: Any, max_prompt_tokens: int, processor: Any | None, where: Any
) -> list[Prompt]:
    """Return prompts in the model's own chat template.

    processor: of a model that reads images; without it the problems must be text. Raises UserError naming ``where`` and
    the problem where a prompt is empty or too long, or has images that this model cannot read.
    """
    if not tokenizer.chat_template:
        raise UserError(f"{where}: the model's tokenizer has no chat template to write prompts with; add one to it")
    with_images = any(p.images for p in problems)
    if with_images and processor is None:
        raise UserError(f"{where}: the problems have images, which this model cannot read; choose one that can")
    texts = [chat(tokenizer, [{"role": "user", "content": p.prompt}], images=with_images) for p in problems]
    if with_images:
        try:
            encoded = prepare(processor, texts, [p.images for p in problems])
        except (ValueError, OSError) as error:
            raise UserError(f"{where}: its images cannot be prepared: {str(error).splitlines()[0]}") from error
    else:
        encoded = [(tokens, None) for tokens in tokenizer(texts, add_special_tokens=False)["input_ids"]]
    prompts = []
    for problem, (tokens, images) in zip(problems, encoded, strict=True):
        if not 0 < len(tokens) <= max_prompt_tokens:
            raise UserError(
                f"{where}: problem {problem.id} has {len(tokens)} prompt tokens, allowed are 1 to {max_prompt_tokens}; "
                "raise sampling.max_prompt_tokens (prompts are never truncated)"
            )
        row = Row(tuple(tokens), problem.ground_truth, images)
        prompts.append(Prompt(problem.id, row))
    return prompts


def chat(
    tokenizer: Any, messages: list[dict[str, str]], add_generation_prompt: bool = True, images: bool = False
) -> str:
    """Return a conversation in the model's own template; images: ``<image>`` in a message stands for one."""
    return tokenizer.apply_chat_template(
        to_messages(messages) if images else messages,
        tokenize=False,
        add_generation_prompt=add_generation_prompt,
        continue_final_message=not add_generation_prompt,
    )


class PromptStream:
    """Draws endless epochs of shuffled prompts. ``position`` (prompts drawn so far) is the whole state."""

    def __init__(self, prompts: list[Prompt], seed: int, position: int = 0) -> None:
        self.prompts, self.seed, self.position = prompts, seed, position
        self._epoch, self._order = -1, np.empty(0, dtype=np.int64)

    def draw(self, count: int) -> list[Prompt]:
        return [self.prompts[self._next()] for _ in range(count)]

    def _next(self) -> int:
        epoch, place = divmod(self.position, len(self.prompts))
        if epoch != self._epoch:
            self._epoch = epoch
            self._order = seeds.generator(self.seed, "epoch", epoch).permutation(len(self.prompts))
        self.position += 1
        return int(self._order[place])
