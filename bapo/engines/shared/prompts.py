"""Problems as prompts, and their answers: tokenised, drawn in a seeded order, sampled, decoded and graded.

Rollouts, probes and evaluations all answer prompts by these functions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from bapo import seeds
from bapo.algorithm.rollouts import DEMONSTRATED, Group, Prompt, Samples
from bapo.engines.shared import models
from bapo.engines.shared.models.images import Images, prepare, to_messages
from bapo.engines.shared.sampling import SamplingParameters, sample
from bapo.errors import UserError
from bapo.graders.verdict import Verdict
from bapo.store.files import Json, atomic
from bapo.tasks.base import Task
from bapo.tasks.files import read_problems

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase, ProcessorMixin

    from bapo.experiments.schema import Config

#: Prompts that go through the model at a time to become vectors.
BATCH = 64


@dataclass(frozen=True)
class Row:
    """The torch engine's side of a prompt: its tokens and the verifier's ground truth.

    images: prepared, for a prompt that has some; the tokens then hold a placeholder for each image token.
    """

    tokens: tuple[int, ...]
    ground_truth: str
    images: Images | None = None


def read_prompts(
    path: Path, tokenizer: PreTrainedTokenizerBase, max_prompt_tokens: int, processor: ProcessorMixin | None = None
) -> list[Prompt]:
    """Return the problems of one parquet file in the model's own chat template, tokenised, in order.

    processor: of a model that reads images; without it the problems must be text. Raises UserError naming the file and
    the problem where a prompt is empty or too long, or has images that this model cannot read.
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
        if not 0 < len(tokens) <= max_prompt_tokens:
            raise UserError(
                f"{path}: problem {problem.id} has {len(tokens)} prompt tokens, allowed are 1 to {max_prompt_tokens}; "
                "raise sampling.max_prompt_tokens (prompts are never truncated)"
            )
        prompts.append(Prompt(problem.id, Row(tuple(tokens), problem.ground_truth, images)))
    return prompts


def chat(
    tokenizer: PreTrainedTokenizerBase, messages: list[Json], add_generation_prompt: bool = True, images: bool = False
) -> str:
    """Return a conversation in the model's own template; images: ``<image>`` in a message stands for one."""
    told = to_messages(messages) if images else messages
    style: Json = {"add_generation_prompt": add_generation_prompt, "continue_final_message": not add_generation_prompt}
    return str(tokenizer.apply_chat_template(told, tokenize=False, **style))


class PromptStream:
    """Draws endless epochs of shuffled prompts. ``position`` (prompts drawn so far) is the whole state.

    blocks: indices of the prompts that are drawn from, one list after another; length: prompts drawn from each but the
    last, which has no end.
    """

    def __init__(self, prompts: list[Prompt], seed: int, blocks: Sequence[Sequence[int]] = (), length: int = 0) -> None:
        self.prompts, self.seed, self.position = prompts, seed, 0
        self.blocks, self.length = blocks, length
        self._now: tuple[object, ...] = ()
        self._order = np.empty(0, dtype=np.int64)

    def draw(self, count: int) -> list[Prompt]:
        return [self.prompts[self._next()] for _ in range(count)]

    def _next(self) -> int:
        block = min(self.position // self.length, len(self.blocks) - 1) if self.blocks else 0
        pool: Sequence[int] = self.blocks[block] if self.blocks else range(len(self.prompts))
        epoch, place = divmod(self.position - block * self.length, len(pool))
        now = ("epoch", epoch, "block", block) if self.blocks else ("epoch", epoch)
        if now != self._now:
            self._now, self._order = now, seeds.generator(self.seed, *now).permutation(pool)
        self.position += 1
        return int(self._order[place])


def training_stream(config: Config, prompts: list[Prompt], ground_truths: Sequence[str], task: Task) -> PromptStream:
    """Return the stream that a run draws from: ``train.blocks``. Raises UserError for a difficulty without problems."""
    train = config.train
    if train.blocks is None:
        return PromptStream(prompts, config.seed)
    levels = [task.difficulty(truth) for truth in ground_truths]
    blocks = [[i for i, level in enumerate(levels) if level == wanted] for wanted in train.blocks]
    if not all(blocks):
        raise UserError(f"train.blocks={train.blocks}: the training problems have {sorted(set(levels))}")
    assert train.steps is not None
    return PromptStream(prompts, config.seed, blocks, train.steps * train.batch_size // len(blocks))


# ------------------------------------------------------------------------------------------------ answers


class Response(str):
    """The text of a response. tokens: how many the model drew for it, the end token included."""

    __slots__ = ("tokens",)
    tokens: int

    def __new__(cls, text: str, tokens: int) -> Response:
        response = super().__new__(cls, text)
        response.tokens = tokens
        return response


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


def decode(tokenizer: PreTrainedTokenizerBase, samples: Samples) -> list[Response]:
    """Return the texts of all responses, without special tokens; equal responses are decoded once."""
    drawn = [tuple(row[:n]) for row, n in zip(samples.tokens.tolist(), samples.lengths, strict=True)]
    different = list(dict.fromkeys(drawn))
    texts = tokenizer.batch_decode([list(tokens) for tokens in different], skip_special_tokens=True)
    known = {tokens: Response(text, len(tokens)) for tokens, text in zip(different, texts, strict=True)}
    return [known[tokens] for tokens in drawn]


def grade(
    task: Task,
    responses: Sequence[str],
    ground_truth: str,
    counted: Callable[[Verdict], Verdict] = lambda verdict: verdict,
) -> list[Verdict]:
    """Return the verdict on each response; equal ones (a trained model repeats itself) are graded once.

    counted: is handed each verdict that is made.
    """
    known = {response: counted(task.verify(response, ground_truth)) for response in dict.fromkeys(responses)}
    return [known[response] for response in responses]


def demonstrate(
    prompts: Sequence[Prompt], tokenizer: PreTrainedTokenizerBase, task: Task, parameters: SamplingParameters, step: int
) -> list[Group | None]:
    """Return for each prompt a group of the expert's response, or None; see ``bapo.methods.Sampler.demonstrate``.

    There is none if the task knows no solution, if it is longer than ``parameters.max_tokens`` with its end
    token, or if the verifier does not accept what the tokens say (a word that the vocabulary lacks). Raises UserError
    for a task without an expert.
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
        written = str(tokenizer.decode(tokens, skip_special_tokens=True))
        fits = text is not None and 0 < len(tokens) <= parameters.max_tokens
        if not fits or not task.verify(written, row.ground_truth).correct:
            groups.append(None)
            continue
        ids, length = np.array([tokens], dtype=np.int32), np.array([len(tokens)], dtype=np.int32)
        samples = Samples(ids, length, np.zeros(ids.shape, dtype=np.float32))
        groups.append(Group(prompt, np.ones(1, dtype=np.float32), step, step - 1, samples, DEMONSTRATED))
    return groups


# ------------------------------------------------------------------------------------------------ vectors


class Embedder:
    """Prompts as vectors (:func:`mean_states`) of the model before training, all of a run's when first asked for.

    No part of a checkpoint: a resumed run computes the same numbers again, or reads them in a file. tokens: what goes
    through the model for it.
    """

    def __init__(
        self, load: Callable[[], PreTrainedModel], prompts: Sequence[Prompt], file: Path | None = None
    ) -> None:
        """load: gives the model, which is dropped again; prompts: all that may be asked; file: keeps the vectors."""
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
        """float32 [n, d], in the order of the prompts."""
        return np.stack([self._vectors[p.id] for p in prompts])


@torch.no_grad()
def mean_states(model: PreTrainedModel, prompts: Sequence[Prompt], batch: int = BATCH) -> np.ndarray:
    """float32 [n, d]: mean of the last hidden states (after the final norm) over each prompt's tokens."""
    lengths = np.array([len(p.row.tokens) for p in prompts])
    order = np.argsort(lengths, kind="stable")  # neighbours in length: little padding
    device = next(model.parameters()).device
    means_of_prompts: list[np.ndarray] = [np.empty(0)] * len(prompts)
    for start in range(0, len(order), batch):
        chosen = order[start : start + batch]
        ids = np.zeros((len(chosen), lengths[chosen].max()), dtype=np.int64)
        for row, i in enumerate(chosen):
            ids[row, : lengths[i]] = prompts[i].row.tokens
        ends = torch.from_numpy(lengths[chosen]).to(device)
        pictures = [prompts[i].row.images for i in chosen]
        # padding is on the right, where a causal model never looks
        inputs = models.inputs(model, torch.from_numpy(ids).to(device), ends, pictures)
        hidden = model.base_model(**inputs, use_cache=False).last_hidden_state.float()
        inside = (torch.arange(ids.shape[1], device=device) < ends[:, None]).unsqueeze(-1)
        means = (hidden * inside).sum(1) / ends[:, None]
        for i, vector in zip(chosen, means.cpu().numpy(), strict=True):
            means_of_prompts[i] = vector
    return np.stack(means_of_prompts)
