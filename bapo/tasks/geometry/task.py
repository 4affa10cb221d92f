"""Visual geometry: rendered diagrams for small models, and Geometry3K (the paper's visual task) with boxed answers."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from bapo import seeds
from bapo.errors import UserError
from bapo.graders.verdict import Verdict
from bapo.tasks import files
from bapo.tasks.base import Problem, Progress, Task
from bapo.tasks.geometry import generator as generators
from bapo.tasks.geometry import render as geometry_render
from bapo.tasks.geometry import tokenizer as geometry_tokenizer

if TYPE_CHECKING:
    from omegaconf import DictConfig
    from transformers import PreTrainedTokenizerFast

_NUMBER = re.compile("[0-9]+")
#: Longest text that is searched for an answer; the longest chain has some 40 characters.
_LONGEST = 4096


class Geometry(Task):
    name = "geometry"
    benchmarks: ClassVar[Mapping[str, str]] = {
        "diagrams_val": "Diagrams(val)",
        "diagrams_test": "Diagrams(test)",
        "geo3k_val": "Geo-3K(val)",
        "geo3k_test": "Geo-3K(test)",
    }
    roles: ClassVar[Mapping[str, str]] = {"diagrams_val": "geo3k_val", "diagrams_test": "geo3k_test"}
    fields = ("gold", "response")

    def verify(self, response: str, ground_truth: str) -> Verdict:
        truth = _read(ground_truth)
        if truth.get("format") == "chain":
            answer = truth.get("answer")
            if type(answer) is not int:
                raise UserError(f"ground truth: 'answer' must be a whole number, got {answer!r}")
            given = last_number(response)
            if given is None:
                return Verdict(False, False, "no number")
            return Verdict(given == answer, True, "" if given == answer else "wrong answer")
        if truth.get("format") == "boxed":
            from bapo.graders import geometry as grader

            return grader.grade(response, truth.get("answers"), truth.get("choices"))
        raise UserError(f"ground truth: 'format' must be chain or boxed, got {truth.get('format')!r}")

    def answer(self, response: str) -> str | None:
        """The last number of a chain of steps, else the boxed answer in the grader's normal form."""
        if "boxed" not in response:
            given = last_number(response)
            return None if given is None else str(given)
        from bapo.graders import geometry as grader

        return grader.answer(response)

    def extract(self, response: str) -> str:
        """The last balanced box outside the thinking, "" where there is none; the paper's format only."""
        from bapo.graders.extract import last_boxed

        return last_boxed(response)

    def gold_responses(self, ground_truth: str) -> Sequence[str]:
        truth = _read(ground_truth)
        if truth.get("format") == "chain":
            return (str(truth.get("answer")),)
        from bapo.graders.extract import boxed
        from bapo.graders.geometry import check_golds

        return tuple(boxed(gold) for gold in check_golds(truth.get("answers"), "ground truth: 'answers'"))

    def demonstration(self, problem_id: str, prompt: str, ground_truth: str) -> str | None:
        """The steps to a generated diagram's answer; the problem's name holds its angles. None for other problems."""
        if _read(ground_truth).get("format") != "chain":
            return None
        return generators.chain(generators.to_instance(problem_id))[0]

    # -------------------------------------------------------------------------------------------- data

    def write_data(self, config: DictConfig, folder: Path, progress: Progress | None = None) -> dict[str, Any]:
        """See :meth:`Task.write_data`. Returns, for each split, problems (or documents) by kind of diagram."""
        data = config.data
        if data.source == "hub":
            from bapo.tasks.geometry import hub as geometry_hub

            return geometry_hub.write(config, folder, progress)
        say = progress or (lambda text: None)
        if data.prompt != "chain":
            raise UserError(f"data.prompt={data.prompt}: with data.source=generated it must be chain")
        for split, size in data.split_sizes.items():
            if split not in generators.SHARES:
                raise UserError(f"data.split_sizes.{split}: no such split; allowed: {', '.join(generators.SHARES)}")
            if size < 1:
                raise UserError(f"data.split_sizes.{split}={size}: must be at least 1")
        generator = generators.build(data.generator)
        counts: dict[str, Any] = {}
        for split, size in data.split_sizes.items():
            rng = seeds.generator(data.seed, self.name, split)
            write = _write_documents if split == "base" else _write_problems
            counts[split] = write(folder / f"{split}.parquet", generator, rng, size, split)
            say(f"{split}: {size} {'documents' if split == 'base' else 'problems'}")
        return counts

    # -------------------------------------------------------------------------------------------- the rest

    def build_tokenizer(self, config: DictConfig) -> PreTrainedTokenizerFast:
        """One token a word and a number, for the generated diagrams."""
        if config.data.source != "generated":
            raise UserError(
                f"data.source={config.data.source}: a model trained from scratch reads data.source=generated only; "
                "choose a pretrained model"
            )
        return geometry_tokenizer.build()

    def build_processor(self, config: DictConfig, tokenizer: PreTrainedTokenizerFast) -> Any:
        """Qwen2.5-VL's processor for the diagrams' size and the model's patches."""
        from omegaconf import OmegaConf

        vision = OmegaConf.select(config, "model.architecture.vision_config")
        if vision is None:
            raise UserError(
                f"model={config.model.name}: this model reads no images (no architecture.vision_config), which "
                "task=geometry needs"
            )
        size = generators.build(config.data.generator).canvas
        return geometry_tokenizer.build_processor(tokenizer, OmegaConf.to_container(vision, resolve=True), size)

    def grade_line(self, line: Mapping[str, Any]) -> Verdict:
        """Grade {"gold": text or list of texts, "response": text}, as Geometry3K is graded."""
        from bapo.graders import geometry as grader

        return grader.grade_line(line)

    def second_line(self, line: Mapping[str, Any]) -> Verdict | None:
        from bapo.graders import geometry as grader

        return grader.second_line(line)

    def second_opinion(self, response: str, ground_truth: str) -> Verdict | None:
        """The independent grader of :mod:`bapo.graders.second`; for the paper's format only."""
        truth = _read(ground_truth)
        if truth.get("format") != "boxed":
            return None
        from bapo.graders import geometry as grader

        return grader.second_opinion(response, truth.get("answers"), truth.get("choices"))


def last_number(response: str) -> int | None:
    """The last whole number of a chain of steps (of its last 4,096 characters); None where there is none."""
    numbers = _NUMBER.findall(response[-_LONGEST:])
    return int(numbers[-1]) if numbers else None


def _read(ground_truth: str) -> dict[str, Any]:
    try:
        truth = json.loads(ground_truth)
    except (ValueError, TypeError, RecursionError):
        truth = None
    if not isinstance(truth, dict):
        raise UserError("ground truth: not a JSON object; make the data again with `python -m bapo data`")
    return truth


def _write_problems(
    path: Path, generator: generators.DiagramGenerator, rng: Any, size: int, split: str
) -> dict[str, int]:
    made = generator.instances(rng, size, split)
    images = geometry_render.render([instance.diagram for instance in made], generator.canvas)
    problems = [
        Problem(i.name, i.prompt, json.dumps({"answer": generators.chain(i)[1], "format": "chain"}), (image,))
        for i, image in zip(made, images, strict=True)
    ]
    files.write_problems(path, problems, Geometry.name, Geometry.name, split)
    return {"problems": size, **_kinds(made)}


def _write_documents(
    path: Path, generator: generators.DiagramGenerator, rng: Any, size: int, split: str
) -> dict[str, int]:
    made = generator.documents(rng, size)
    instances = [instance for instance, _, _ in made]
    images = geometry_render.render([instance.diagram for instance in instances], generator.canvas)
    names, prompts = [i.name for i in instances], [i.prompt for i in instances]
    files.write_documents(path, names, prompts, [steps for _, steps, _ in made], images)
    return {"documents": size, **_kinds(instances), "noisy": sum(noisy for _, _, noisy in made)}


def _kinds(made: list[generators.Instance]) -> dict[str, int]:
    return {question: sum(i.question == question for i in made) for question in sorted({i.question for i in made})}
