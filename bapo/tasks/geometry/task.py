"""Visual geometry: rendered diagrams for small models, and Geometry3K (the paper's visual task) with boxed answers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from bapo.errors import UserError
from bapo.graders import geometry as grader
from bapo.graders.verdict import Verdict
from bapo.tasks.base import Document, Problem
from bapo.tasks.boxed import BoxedTask, chain_truth
from bapo.tasks.generated import require_worked
from bapo.tasks.geometry import generator, hub, render
from bapo.tasks.geometry import tokenizer as tokenizers

if TYPE_CHECKING:
    import numpy as np
    from omegaconf import DictConfig
    from transformers import PreTrainedTokenizerFast

_NUMBER = re.compile("[0-9]+")
#: Longest text that is searched for an answer; the longest chain has some 40 characters.
_LONGEST = 4096


class Geometry(BoxedTask):
    name = ability = "geometry"
    benchmarks: ClassVar[Mapping[str, str]] = {
        "diagrams_val": "Diagrams(val)",
        "diagrams_test": "Diagrams(test)",
        "geo3k_val": "Geo-3K(val)",
        "geo3k_test": "Geo-3K(test)",
    }
    images = True
    roles: ClassVar[Mapping[str, str]] = {"diagrams_val": "geo3k_val", "diagrams_test": "geo3k_test"}
    splits = generator.SHARES
    sets = hub.SETS
    no_number, wrong_number = "no number", "wrong answer"
    gold_chain = "{}"

    def is_chain(self, response: str) -> bool:
        return "boxed" not in response

    def final_number(self, response: str) -> int | None:
        """Return the last whole number of a response's last 4,096 characters; None where there is none."""
        numbers = _NUMBER.findall(response[-_LONGEST:])
        return int(numbers[-1]) if numbers else None

    def steps(self, problem_id: str, prompt: str) -> str:
        """Work out a generated problem from its name, which holds the diagram's angles."""
        return generator.chain(generator.to_instance(problem_id))[0]

    def grade(self, response: str, truth: Mapping[str, Any]) -> Verdict:
        return grader.grade(response, truth.get("answers"), truth.get("choices"))

    grade_line = staticmethod(grader.grade_line)

    def problems(self, data: DictConfig, split: str, rng: np.random.Generator) -> tuple[list[Problem], dict[str, int]]:
        diagrams = generator.build(data.generator)
        instances = diagrams.instances(rng, data.split_sizes[split], split)
        images = render.render([instance.diagram for instance in instances], diagrams.canvas)
        return [
            Problem(i.name, i.prompt, chain_truth(generator.chain(i)[1]), (image,), i.triple)
            for i, image in zip(instances, images, strict=True)
        ], {"problems": len(instances), **_by_question(instances)}

    def documents(self, data: DictConfig, rng: np.random.Generator) -> tuple[list[Document], dict[str, int]]:
        diagrams = generator.build(data.generator)
        worked = diagrams.documents(rng, data.split_sizes.base)
        instances = [instance for instance, _, _ in worked]
        images = render.render([instance.diagram for instance in instances], diagrams.canvas)
        documents = [
            Document(instance.name, instance.prompt, steps, (image,))
            for (instance, steps, _), image in zip(worked, images, strict=True)
        ]
        noisy = sum(noisy for _, _, noisy in worked)
        return documents, {"documents": len(worked), **_by_question(instances), "noisy": noisy}

    def build_tokenizer(self, config: DictConfig) -> PreTrainedTokenizerFast:
        """Build a tokenizer of one token a word and a number, for the generated diagrams."""
        require_worked(config.data)
        return tokenizers.build()

    def build_processor(self, config: DictConfig, tokenizer: PreTrainedTokenizerFast) -> Any:
        """Build Qwen2.5-VL's processor for the diagrams' size and the model's patches."""
        from omegaconf import OmegaConf

        vision = OmegaConf.select(config, "model.architecture.vision_config")
        if vision is None:
            raise UserError(
                f"model={config.model.name}: this model reads no images (no architecture.vision_config), which "
                "task=geometry needs"
            )
        size = generator.build(config.data.generator).canvas
        return tokenizers.build_processor(tokenizer, OmegaConf.to_container(vision, resolve=True), size)


def _by_question(instances: list[generator.Instance]) -> dict[str, int]:
    """Count the instances of each question, by its name."""
    names = [instance.question for instance in instances]
    return {question: names.count(question) for question in sorted(set(names))}
