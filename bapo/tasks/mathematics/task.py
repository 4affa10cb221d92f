"""Mathematics: worked arithmetic for small models, and the public sets of the paper with boxed answers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from bapo import seeds
from bapo.errors import UserError
from bapo.graders.verdict import Verdict
from bapo.tasks import files, tokenizers
from bapo.tasks.base import Problem, Progress, Task
from bapo.tasks.mathematics import chain, terms
from bapo.tasks.mathematics import generator as generators
from bapo.tasks.mathematics.splits import BENCHMARKS, TIERS

if TYPE_CHECKING:
    from omegaconf import DictConfig
    from transformers import PreTrainedTokenizerFast

_SIGNS = ("+", "-", "*", "/", "=", ",", "(", ")", terms.X)


class Mathematics(Task):
    name = "mathematics"
    benchmarks: ClassVar[Mapping[str, str]] = {
        **BENCHMARKS,
        "aime24": "AIME24",
        "amc": "AMC",
        "math500": "MATH500",
        "minerva": "Minerva",
        "olympiad": "Olympiad",
    }
    roles: ClassVar[Mapping[str, str]] = {
        "nested_3": "aime24",
        "running_3": "amc",
        "mixed": "math500",
        "equations": "minerva",
        "running_5": "olympiad",
    }
    fields = ("gold", "response")

    def verify(self, response: str, ground_truth: str) -> Verdict:
        truth = _read(ground_truth)
        if truth.get("format") == "chain":
            return chain.verify(response, chain.read_answer(truth))
        if truth.get("format") == "boxed":
            from bapo.graders import mathematics as grader

            return grader.grade(response, truth.get("answers"))
        raise UserError(f"ground truth: 'format' must be chain or boxed, got {truth.get('format')!r}")

    def answer(self, response: str) -> str | None:
        """The last number of a chain of steps, else the boxed answer in the grader's normal form."""
        if chain.is_chain(response):
            given = chain.final_answer(response)
            return None if given is None else str(given)
        from bapo.graders import mathematics as grader

        return grader.answer(response)

    def extract(self, response: str) -> str:
        """The last balanced box outside the thinking, "" where there is none; the paper's format only."""
        from bapo.graders.extract import last_boxed

        return last_boxed(response)

    def gold_responses(self, ground_truth: str) -> Sequence[str]:
        """Every gold in a box of its own, or the end of a chain of steps. Raises UserError for unusable golds."""
        truth = _read(ground_truth)
        if truth.get("format") == "chain":
            return [f"= {chain.read_answer(truth)}"]
        from bapo.graders.extract import boxed
        from bapo.graders.mathematics import check_golds

        return [boxed(gold) for gold in check_golds(truth.get("answers"), "ground truth: 'answers'")]

    def demonstration(self, problem_id: str, prompt: str, ground_truth: str) -> str | None:
        """The steps of a generated problem, one operation each, as the base documents have them; None for others."""
        if _read(ground_truth).get("format") != "chain":
            return None
        from bapo.tasks.mathematics.solver import solve

        return solve(prompt)

    # -------------------------------------------------------------------------------------------- data

    def write_data(self, config: DictConfig, folder: Path, progress: Progress | None = None) -> dict[str, Any]:
        """See :meth:`Task.write_data`. Returns, for each split, problems (or documents) and how they came about."""
        data = config.data
        if data.source == "hub":
            from bapo.tasks.mathematics import hub as mathematics_hub

            return mathematics_hub.write(config, folder, progress)
        say = progress or (lambda text: None)
        if data.prompt != "chain":
            raise UserError(f"data.prompt={data.prompt}: with data.source=generated it must be chain")
        for split, size in data.split_sizes.items():
            if split not in TIERS:
                raise UserError(f"data.split_sizes.{split}: no such split; allowed: {', '.join(TIERS)}")
            if size < 1:
                raise UserError(f"data.split_sizes.{split}={size}: must be at least 1")
        generator = generators.build(data.generator)
        counts: dict[str, Any] = {}
        for split, size in data.split_sizes.items():
            rng = seeds.generator(data.seed, self.name, split)
            if split == "base":
                counts[split] = _write_documents(folder, generator.documents(rng, size))
                say(f"base: {size} documents, {counts[split]['noisy']} with a wrong answer")
                continue
            made = generator.problems(rng, size, split)
            problems = [Problem(m.id, m.prompt, chain.to_ground_truth(m.answer)) for m in made]
            files.write_problems(folder / f"{split}.parquet", problems, self.name, self.name, split)
            counts[split] = {"problems": size, "equations": sum(terms.X in m.prompt for m in made)}
            say(f"{split}: {size} problems")
        return counts

    def build_tokenizer(self, config: DictConfig) -> PreTrainedTokenizerFast:
        """One token a word, for the generated problems."""
        if config.data.source != "generated":
            raise UserError(
                f"data.source={config.data.source}: a model trained from scratch reads data.source=generated only; "
                "choose a pretrained model"
            )
        return tokenizers.build(_SIGNS, generators.build(config.data.generator).value_max)

    def grade_line(self, line: Mapping[str, Any]) -> Verdict:
        """Grade {"gold": text or list of texts, "response": text}, as the paper-scale sets are graded."""
        from bapo.graders import mathematics as grader

        return grader.grade_line(line)


def _read(ground_truth: str) -> dict[str, Any]:
    try:
        truth = json.loads(ground_truth)
    except (ValueError, TypeError, RecursionError):
        truth = None
    if not isinstance(truth, dict):
        raise UserError("ground truth: not a JSON object; make the data again with `python -m bapo data`")
    return truth


def _write_documents(folder: Path, made: list[tuple[generators.Instance, list[terms.Step]]]) -> dict[str, int]:
    files.write_documents(
        folder / "base.parquet",
        [instance.id for instance, _ in made],
        [instance.prompt for instance, _ in made],
        [terms.to_chain(steps) for _, steps in made],
    )
    return {
        "documents": len(made),
        "problems": len({instance.id for instance, _ in made}),
        "equations": sum(terms.X in instance.prompt for instance, _ in made),
        "noisy": sum(steps[-1].result != instance.answer for instance, steps in made),
    }
