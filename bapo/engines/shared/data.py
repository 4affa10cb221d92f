"""Problems for the torch engine: the parquet files that verl reads too, tokenised."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bapo import seeds
from bapo.algorithm.rollouts import Prompt
from bapo.engines.shared.images import Images, prepare, to_messages
from bapo.errors import UserError
from bapo.store.files import read_table


@dataclass(frozen=True)
class Row:
    """What the torch engine needs of a prompt: its tokens, the verifier's ground truth, its random-number key.

    images: prepared, for a prompt that has some; the tokens then hold a placeholder for each image token.
    """

    tokens: tuple[int, ...]
    ground_truth: str
    key: int
    images: Images | None = None


def read_prompts(path: Path, tokenizer: Any, max_prompt_tokens: int, processor: Any | None = None) -> list[Prompt]:
    """The problems of one parquet file in its order.

    processor: of a model that reads images; without it the problems must be text. Raises UserError naming the file and
    the problem where a prompt is empty, too long, has no ground truth, or has images that cannot be read.
    """
    table = read_table(path)
    if not tokenizer.chat_template:
        raise UserError(f"{path}: the model's tokenizer has no chat template to write prompts with; add one to it")
    with_images = "images" in table
    if with_images and processor is None:
        raise UserError(f"{path}: the problems have images, which this model cannot read; choose one that can")
    texts = [
        tokenizer.apply_chat_template(
            to_messages(messages) if with_images else [dict(m) for m in messages],
            add_generation_prompt=True,
            tokenize=False,
        )
        for messages in table["prompt"]
    ]
    prompts = []
    images: list[Images | None] = [None] * len(table)
    if with_images:
        try:
            prepared = prepare(processor, texts, [[i["bytes"] for i in each] for each in table["images"]])
        except (ValueError, OSError) as error:
            raise UserError(f"{path}: its images cannot be prepared: {str(error).splitlines()[0]}") from error
        encoded, images = [tokens for tokens, _ in prepared], [own for _, own in prepared]
    else:
        encoded = tokenizer(texts, add_special_tokens=False)["input_ids"]
    for tokens, own, reward, extra in zip(encoded, images, table["reward_model"], table["extra_info"], strict=True):
        name = extra["id"]
        if not 0 < len(tokens) <= max_prompt_tokens:
            raise UserError(
                f"{path}: problem {name} has {len(tokens)} prompt tokens, allowed are 1 to {max_prompt_tokens}; raise "
                "sampling.max_prompt_tokens (prompts are never truncated)"
            )
        if not reward["ground_truth"]:
            raise UserError(f"{path}: problem {name} has an empty ground truth; correct or remove it")
        prompts.append(Prompt(name, Row(tuple(tokens), reward["ground_truth"], seeds.key64(name), own)))
    if not prompts:
        raise UserError(f"{path}: no problems in it; make the data again with `python -m bapo data`")
    return prompts


class PromptStream:
    """Endless epochs of shuffled prompts. ``position`` (prompts drawn so far) is the whole state."""

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
