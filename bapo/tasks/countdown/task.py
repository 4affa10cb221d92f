"""Countdown: reach a target with three or four numbers, each used once (the paper's planning task)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from bapo import seeds
from bapo.errors import UserError
from bapo.graders.verdict import Verdict
from bapo.tasks import files
from bapo.tasks.base import Problem, Progress, Task
from bapo.tasks.countdown import generator as generators
from bapo.tasks.countdown import grammar
from bapo.tasks.countdown import hub as countdown_hub
from bapo.tasks.countdown import tokenizer as countdown_tokenizer
from bapo.tasks.countdown.search import Step, solve_steps, to_chain, to_expression
from bapo.tasks.countdown.splits import SPLITS, problem_id
from bapo.tasks.real import cleaning
from bapo.tasks.real.lock import SourceLock

if TYPE_CHECKING:
    from omegaconf import DictConfig
    from transformers import PreTrainedTokenizerFast

#: Values of ``config.data.prompt``, the format in which each asks for the answer and the generator that suits it.
FORMATS = {"chain": "chain", "think-answer": "answer"}
GENERATORS = {"chain": "reduced", "think-answer": "exact"}

_THINK_ANSWER = (
    "Using the numbers {numbers}, write an arithmetic expression that equals {target}. Use each number exactly once, "
    "and only the operations +, -, *, / and parentheses. Show your reasoning in <think> </think> tags, then give the "
    "expression alone, without an equals sign, in <answer> </answer> tags, for example <answer> (4 + 8) / 3 </answer>."
)


def to_prompt(numbers: Sequence[int], target: int, prompt: str) -> str:
    """The user's message. ``prompt`` is a key of FORMATS.

    "chain" is the laptop's, one token a word: ``3 4 7 12 : 24 =``. "think-answer" asks, in our words, for what the
    prompts of TinyZero and of the Countdown experiments after it ask for: reasoning, then the last <answer> counts.
    """
    if prompt == "chain":
        return f"{' '.join(map(str, numbers))} : {target} ="
    return _THINK_ANSWER.format(numbers=list(numbers), target=target)


def to_problem(numbers: Sequence[int], target: int, prompt: str) -> Problem:
    return Problem(
        problem_id(numbers, target),
        to_prompt(numbers, target, prompt),
        grammar.to_ground_truth(numbers, target, FORMATS[prompt]),
    )


def _solved(numbers: Sequence[int], target: int) -> list[Step]:
    """The first solution of the exhaustive search. Raises UserError where there is none."""
    steps = solve_steps(numbers, target)
    if steps is None:
        raise UserError(f"no expression of {list(numbers)} gives {target}")
    return steps


class Countdown(Task):
    name = "countdown"
    benchmarks: ClassVar[Mapping[str, str]] = {"cd34": "CD-34", "cd4": "CD-4"}
    fields = ("numbers", "target", "response")

    def verify(self, response: str, ground_truth: str) -> Verdict:
        return grammar.verify(response, ground_truth)

    def answer(self, response: str) -> str | None:
        """The last <answer>...</answer> outside the thinking, else (no tags) the whole chain; without its spaces."""
        tagged = any(tag in response for tag in ("<answer>", "<think>", "</think>"))
        text = grammar.extract_answer(response) if tagged else response
        return "".join((text or "").split()) or None

    def extract(self, response: str) -> str:
        """The last <answer>...</answer> outside the thinking, "" where there is none; the paper's format only."""
        text = grammar.extract_answer(response)
        return "" if text is None else f"<answer>{text}</answer>"

    def gold_responses(self, ground_truth: str) -> Sequence[str]:
        """The solution of an exhaustive search, in the problem's own format."""
        numbers, target, form = grammar.from_ground_truth(ground_truth)
        steps = _solved(numbers, target)
        text = to_chain(steps) if form == "chain" else to_expression(numbers, steps)
        return (f"<answer>{text}</answer>" if form == "answer" else text,)

    def demonstration(self, problem_id: str, prompt: str, ground_truth: str) -> str | None:
        """The exhaustive search's solution with the smallest numbers on the way: a chain, or a chain as the thinking
        before the answer. A chain of the reduced task thus stays within the vocabulary of its models."""
        numbers, target, form = grammar.from_ground_truth(ground_truth)
        steps = _solved(numbers, target)
        while lower := solve_steps(numbers, target, max(s.result for s in steps) - 1):
            steps = lower
        if form == "chain":
            return to_chain(steps)
        text = to_expression(numbers, steps)
        return f"<think>{to_chain(steps)}</think>\n<answer>{text}</answer>" if form == "answer" else text

    # -------------------------------------------------------------------------------------------- data

    def write_data(self, config: DictConfig, folder: Path, progress: Progress | None = None) -> dict[str, Any]:
        """See :meth:`Task.write_data`. Returns, for each split, problems (or documents) and how they came about."""
        say = progress or (lambda text: None)
        data = config.data
        if data.prompt not in FORMATS:
            raise UserError(f"data.prompt={data.prompt}: must be one of {', '.join(FORMATS)}")
        for split, size in data.split_sizes.items():
            if split not in SPLITS:
                raise UserError(f"data.split_sizes.{split}: no such split; allowed: {', '.join(SPLITS)}")
            if size < 1:
                raise UserError(f"data.split_sizes.{split}={size}: must be at least 1")
        counts: dict[str, Any] = {}
        if data.source == "hub":
            cleaning.options(data.get("cleaning") or {}, {})  # its splits are disjoint; there is nothing to decide
            lock = SourceLock.of(config)
            found = countdown_hub.load(data.hub, data.split_sizes, config.paths.data_folder, lock)
            for split, rows in found.items():
                counts[split] = self._write_split(folder, split, rows.problems, data.prompt)
                counts[split] |= {"duplicates_dropped": rows.duplicates, "overlaps_dropped": rows.overlaps}
            countdown_hub.report(folder, found, lock, say)
            return counts
        generator = generators.build(data.generator, GENERATORS[data.prompt])
        for split, size in data.split_sizes.items():
            rng = seeds.generator(data.seed, self.name, split)
            if split == "base":
                counts[split] = self._write_documents(folder, generator, rng, size, data.prompt)
                say(f"base: {size} documents, {counts[split]['noisy']} with another target than their own")
            else:
                found = generator.problems(rng, size, split)
                counts[split] = self._write_split(folder, split, [(f.numbers, f.target) for f in found], data.prompt)
                say(f"{split}: {size} problems")
        return counts

    def _write_split(
        self, folder: Path, split: str, problems: Sequence[tuple[Sequence[int], int]], prompt: str
    ) -> dict[str, int]:
        made = [to_problem(numbers, target, prompt) for numbers, target in problems]
        files.write_problems(folder / f"{split}.parquet", made, self.name, "planning", split)
        return {"problems": len(made), "three_numbers": sum(len(numbers) == 3 for numbers, _ in problems)}

    def _write_documents(self, folder: Path, generator: Any, rng: Any, size: int, prompt: str) -> dict[str, int]:
        if not isinstance(generator, generators.ReducedGenerator) or prompt != "chain":
            raise UserError(
                "data.split_sizes.base: base documents exist only for data.prompt=chain and the reduced generator; "
                "remove this split and start from a pretrained model"
            )
        made = generator.documents(rng, size)
        ids = [problem_id(document.numbers, document.target) for document in made]
        files.write_documents(
            folder / "base.parquet",
            ids,
            [to_prompt(document.numbers, document.target, prompt) for document in made],
            [to_chain(document.steps) for document in made],
        )
        return {
            "documents": size,
            "problems": len(set(ids)),
            "three_numbers": sum(len(document.numbers) == 3 for document in made),
            "noisy": sum(document.steps[-1].result != document.target for document in made),
        }

    # -------------------------------------------------------------------------------------------- the rest

    def build_tokenizer(self, config: DictConfig) -> PreTrainedTokenizerFast:
        """One token a word, for ``data.prompt=chain`` and the reduced generator's numbers."""
        data = config.data
        if data.source != "generated" or data.prompt != "chain":
            raise UserError(
                f"data.prompt={data.prompt}: a model trained from scratch reads data.source=generated with "
                "data.prompt=chain only; choose a pretrained model"
            )
        generator = generators.build(data.generator, GENERATORS[data.prompt])
        if not isinstance(generator, generators.ReducedGenerator):
            raise UserError("data.generator.kind=exact: one token a number needs data.generator.kind=reduced")
        return countdown_tokenizer.build(generator.value_max)

    def grade_line(self, line: Mapping[str, Any]) -> Verdict:
        """Grade {"numbers": [...], "target": n, "response": text} with an optional "format".

        Without "format": a response with <answer> is an answer, one with an equals sign a chain, else an expression.
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
        if form is None:
            form = "answer" if "<answer>" in response else "chain" if "=" in response else "expression"
        if not isinstance(form, str) or form not in grammar.VERIFIERS:
            raise UserError(f"field 'format' must be one of {', '.join(grammar.VERIFIERS)}")
        return grammar.VERIFIERS[form](response, numbers, target)
