"""Countdown: reach a target with a few numbers, each used once (the paper's planning task, with three or four)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from bapo.errors import UserError
from bapo.graders.extract import last_boxed
from bapo.graders.verdict import Verdict
from bapo.tasks import files, tokenizers
from bapo.tasks.base import Document, Problem
from bapo.tasks.countdown import generator as generators
from bapo.tasks.countdown import grammar, notation
from bapo.tasks.countdown import hub as countdown_hub
from bapo.tasks.countdown.problems import (
    EASY_SPLITS,
    SPLITS,
    Step,
    problem_id,
    solve_steps,
    to_chain,
    to_expression,
    to_few_shot,
)
from bapo.tasks.generated import GeneratedTask, check_data, require_worked
from bapo.tasks.real import cleaning

if TYPE_CHECKING:
    import numpy as np
    from omegaconf import DictConfig
    from transformers import PreTrainedTokenizerFast

#: Values of ``config.data.prompt``, the format in which each asks for the answer and the generator that suits it.
FORMATS = {"chain": "chain", "think-answer": "answer", "few-shot": "expression"}
GENERATORS = {"chain": "reduced", "think-answer": "exact", "few-shot": "easy"}

_SIGNS = ("+", "-", "*", "/", "=", ",", ":")
_THINK_ANSWER = (
    "Using the numbers {numbers}, write an arithmetic expression that equals {target}. Use each number exactly once, "
    "and only the operations +, -, *, / and parentheses. Show your reasoning in <think> </think> tags, then give the "
    "expression alone, without an equals sign, in <answer> </answer> tags, for example <answer> (4 + 8) / 3 </answer>."
)


def to_prompt(numbers: Sequence[int], target: int, prompt: str) -> str:
    """Write the user's message. prompt: a key of FORMATS.

    "chain" is the laptop's, one token a word: ``3 4 7 12 : 24 =``. "think-answer" asks, in our words, for what the
    prompts of TinyZero and of the Countdown experiments after it ask for: reasoning, then the last <answer> counts.
    "few-shot" shows solved examples and is to be continued with an expression.
    """
    if prompt == "few-shot":
        return to_few_shot(numbers, target)
    if prompt == "chain":
        return f"{' '.join(map(str, numbers))} : {target} ="
    return _THINK_ANSWER.format(numbers=list(numbers), target=target)


def to_problem(numbers: Sequence[int], target: int, prompt: str, grading: str = grammar.GRADINGS[0]) -> Problem:
    return Problem(
        problem_id(numbers, target),
        to_prompt(numbers, target, prompt),
        grammar.to_ground_truth(numbers, target, FORMATS[prompt], grading),
    )


def _problems(pairs: Sequence[tuple[Sequence[int], int]], data: DictConfig) -> tuple[list[Problem], dict[str, int]]:
    """Return the problems of (numbers, target) with their counts."""
    problems = [to_problem(numbers, target, data.prompt, data.grading) for numbers, target in pairs]
    return problems, {"problems": len(problems), "three_numbers": sum(len(numbers) == 3 for numbers, _ in pairs)}


def _solved(numbers: Sequence[int], target: int) -> list[Step]:
    """Return the first solution of the exhaustive search. Raises UserError where there is none."""
    steps = solve_steps(numbers, target)
    if steps is None:
        raise UserError(f"no expression of {list(numbers)} gives {target}")
    return steps


class Countdown(GeneratedTask):
    name = "countdown"
    ability = "planning"
    prompts = tuple(FORMATS)
    splits = tuple(dict.fromkeys((*SPLITS, *EASY_SPLITS)))
    benchmarks: ClassVar[Mapping[str, str]] = {"cd34": "CD-34", "cd4": "CD-4", "cd2": "CD-2", "cd3": "CD-3"}
    fields = ("numbers", "target", "response")

    verify = staticmethod(grammar.verify)

    def answer(self, response: str) -> str | None:
        """Return the last <answer>...</answer> outside the thinking, else the last box, else (no tags) the chain.

        Without spaces; an answer in tags or a box is in the strict grammar's signs, and of an equation the expression.
        """
        if not any(mark in response for mark in ("<answer>", "<think>", "</think>", "boxed")):
            return "".join(response.split()) or None
        text = (grammar.written(response, "answer") or "")[: notation.LONGEST]
        return "".join(notation.read(text).expression.split()) or None

    def extract(self, response: str) -> str:
        """Return the last <answer>...</answer> outside the thinking, else the last box, else ""; the paper's format."""
        text = grammar.extract_answer(response)
        return last_boxed(response) if text is None else f"<answer>{text}</answer>"

    def gold_responses(self, ground_truth: str) -> Sequence[str]:
        """Return the solution of an exhaustive search, in the problem's own format."""
        numbers, target, form, _ = grammar.from_ground_truth(ground_truth)
        steps = _solved(numbers, target)
        text = to_chain(steps) if form == "chain" else to_expression(numbers, steps)
        return (f"<answer>{text}</answer>" if form == "answer" else text,)

    def demonstration(self, problem_id: str, prompt: str, ground_truth: str) -> str | None:
        """Return the solution with the smallest numbers on the way: a chain, or one as the thinking before the answer.

        A chain of the reduced task thus stays within the vocabulary of its models.
        """
        numbers, target, form, _ = grammar.from_ground_truth(ground_truth)
        steps = _solved(numbers, target)
        while lower := solve_steps(numbers, target, max(s.result for s in steps) - 1):
            steps = lower
        if form == "chain":
            return to_chain(steps)
        text = to_expression(numbers, steps)
        return f"<think>{to_chain(steps)}</think>\n<answer>{text}</answer>" if form == "answer" else text

    def problems(self, data: DictConfig, split: str, rng: np.random.Generator) -> tuple[list[Problem], dict[str, int]]:
        generator = generators.build(data.generator, GENERATORS[data.prompt])
        instances = generator.problems(rng, data.split_sizes[split], split)
        return _problems([(i.numbers, i.target) for i in instances], data)

    def documents(self, data: DictConfig, rng: np.random.Generator) -> tuple[list[Document], dict[str, int]]:
        generator = generators.build(data.generator, GENERATORS[data.prompt])
        if not isinstance(generator, generators.ReducedGenerator) or data.prompt != "chain":
            raise UserError(
                "data.split_sizes.base: base documents exist only for data.prompt=chain and the reduced generator; "
                "remove this split and start from a pretrained model"
            )
        instances = generator.documents(rng, data.split_sizes.base)
        documents = [
            Document(problem_id(i.numbers, i.target), to_prompt(i.numbers, i.target, data.prompt), to_chain(i.steps))
            for i in instances
        ]
        return documents, {
            "documents": len(documents),
            "problems": len({document.id for document in documents}),
            "three_numbers": sum(len(i.numbers) == 3 for i in instances),
            "noisy": sum(i.steps[-1].result != i.target for i in instances),
        }

    def write_hub(self, config: DictConfig, folder: Path, say: Callable[[str], None]) -> dict[str, Any]:
        data = config.data
        check_data(data, "hub", self.prompts, self.splits)
        cleaning.options(data.cleaning, {})  # its splits are disjoint; there is nothing to decide
        sets = countdown_hub.load(data.hub, data.split_sizes, config.paths.data_folder)
        counts = {}
        for split, rows in sets.items():
            problems, counts[split] = _problems(rows.problems, data)
            counts[split] |= {"duplicates_dropped": rows.duplicates, "overlaps_dropped": rows.overlaps}
            files.write_problems(folder / f"{split}.parquet", problems, self.name, self.ability, split)
        countdown_hub.report(folder, sets, say)
        return counts

    def build_tokenizer(self, config: DictConfig) -> PreTrainedTokenizerFast:
        """Build a tokenizer of one token a word, for ``data.prompt=chain`` and the reduced generator's numbers."""
        data = config.data
        require_worked(data)
        generator = generators.build(data.generator, GENERATORS[data.prompt])
        if not isinstance(generator, generators.ReducedGenerator):
            raise UserError("data.generator.kind=exact: one token a number needs data.generator.kind=reduced")
        return tokenizers.build(_SIGNS, generator.value_max)

    def grade_line(self, line: Mapping[str, Any]) -> Verdict:
        """Grade {"numbers": [...], "target": n, "response": text} with an optional "format" and "grading".

        Without "format": a response with <answer> is an answer, one with an equals sign a chain, else an expression.
        Graded leniently, one with a box is an answer, too, and an equals sign makes no chain.
        """
        if not isinstance(line, Mapping):
            raise UserError(f"a line must be a JSON object with the fields {', '.join(self.fields)}")
        for field in self.fields:
            if field not in line:
                raise UserError(f"field '{field}' is missing; a line needs {', '.join(self.fields)}")
        numbers, target = grammar.check_numbers("a line to grade", line["numbers"], line["target"])
        response = line["response"]
        if not isinstance(response, str):
            raise UserError(f"field 'response' must be text, got {type(response).__name__}")
        form = line.get("format")
        if form is None and line.get("grading") == "lenient":
            form = "answer" if "<answer>" in response or "boxed" in response else "expression"
        elif form is None:
            form = "answer" if "<answer>" in response else "chain" if "=" in response else "expression"
        form, grading = grammar.check_form("a line to grade", form, line.get("grading"))
        return grammar.Truth(numbers, target, form, grading).verify(response)
