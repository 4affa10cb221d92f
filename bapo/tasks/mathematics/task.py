"""Mathematics: worked arithmetic for small models, sums for pretrained ones, and the public sets of the paper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from bapo.graders.verdict import Verdict
from bapo.tasks import tokenizers
from bapo.tasks.base import Document, Problem
from bapo.tasks.boxed import BoxedTask, chain_truth, read_number
from bapo.tasks.generated import require_worked
from bapo.tasks.mathematics import generator, sums, terms
from bapo.tasks.real import read_truth
from bapo.validate import wrong

if TYPE_CHECKING:
    import numpy as np
    from transformers import PreTrainedTokenizerFast

    from bapo.experiments.schema import Config, DataConfig

_SIGNS = ("+", "-", "*", "/", "=", ",", "(", ")", terms.X)


class Mathematics(BoxedTask):
    name = ability = "mathematics"
    benchmarks: ClassVar[Mapping[str, str]] = {
        **generator.BENCHMARKS,
        **sums.BENCHMARKS,
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
    prompts = ("chain", "few-shot")
    splits = tuple(dict.fromkeys((*generator.TIERS, *sums.DIGITS)))

    is_chain = staticmethod(terms.is_chain)
    final_number = staticmethod(terms.final_answer)

    def steps(self, problem_id: str, prompt: str) -> str:
        return generator.solve(prompt)

    def verify(self, response: str, ground_truth: str) -> Verdict:
        truth = read_truth(ground_truth)
        if truth.get("format") == sums.FORMAT:
            return sums.verify(response, read_number(truth))
        return super().verify(response, ground_truth)

    def answer(self, response: str) -> str | None:
        """Return the number that a response is, else what :meth:`BoxedTask.answer` finds."""
        number = sums.number(response)
        return super().answer(response) if number is None else str(number)

    def gold_responses(self, ground_truth: str) -> Sequence[str]:
        truth = read_truth(ground_truth)
        return [str(read_number(truth))] if truth.get("format") == sums.FORMAT else super().gold_responses(ground_truth)

    def demonstration(self, problem_id: str, prompt: str, ground_truth: str) -> str | None:
        """Return the steps of a generated problem, the answer of a sum; None for others."""
        if read_truth(ground_truth).get("format") == sums.FORMAT:
            return self.gold_responses(ground_truth)[0]
        return super().demonstration(problem_id, prompt, ground_truth)

    def problems(self, data: DataConfig, split: str, rng: np.random.Generator) -> tuple[list[Problem], dict[str, int]]:
        few_shot = data.prompt == "few-shot"
        allowed = sums.DIGITS if few_shot else generator.TIERS
        if split not in allowed:
            cure = f"data.prompt={data.prompt} has no such split; it has {', '.join(allowed)}"
            raise wrong(None, f"data.split_sizes.{split}", None, cure)
        if few_shot:
            drawn = sums.Generator.of(data).problems(rng, data.split_sizes[split], split)
            return [Problem(s.id, s.prompt, sums.truth(s.a + s.b)) for s in drawn], {"problems": len(drawn)}
        instances = generator.Generator.of(data).problems(rng, data.split_sizes[split], split)
        problems = [Problem(i.id, i.prompt, chain_truth(i.answer)) for i in instances]
        return problems, {"problems": len(problems), "equations": _equations(instances)}

    def documents(self, data: DataConfig, rng: np.random.Generator) -> tuple[list[Document], dict[str, int]]:
        require_worked(data)
        worked = generator.Generator.of(data).documents(rng, data.split_sizes["base"])
        instances = [instance for instance, _ in worked]
        return [Document(instance.id, instance.prompt, terms.to_chain(steps)) for instance, steps in worked], {
            "documents": len(worked),
            "problems": len({instance.id for instance in instances}),
            "equations": _equations(instances),
            "noisy": sum(steps[-1].result != instance.answer for instance, steps in worked),
        }

    def build_tokenizer(self, config: Config) -> PreTrainedTokenizerFast:
        """Build a tokenizer of one token a word, for the generated problems."""
        require_worked(config.data)
        return tokenizers.build(_SIGNS, generator.Generator.of(config.data).value_max)


def _equations(instances: list[generator.Instance]) -> int:
    return sum(terms.X in instance.prompt for instance in instances)
