"""Problems of reasoning-gym, a library of over 100 generated tasks with scorers (the extra ``gym``): docs/project.md.

``python -m bapo.tasks.reasoning_gym FD`` is a checker's process (:mod:`bapo.graders.pool`). The library's scorers run
there, because some take long on a strange answer, and others run an answer as Python, which that process refuses.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from bapo.errors import require_extra
from bapo.graders import pool, symbolic
from bapo.graders.verdict import NO_ANSWER, Verdict
from bapo.store.files import Json
from bapo.tasks.base import Document, Problem
from bapo.tasks.generated import GeneratedTask, Options, build_tokenizer, owner, too_many
from bapo.tasks.rows import PLACES
from bapo.validate import wrong

if TYPE_CHECKING:
    import numpy as np
    from reasoning_gym.dataset import ProceduralDataset
    from transformers import PreTrainedTokenizerFast

    from bapo.experiments.schema import Config, DataConfig

#: Share of all questions that each split owns, so that no question is in two of them.
SHARES = {"base": 0.5, "train": 0.3, "probe": 0.1, "gym_test": 0.1}
#: ``data.prompt`` -> the user's message, and where a response has its answer, a key of PLACES
PROMPTS = {"plain": ("{}", "all"), "tag": ("{} Give the final answer in <answer> </answer> tags.", "tag")}
CHUNK = 1000  #: problems of a dataset at a time: some compute all of theirs when they are made


class Gym(Options):
    """Holds the keys of ``data.generator``."""

    dataset: str
    arguments: Json = Field(default_factory=dict)  # of the dataset, beside size and seed
    signs: list[str] = Field(default_factory=list)  # tokens of a model from scratch
    value_max: int = 0  # and the numbers up to this one


class ReasoningGym(GeneratedTask):
    """Makes a task of one dataset of reasoning-gym. A subclass gives it a ``name``."""

    ability = "reasoning"
    benchmarks: ClassVar[Mapping[str, str]] = {"gym_test": "Test"}
    splits: ClassVar[Mapping[str, Collection[str]]] = dict.fromkeys(PROMPTS, tuple(SHARES))

    def verify(self, response: str, ground_truth: str) -> Verdict:
        answer = PLACES[json.loads(ground_truth)["place"]][0](response)
        if answer is None:
            return Verdict(False, False, NO_ANSWER)
        return pool.verdict(__name__, ground_truth, answer)

    def gold_responses(self, ground_truth: str) -> Sequence[str]:
        truth = json.loads(ground_truth)
        answer = truth["entry"]["answer"]  # None where the library knows none, and only checks
        return [] if answer is None else [PLACES[truth["place"]][1](answer)]

    def problems(self, data: DataConfig, split: str, rng: np.random.Generator) -> tuple[list[Problem], dict[str, int]]:
        options, (text, place) = Gym.of(data), PROMPTS[data.prompt]
        dataset = {"dataset": options.dataset, "arguments": options.arguments, "place": place}
        entries = _draw_entries(data, split, rng, unique=True)
        return [
            Problem(name, text.format(e["question"]), json.dumps({**dataset, "entry": e})) for name, e in entries
        ], {}

    def documents(self, data: DataConfig, rng: np.random.Generator) -> tuple[list[Document], dict[str, int]]:
        """Draw the documents, as ``Task`` says. Raises UserError for a dataset that only checks answers."""
        text, place = PROMPTS[data.prompt]
        entries = _draw_entries(data, "base", rng, unique=False)
        if any(entry["answer"] is None for _, entry in entries):
            cure = "which checks answers and writes none for a base model to read; start from a pretrained model"
            raise wrong(None, "data.generator.dataset", Gym.of(data).dataset, cure)
        documents = [Document(n, text.format(e["question"]), PLACES[place][1](e["answer"])) for n, e in entries]
        return documents, {"documents": len(documents)}

    def build_tokenizer(self, config: Config) -> PreTrainedTokenizerFast:
        """Build a tokenizer of signs and numbers, which drops the question's words."""
        options = Gym.of(config.data)
        return build_tokenizer(options.signs, options.value_max)


def _draw_entries(data: DataConfig, split: str, rng: np.random.Generator, unique: bool) -> list[tuple[str, Json]]:
    """Draw as many entries as ``split`` has, with their ids, of the questions that it owns."""
    options, count, seed = Gym.of(data), data.split_sizes[split], int(rng.integers(2**31))
    entries: dict[str | int, tuple[str, Json]] = {}
    for start in range(0, 20_000 + 100 * count, CHUNK):  # the library seeds problem i with seed + i
        dataset = make(options.dataset, options.arguments, CHUNK, seed + start)
        for entry in (dataset[i] for i in range(CHUNK)):
            question = " ".join(entry["question"].split())
            name = f"{options.dataset}:{hashlib.sha256(question.encode()).hexdigest()[:16]}"
            if owner(name, SHARES) == split:
                entries.setdefault(name if unique else len(entries), (name, entry))
            if len(entries) == count:
                return list(entries.values())
    raise too_many(split, count, len(entries), "questions")


def make(name: str, arguments: Json, size: int, seed: int) -> ProceduralDataset:
    """Make a dataset of the library with ``size`` problems; problem i is drawn by ``seed`` + i.

    name: the library's; arguments: further ones of this dataset. Raises UserError naming the key where there is none.
    """
    require_extra("gym", "reasoning_gym")
    import reasoning_gym

    try:
        return reasoning_gym.create_dataset(name, size=size, seed=seed, **arguments)
    except (ValueError, TypeError, AssertionError) as error:
        cure = f"with arguments {arguments}: {error}; see reasoning_gym.factory.DATASETS"
        raise wrong(None, "data.generator.dataset", name, cure) from None


def load() -> None:
    """Import the library, and refuse from now on to run texts as Python."""
    import reasoning_gym  # noqa: F401

    sys.addaudithook(_refuse)


def _refuse(event: str, arguments: tuple[object, ...]) -> None:
    if event == "exec" and getattr(arguments[0], "co_filename", "") == "<string>":
        raise RuntimeError("an answer is no program")


def judge(truth: str, answer: str) -> bool:
    """Return whether the library's score of an answer is 1, as smaller scores are for a part of one.

    Args:
        truth: the problem's ground truth, JSON.
        answer: what a response gives as its answer.
    """
    reference = json.loads(truth)
    return (
        _scorer(reference["dataset"], json.dumps(reference["arguments"])).score_answer(answer, reference["entry"]) >= 1
    )


@lru_cache(maxsize=8)
def _scorer(name: str, arguments: str) -> ProceduralDataset:
    return make(name, json.loads(arguments), size=1, seed=0)


if __name__ == "__main__":
    symbolic.serve(Connection(int(sys.argv[1])), sys.modules[__name__])
