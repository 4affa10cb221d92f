"""Mathematics: worked arithmetic for small models, sums for pretrained ones, and the public sets of the paper.

A sum's prompt is four solved examples, then ``What is 38 + 47?``, whose answer is the next line. All prompts begin with
the same tokens, which engines may compute once.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple

import numpy as np

from bapo.graders.verdict import NO_ANSWER, WRONG
from bapo.tasks.base import Document, Problem
from bapo.tasks.generated import Options, build_tokenizer, owner, require_worked, to_chain, too_many
from bapo.tasks.mathematics import generator
from bapo.tasks.real import BoxedTask, number_truth

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from bapo.experiments.schema import Config, DataConfig

_SIGNS = ("+", "-", "*", "/", "=", ",", "(", ")", generator.X)


#: the examples of every prompt; no split holds one of them
EXAMPLES = ((23, 45), (17, 38), (64, 29), (51, 12))
#: number of digits -> share of the sums of two such numbers that each split owns
SHARES: Mapping[int, Mapping[str, float]] = {2: {"train": 0.5, "probe": 0.2, "sum2": 0.3}, 3: {"sum3": 1.0}}
#: split -> digits of its numbers
DIGITS = {split: digits for digits, shares in SHARES.items() for split in shares}
#: what a ground truth calls a bare number
FORMAT = "number"
_NUMBER = re.compile(r"[0-9]{1,6}")


class Sum(NamedTuple):
    a: int
    b: int

    @property
    def id(self) -> str:
        """Name the sum, in whatever order: ``mathematics:38+47``."""
        return f"mathematics:{min(self)}+{max(self)}"

    @property
    def prompt(self) -> str:
        examples = [f"{_question(a, b)} {a + b}" for a, b in EXAMPLES]
        return "\n\n".join([*examples, _question(*self)])


_SHOWN = frozenset(Sum(*example).id for example in EXAMPLES)


def _question(a: int, b: int) -> str:
    return f"Question: What is {a} + {b}?\nAnswer:"


class Sums(Options):
    """Draws sums of two numbers with as many digits as the split's (DIGITS)."""

    kind: Literal["sums"] = "sums"

    def problems(self, rng: np.random.Generator, count: int, split: str) -> list[Sum]:
        """Draw ``count`` distinct sums that ``split`` owns. Raises UserError if so many cannot be found."""
        sums: dict[str, Sum] = {}
        digits = DIGITS[split]
        for _ in range(20_000 + 100 * count):
            if len(sums) == count:
                return list(sums.values())
            candidate = Sum(*(int(n) for n in rng.integers(10 ** (digits - 1), 10**digits, 2)))
            if candidate.id not in _SHOWN and owner(candidate.id, SHARES[digits]) == split:
                sums.setdefault(candidate.id, candidate)
        raise too_many(split, count, len(sums), "sums")


def _number(response: str) -> int | None:
    """Return the number that a response is, with nothing but space around it; else None."""
    text = response[:64].strip()
    return int(text) if len(response) <= 64 and _NUMBER.fullmatch(text) else None


class Mathematics(BoxedTask):
    name = ability = "mathematics"
    benchmarks: ClassVar[Mapping[str, str]] = {
        **generator.BENCHMARKS,
        "sum2": "Sums-2",
        "sum3": "Sums-3",
        "aime24": "AIME24",
        "amc": "AMC",
        "math500": "MATH500",
        "minerva": "Minerva",
        "olympiad": "Olympiad",
        "gsm8k": "GSM8K",
    }
    roles: ClassVar[Mapping[str, str]] = {
        "nested_3": "aime24",
        "running_3": "amc",
        "mixed": "math500",
        "equations": "minerva",
        "running_5": "olympiad",
    }
    splits: ClassVar[Mapping[str, Collection[str]]] = {"chain": tuple(generator.TIERS), "few-shot": tuple(DIGITS)}

    numeric: ClassVar[Mapping[str, tuple[str, str, str]]] = {**BoxedTask.numeric, FORMAT: (NO_ANSWER, WRONG, "{}")}

    def number(self, response: str, form: str) -> int | None:
        return _number(response) if form == FORMAT else generator.final_answer(response)

    def steps(self, problem_id: str, prompt: str) -> str:
        return generator.solve(prompt)

    def problems(self, data: DataConfig, split: str, rng: np.random.Generator) -> tuple[list[Problem], dict[str, int]]:
        if data.prompt == "few-shot":
            sums = Sums.of(data).problems(rng, data.split_sizes[split], split)
            return [Problem(s.id, s.prompt, number_truth(s.a + s.b, FORMAT)) for s in sums], {}
        instances = generator.Generator.of(data).problems(rng, data.split_sizes[split], split)
        problems = [Problem(i.id, i.prompt, number_truth(i.answer)) for i in instances]
        return problems, {"equations": _equations(instances)}

    def documents(self, data: DataConfig, rng: np.random.Generator) -> tuple[list[Document], dict[str, int]]:
        worked = generator.Generator.of(data).documents(rng, data.split_sizes["base"])
        instances = [instance for instance, _ in worked]
        return [Document(instance.id, instance.prompt, to_chain(steps)) for instance, steps in worked], {
            "documents": len(worked),
            "problems": len({instance.id for instance in instances}),
            "equations": _equations(instances),
            "noisy": sum(steps[-1].result != instance.answer for instance, steps in worked),
        }

    def build_tokenizer(self, config: Config) -> PreTrainedTokenizerFast:
        """Build a tokenizer of one token a word, for generated problems. Raises UserError for others."""
        require_worked(config.data)
        return build_tokenizer(_SIGNS, generator.Generator.of(config.data).value_max)


def _equations(instances: list[generator.ArithmeticProblem]) -> int:
    return sum(generator.X in instance.prompt for instance in instances)
