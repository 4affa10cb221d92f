"""Problems as prompts, in the model's own chat template and drawn in a seeded order, and prompts as vectors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from bapo import methods, seeds
from bapo.algorithm.rollouts import Prompt
from bapo.engines.shared import models
from bapo.engines.shared.models.images import Images, prepare, to_messages
from bapo.errors import UserError
from bapo.store.files import Json, atomic
from bapo.tasks.base import Task
from bapo.tasks.files import read_problems

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase, ProcessorMixin

    from bapo.experiments.schema import Config

#: prompts that go through the model at once to become vectors
BATCH = 64
#: the cure for a text of which a tokenizer drops every word
WORDS = (
    "no token, as the model's tokenizer knows none of its words; name them in the task's build_tokenizer "
    "(data.generator.signs for reasoning-gym: docs/project.md), or take a pretrained model"
)


@dataclass(frozen=True)
class PromptTokens:
    """A prompt as the torch engine has it.

    tokens: the whole prompt; it holds a placeholder for each image token
    ground_truth: what the verifier compares with
    images: prepared, for a prompt that has some
    """

    tokens: tuple[int, ...]
    ground_truth: str
    images: Images | None = None


def require_length(tokens: int, most: int, where: str) -> None:
    """Raise UserError for a prompt of no token, or of more than ``most``. where: the prompt, for the message."""
    if not tokens:
        raise UserError(f"{where} has {WORDS}")
    if tokens > most:
        cure = f"but {most} are allowed; raise sampling.max_prompt_tokens (prompts are never truncated)"
        raise UserError(f"{where} has {tokens} tokens, {cure}")


def read_prompts(
    path: Path, tokenizer: PreTrainedTokenizerBase, max_prompt_tokens: int, processor: ProcessorMixin | None = None
) -> list[Prompt]:
    """Return the problems of one parquet file in the model's own chat template, tokenised, in order.

    Args:
        path: as :func:`bapo.tasks.files.write_problems` writes it
        tokenizer: the model's, which has the template
        max_prompt_tokens: the most that a prompt may have
        processor: of a model that reads images; without it the problems must be text

    Raises UserError naming the file and the problem where a prompt is empty or too long, or has images that this model
    cannot read.
    """
    problems = read_problems(path)
    with_images = any(p.images for p in problems)
    texts = [chat(tokenizer, [{"role": "user", "content": p.prompt}], images=with_images) for p in problems]
    encoded: list[tuple[list[int], Images | None]]
    if not with_images:
        encoded = [(tokens, None) for tokens in tokenizer(texts, add_special_tokens=False)["input_ids"]]
    elif processor is None:
        raise UserError(f"{path}: the problems have images, which this model cannot read; choose one that can")
    else:
        encoded = prepare(processor, texts, [p.images for p in problems])
    prompts = []
    for problem, (tokens, images) in zip(problems, encoded, strict=True):
        require_length(len(tokens), max_prompt_tokens, f"{path}: the prompt of problem {problem.id}")
        prompts.append(Prompt(problem.id, PromptTokens(tuple(tokens), problem.ground_truth, images)))
    return prompts


def chat(
    tokenizer: PreTrainedTokenizerBase, messages: list[Json], add_generation_prompt: bool = True, images: bool = False
) -> str:
    """Return a conversation, as text, in the model's own template.

    Args:
        tokenizer: has the template
        messages: {"role", "content"} each, in order
        add_generation_prompt: begin the assistant's turn behind them; False: the last message is to be continued
        images: ``<image>`` in a message stands for one
    """
    turns = to_messages(messages) if images else messages
    style: Json = {"add_generation_prompt": add_generation_prompt, "continue_final_message": not add_generation_prompt}
    return str(tokenizer.apply_chat_template(turns, tokenize=False, **style))


class PromptStream:
    """Draws endless epochs of shuffled prompts. ``position`` (prompts drawn so far) is the whole state.

    blocks: lists of indices of prompts, which are drawn from one after another
    length: prompts drawn from each block but the last, which has no end
    """

    def __init__(self, prompts: list[Prompt], seed: int, blocks: Sequence[Sequence[int]] = (), length: int = 0) -> None:
        self.prompts, self.seed, self.position = prompts, seed, 0
        self.blocks, self.length = blocks, length
        self._purpose: tuple[object, ...] = ()
        self._order = np.empty(0, dtype=np.int64)

    def next_prompts(self, count: int) -> list[Prompt]:
        return [self.prompts[self._next()] for _ in range(count)]

    def _next(self) -> int:
        block = min(self.position // self.length, len(self.blocks) - 1) if self.blocks else 0
        pool: Sequence[int] = self.blocks[block] if self.blocks else range(len(self.prompts))
        epoch, place = divmod(self.position - block * self.length, len(pool))
        purpose = ("epoch", epoch, "block", block) if self.blocks else ("epoch", epoch)
        if purpose != self._purpose:
            self._purpose, self._order = purpose, seeds.generator(self.seed, *purpose).permutation(pool)
        self.position += 1
        return int(self._order[place])


def training_stream(config: Config, prompts: list[Prompt], ground_truths: Sequence[str], task: Task) -> PromptStream:
    """Return the stream that a run draws from, by its ``seed`` and ``train.blocks``.

    Args:
        config: of the run
        prompts: the training problems
        ground_truths: of these, in their order
        task: tells their difficulties

    Raises UserError for a difficulty without problems, for a task without difficulties, and for a method whose steps
    draw other numbers of prompts, since blocks are counted in prompts.
    """
    train = config.train
    if train.blocks is None:
        return PromptStream(prompts, config.seed)
    if not methods.of_run(config).draws_next_prompts:
        cure = f"{config.method.name} does not draw train.batch_size prompts a step; leave it out, or change the method"
        raise UserError(f"train.blocks={train.blocks}: {cure}")
    levels = [task.difficulty(truth) for truth in ground_truths]
    blocks = [[i for i, level in enumerate(levels) if level == difficulty] for difficulty in train.blocks]
    if not all(blocks):
        raise UserError(f"train.blocks={train.blocks}: the training problems have {sorted(set(levels))}")
    assert train.steps is not None
    return PromptStream(prompts, config.seed, blocks, train.steps * train.batch_size // len(blocks))


class Embedder:
    """Gives prompts as vectors (:func:`mean_states`) of the model before training.

    The first call computes the vectors of all prompts. They are not in checkpoints: a resumed run computes the same
    numbers again, or reads them from a file. ``tokens`` counts the tokens of all prompts.
    """

    def __init__(
        self, load: Callable[[], PreTrainedModel], prompts: Sequence[Prompt], file: Path | None = None
    ) -> None:
        """load: returns the model, which is not kept; prompts: all that may be asked for; file: keeps the vectors."""
        self.load, self.prompts, self.file = load, prompts, file
        self.tokens = sum(len(p.row.tokens) for p in prompts)

    @cached_property
    def _vectors(self) -> dict[str, np.ndarray]:
        if self.file is not None and self.file.exists():
            vectors = np.load(self.file)
        else:
            vectors = mean_states(self.load(), self.prompts)
            if self.file is not None:
                with atomic(self.file) as temporary, open(temporary, "wb") as handle:
                    np.save(handle, vectors)
        return {p.id: vector for p, vector in zip(self.prompts, vectors, strict=True)}

    def __call__(self, prompts: Sequence[Prompt]) -> np.ndarray:
        """Return the vectors of the prompts, float32 [n, d], in their order."""
        return np.stack([self._vectors[p.id] for p in prompts])


@torch.no_grad()
def mean_states(model: PreTrainedModel, prompts: Sequence[Prompt]) -> np.ndarray:
    """Return the mean of the last hidden states (after the final norm) over each prompt's tokens, float32 [n, d]."""
    lengths = np.array([len(p.row.tokens) for p in prompts])
    order = np.argsort(lengths, kind="stable")  # neighbours in length: little padding
    device = next(model.parameters()).device
    means_of_prompts: list[np.ndarray] = [np.empty(0)] * len(prompts)
    for start in range(0, len(order), BATCH):
        members = order[start : start + BATCH]
        ids = np.zeros((len(members), lengths[members].max()), dtype=np.int64)
        for row, i in enumerate(members):
            ids[row, : lengths[i]] = prompts[i].row.tokens
        ends = torch.from_numpy(lengths[members]).to(device)
        pictures = [prompts[i].row.images for i in members]
        # padding is on the right, where a causal model never looks
        inputs = models.inputs(model, torch.from_numpy(ids).to(device), ends, pictures)
        hidden = model.base_model(**inputs, use_cache=False).last_hidden_state.float()
        inside = (torch.arange(ids.shape[1], device=device) < ends[:, None]).unsqueeze(-1)
        means = (hidden * inside).sum(1) / ends[:, None]
        for i, vector in zip(members, means.cpu().numpy(), strict=True):
            means_of_prompts[i] = vector
    return np.stack(means_of_prompts)
