"""An example of a task: put numbers in order. Its problems are generated, for models trained from scratch."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from pydantic import Field

from bapo.graders.verdict import NO_ANSWER, RIGHT, WRONG, Verdict
from bapo.tasks.base import Document, Problem
from bapo.tasks.generated import GeneratedTask, Options, Share, build_tokenizer, owner, too_many

if TYPE_CHECKING:
    import numpy as np
    from transformers import PreTrainedTokenizerFast

    from bapo.experiments.schema import Config, DataConfig

#: Share of all problems that each split owns, so that no problem is in two of them.
SHARES = {"base": 0.7, "train": 0.2, "probe": 0.05, "ordering_test": 0.05}


class Lists(Options):
    """The keys of ``data.generator``: lists of ``count`` different numbers of 1..number_max."""

    count: int = Field(5, ge=2)
    number_max: int = Field(30, ge=2)
    noise: Share = 0.5  # share of the base documents with two numbers in each other's place


class Ordering(GeneratedTask):
    """``7 3 9 5 =`` asks for ``3 , 5 , 7 , 9``."""

    name = "ordering"
    ability = "ordering"
    benchmarks = {"ordering_test": "Ordering"}
    splits = {"plain": tuple(SHARES)}

    def verify(self, response: str, ground_truth: str) -> Verdict:
        answer = "".join(response.split())
        if not answer:
            return Verdict(False, False, NO_ANSWER)
        return RIGHT if answer == json.loads(ground_truth) else Verdict(False, True, WRONG)

    def gold_responses(self, ground_truth: str) -> list[str]:
        return [json.loads(ground_truth)]

    def problems(self, data: DataConfig, split: str, rng: np.random.Generator) -> tuple[list[Problem], dict[str, int]]:
        lists = _draw(data, split, rng, unique=True)
        problems = [Problem(_id(numbers), _prompt(numbers), json.dumps(_answer(sorted(numbers)))) for numbers in lists]
        return problems, {"problems": len(problems)}

    def documents(self, data: DataConfig, rng: np.random.Generator) -> tuple[list[Document], dict[str, int]]:
        documents, noisy, noise = [], 0, Lists.of(data).noise
        for numbers in _draw(data, "base", rng, unique=False):
            ordered = sorted(numbers)
            if rng.random() < noise:  # a noisy base leaves more to learn
                i, j = rng.choice(len(ordered), 2, replace=False)
                ordered[i], ordered[j] = ordered[j], ordered[i]
                noisy += 1
            documents.append(Document(_id(numbers), _prompt(numbers), _answer(ordered)))
        return documents, {"documents": len(documents), "noisy": noisy}

    def build_tokenizer(self, config: Config) -> PreTrainedTokenizerFast:
        return build_tokenizer(("=", ","), Lists.of(config.data).number_max)


def _draw(data: DataConfig, split: str, rng: np.random.Generator, unique: bool) -> list[list[int]]:
    """Draw as many lists of different numbers as the split has problems, from those that the split owns.

    Raises UserError if so many cannot be found.
    """
    lists: dict[str | int, list[int]] = {}
    options, size = Lists.of(data), data.split_sizes[split]
    for _ in range(20_000 + 100 * size):
        if len(lists) == size:
            return list(lists.values())
        numbers = (1 + rng.permutation(options.number_max)[: options.count]).tolist()
        if len(numbers) == options.count and owner(_id(numbers), SHARES) == split:
            lists[_id(numbers) if unique else len(lists)] = numbers
    raise too_many(split, size, len(lists), "lists")


def _id(numbers: list[int]) -> str:
    return "ordering:" + "-".join(map(str, numbers))


def _prompt(numbers: list[int]) -> str:
    return f"{' '.join(map(str, numbers))} ="


def _answer(ordered: list[int]) -> str:
    return ",".join(map(str, ordered))
