"""Countdown: reach a target with a few numbers, each used once (the paper's planning task, with three or four)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from bapo.errors import UserError
from bapo.graders.mathematics import read_response
from bapo.graders.verdict import Verdict
from bapo.store.files import Json, write_json
from bapo.tasks import files, sources
from bapo.tasks.base import Document, Problem
from bapo.tasks.countdown import grammar
from bapo.tasks.countdown.generator import GENERATORS, ReducedGenerator
from bapo.tasks.countdown.problems import EASY_SPLITS, SPLITS, problem_id, solve_steps, to_expression, to_few_shot
from bapo.tasks.generated import GeneratedTask, Step, build_tokenizer, check_data, require_worked, to_chain
from bapo.tasks.real import REPORT

if TYPE_CHECKING:
    import numpy as np
    from transformers import PreTrainedTokenizerFast

    from bapo.experiments.schema import Config, DataConfig

#: Values of ``config.data.prompt`` and the format in which each asks for the answer.
FORMATS = {"chain": "chain", "think-answer": "answer", "few-shot": "expression"}

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


def to_problem(numbers: Sequence[int], target: int, prompt: str) -> Problem:
    truth = grammar.to_ground_truth(numbers, target, FORMATS[prompt])
    return Problem(problem_id(numbers, target), to_prompt(numbers, target, prompt), truth)


def _three_numbers(problems: Iterable[Sequence[int]]) -> int:
    """Return how many problems have three numbers. problems: the numbers of each."""
    return sum(len(numbers) == 3 for numbers in problems)


def _solved(truth: grammar.Truth) -> list[Step]:
    """Return the first solution of the exhaustive search. Raises UserError where there is none."""
    steps = solve_steps(truth.numbers, truth.target)
    if steps is None:
        raise UserError(f"no expression of {list(truth.numbers)} gives {truth.target}")
    return steps


class Countdown(GeneratedTask):
    name = "countdown"
    ability = "planning"
    splits: ClassVar[Mapping[str, Collection[str]]] = {"chain": SPLITS, "few-shot": EASY_SPLITS}
    benchmarks: ClassVar[Mapping[str, str]] = {"cd34": "CD-34", "cd4": "CD-4", "cd2": "CD-2", "cd3": "CD-3"}

    verify = staticmethod(grammar.verify)

    def gold_responses(self, ground_truth: str) -> Sequence[str]:
        """Return an exhaustive search's solution, in the problem's own format. Raises UserError where there is none."""
        truth = grammar.from_ground_truth(ground_truth)
        steps = _solved(truth)
        text = to_chain(steps) if truth.format == "chain" else to_expression(truth.numbers, steps)
        return (f"<answer>{text}</answer>" if truth.format == "answer" else text,)

    def demonstration(self, problem_id: str, prompt: str, ground_truth: str) -> str | None:
        """Return the solution with the smallest numbers on the way: a chain, or one as the thinking before the answer.

        A chain of the reduced task thus stays within the vocabulary of its models. Raises UserError without a solution.
        """
        truth = grammar.from_ground_truth(ground_truth)
        steps = _solved(truth)
        while lower := solve_steps(truth.numbers, truth.target, max(s.result for s in steps) - 1):
            steps = lower
        if truth.format == "chain":
            return to_chain(steps)
        text = to_expression(truth.numbers, steps)
        return f"<think>{to_chain(steps)}</think>\n<answer>{text}</answer>" if truth.format == "answer" else text

    def difficulty(self, ground_truth: str) -> int:
        """Count the numbers."""
        return len(grammar.from_ground_truth(ground_truth).numbers)

    def problems(self, data: DataConfig, split: str, rng: np.random.Generator) -> tuple[list[Problem], dict[str, int]]:
        instances = GENERATORS[data.prompt].of(data).problems(rng, data.split_sizes[split], split)
        problems = [to_problem(i.numbers, i.target, data.prompt) for i in instances]
        return problems, {"three_numbers": _three_numbers(i.numbers for i in instances)}

    def documents(self, data: DataConfig, rng: np.random.Generator) -> tuple[list[Document], dict[str, int]]:
        instances = ReducedGenerator.of(data).documents(rng, data.split_sizes["base"])
        documents = [
            Document(problem_id(i.numbers, i.target), to_prompt(i.numbers, i.target, data.prompt), to_chain(i.steps))
            for i in instances
        ]
        return documents, {
            "documents": len(documents),
            "problems": len({document.id for document in documents}),
            "three_numbers": _three_numbers(i.numbers for i in instances),
            "noisy": sum(i.steps[-1].result != i.target for i in instances),
        }

    def write_hub(self, config: Config, folder: Path) -> Json:
        data = config.data
        check_data(data, FORMATS, ("train", "probe", *self.benchmarks))
        counts, row_counts, problem_counts = {}, {}, {}
        digests: dict[str, str] = {}
        for split, (pairs, dropped, file_digests) in load(data.hub, data.split_sizes, config.paths.data_folder).items():
            problems = [to_problem(*pair, data.prompt) for pair in pairs]
            files.write_problems(folder / f"{split}.parquet", problems, self.name, self.ability, split)
            threes = _three_numbers(numbers for numbers, _ in pairs)
            counts[split] = {"problems": len(problems), "three_numbers": threes, **dropped}
            digests |= file_digests
            problem_counts[split], row_counts[split] = len(pairs), len(pairs) + sum(dropped.values())
        write_json(folder / REPORT, {"files": digests, "rows": row_counts, "problems": problem_counts})
        return counts

    def read_set(
        self, hub: Json, split: str, prompt: str, sizes: Mapping[str, int], data_folder: str | None
    ) -> list[Problem]:
        return [to_problem(*pair, prompt) for pair in load(hub, sizes, data_folder)[split][0]]

    def build_tokenizer(self, config: Config) -> PreTrainedTokenizerFast:
        """Build a tokenizer of one token a word, for the numbers of the reduced generator.

        Raises UserError for another ``data.prompt`` than chain, or another source.
        """
        require_worked(config.data)
        options = ReducedGenerator.of(config.data)
        return build_tokenizer(_SIGNS, max(options.value_max, options.number_max))

    def grade_line(self, line: Json) -> Verdict:
        """Grade {"numbers": [...], "target": n, "response": text}; "format" is "answer" where it is not given."""
        truth = grammar.to_truth(line["numbers"], line["target"], line.get("format", "answer"), "a line to grade")
        return truth.verify(read_response(line))


# ------------------------------------------------------------------------------------------------ public sets


#: problems as (numbers, target), how many rows were passed over, and the files' digests
Rows = tuple[list[tuple[Sequence[int], int]], dict[str, int], dict[str, str]]


def load(hub: Json, sizes: Mapping[str, int], data_folder: str | None) -> dict[str, Rows]:
    """Read the first ``sizes[split]`` usable rows, ``nums`` and ``target``, of each split from its ``start`` on.

    hub: entries as :mod:`bapo.tasks.sources` reads them; the training split is taken first, so that no held-out problem
    is trained on, then the others in the order of ``sizes``. A row is passed over if its problem (multiset of numbers
    and target) was taken before: a duplicate in its own split, an overlap in another.
    Raises UserError naming the key or file and the cure.
    """
    earlier_problems: set[str] = set()
    splits = {}
    for split in sorted(sizes, key=lambda name: name != "train"):
        entry = sources.source(hub, split)
        rows, digests = sources.read_rows(entry, data_folder, ("nums", "target"))
        problems: dict[str, tuple[Sequence[int], int]] = {}
        duplicates = overlaps = 0
        for row in rows:
            if len(problems) == sizes[split]:
                break
            truth = grammar.to_truth(row.values["nums"], row.values["target"], "answer", row.where)
            if split == "cd4" and len(truth.numbers) != 4:
                raise UserError(f"{row.where}: {len(truth.numbers)} numbers, but CD-4 has four; correct data.hub.cd4")
            name = problem_id(truth.numbers, truth.target)
            overlaps += name in earlier_problems
            duplicates += name in problems
            if name not in earlier_problems:
                problems.setdefault(name, (truth.numbers, truth.target))
        if len(problems) < sizes[split]:
            raise UserError(
                f"data.split_sizes.{split}={sizes[split]}: only {len(problems)} usable rows from row "
                f"data.hub.{split}.start on ({duplicates} duplicates, {overlaps} in another split); lower one of them"
            )
        earlier_problems |= problems.keys()
        dropped = {"duplicates_dropped": duplicates, "overlaps_dropped": overlaps}
        splits[split] = list(problems.values()), dropped, digests
    return {split: splits[split] for split in sizes}
