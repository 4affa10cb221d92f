"""Mathematics: worked arithmetic for small models, and the public sets of the paper with boxed answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from bapo.tasks import tokenizers
from bapo.tasks.base import Document, Problem
from bapo.tasks.boxed import BoxedTask, chain_truth
from bapo.tasks.generated import require_generated
from bapo.tasks.mathematics import chain, generator, hub, solver, splits, terms

if TYPE_CHECKING:
    import numpy as np
    from omegaconf import DictConfig
    from transformers import PreTrainedTokenizerFast

_SIGNS = ("+", "-", "*", "/", "=", ",", "(", ")", terms.X)


class Mathematics(BoxedTask):
    name = ability = "mathematics"
    benchmarks: ClassVar[Mapping[str, str]] = {
        **splits.BENCHMARKS,
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
    splits = splits.TIERS
    noise = "with a wrong answer"
    sets = hub.SETS

    is_chain = staticmethod(chain.is_chain)
    final_number = staticmethod(chain.final_answer)

    def steps(self, problem_id: str, prompt: str) -> str:
        return solver.solve(prompt)

    def problems(self, data: DictConfig, split: str, rng: np.random.Generator) -> tuple[list[Problem], dict[str, int]]:
        instances = generator.build(data.generator).problems(rng, data.split_sizes[split], split)
        problems = [Problem(i.id, i.prompt, chain_truth(i.answer)) for i in instances]
        return problems, {"problems": len(problems), "equations": _equations(instances)}

    def documents(self, data: DictConfig, rng: np.random.Generator) -> tuple[list[Document], dict[str, int]]:
        worked = generator.build(data.generator).documents(rng, data.split_sizes.base)
        instances = [instance for instance, _ in worked]
        return [Document(instance.id, instance.prompt, terms.to_chain(steps)) for instance, steps in worked], {
            "documents": len(worked),
            "problems": len({instance.id for instance in instances}),
            "equations": _equations(instances),
            "noisy": sum(steps[-1].result != instance.answer for instance, steps in worked),
        }

    def build_tokenizer(self, config: DictConfig) -> PreTrainedTokenizerFast:
        """Build a tokenizer of one token a word, for the generated problems."""
        require_generated(config.data)
        return tokenizers.build(_SIGNS, generator.build(config.data.generator).value_max)


def _equations(instances: list[generator.Instance]) -> int:
    return sum(terms.X in instance.prompt for instance in instances)
