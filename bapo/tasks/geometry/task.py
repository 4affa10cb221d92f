"""Visual geometry: rendered diagrams for small models, and Geometry3K (the paper's visual task) with boxed answers."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, ClassVar

from bapo.errors import UserError
from bapo.tasks import sources
from bapo.tasks.base import Document, Problem
from bapo.tasks.files import PLACEHOLDER
from bapo.tasks.generated import build_tokenizer, require_worked
from bapo.tasks.geometry import figures, generator
from bapo.tasks.geometry.generator import DiagramGenerator
from bapo.tasks.real import BoxedTask, Item, number_truth, to_golds, to_text

if TYPE_CHECKING:
    import numpy as np
    from transformers import PreTrainedTokenizerFast

    from bapo.experiments.schema import Config, DataConfig

SIGNS = ("+", "-", "=", ",", ":")
#: The words of a question: the figure and the angle that is asked for.
WORDS = ("triangle", "quadrilateral", "parallels", "third", "exterior", "difference", "fourth", "other")
#: The names that transformers, verl and lm-eval expect of Qwen2.5-VL.
VISION = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
NUMBER_MAX = 360  # degrees

#: A message is its content, and an image is a placeholder that the processor repeats for each image token.
CHAT_TEMPLATE = (
    "{% for message in messages %}{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] %}{% if part['type'] == 'image' %}"
    "<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ part['text'] }}{% endif %}{% endfor %}"
    "{% endif %}{% endfor %}"
)

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
    columns = ("images", "problem", "answer")
    roles: ClassVar[Mapping[str, str]] = {"diagrams_val": "geo3k_val", "diagrams_test": "geo3k_test"}
    splits: ClassVar[Mapping[str, Collection[str]]] = {"chain": generator.SPLITS}
    numeric: ClassVar[Mapping[str, tuple[str, str, str]]] = {"chain": ("no number", "wrong answer", "{}")}

    def number(self, response: str, form: str) -> int | None:
        """Return the last whole number of a response's last 4,096 characters; None where there is none."""
        numbers = _NUMBER.findall(response[-_LONGEST:])
        return int(numbers[-1]) if numbers else None

    def steps(self, problem_id: str, prompt: str) -> str:
        """Work out a generated problem from its name, which holds the diagram's angles."""
        return generator.chain(generator.to_instance(problem_id))[0]

    def item(self, row: sources.Row, entry: sources.Source) -> Item:
        """Read a row of Geometry3K: diagrams, a question and its golds. Raises UserError naming the row."""
        images, text = _diagrams(row), to_text(row, entry, without=PLACEHOLDER)
        if not images or text.count(PLACEHOLDER) not in (0, len(images)):
            raise UserError(
                f"{row.where}: {len(images)} diagrams, but the text has {text.count(PLACEHOLDER)} places for them; "
                f"correct the set or {entry.where}.columns"
            )
        name = f"{entry.name}/{entry.where.rpartition('.')[2].removeprefix('geo3k_')}:{row.number}"
        return Item(name, text.replace(PLACEHOLDER, "").strip(), to_golds(row, entry), images, row.where)

    def problems(self, data: DataConfig, split: str, rng: np.random.Generator) -> tuple[list[Problem], dict[str, int]]:
        diagrams = DiagramGenerator.of(data)
        instances = diagrams.instances(rng, data.split_sizes[split], split)
        images = figures.render([instance.diagram for instance in instances], diagrams.canvas)
        return [
            Problem(i.name, i.prompt, number_truth(generator.chain(i)[1]), (image,), i.triple)
            for i, image in zip(instances, images, strict=True)
        ], _by_question(instances)

    def documents(self, data: DataConfig, rng: np.random.Generator) -> tuple[list[Document], dict[str, int]]:
        diagrams = DiagramGenerator.of(data)
        worked = diagrams.documents(rng, data.split_sizes["base"])
        instances = [instance for instance, _, _ in worked]
        images = figures.render([instance.diagram for instance in instances], diagrams.canvas)
        documents = [
            Document(instance.name, instance.prompt, steps, (image,))
            for (instance, steps, _), image in zip(worked, images, strict=True)
        ]
        noisy = sum(noisy for _, _, noisy in worked)
        return documents, {"documents": len(worked), **_by_question(instances), "noisy": noisy}

    def build_tokenizer(self, config: Config) -> PreTrainedTokenizerFast:
        require_worked(config.data)
        return vocabulary()

    def image_size(self, config: Config) -> int:
        """Return the side of the generated diagrams in pixels."""
        return DiagramGenerator.of(config.data).canvas


def vocabulary() -> PreTrainedTokenizerFast:
    """Build a tokenizer for signs, words, the numbers 0..360 and Qwen2.5-VL's image tokens."""
    tokenizer = build_tokenizer((*SIGNS, *WORDS), NUMBER_MAX, special=VISION)
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def _by_question(instances: list[generator.DiagramProblem]) -> dict[str, int]:
    """Count the instances of each question, by its name."""
    return dict(sorted(Counter(instance.question for instance in instances).items()))


def _diagrams(row: sources.Row) -> tuple[bytes, ...]:
    """Return the diagrams of a row: {"bytes", "path"} as on the hub, or names of files in the folder of the row's file.

    Raises UserError naming the row and the diagram.
    """
    value, folder = row.values["images"], row.file.parent.resolve()
    images = []
    for image in value if isinstance(value, list) else [value]:
        if isinstance(image, str):
            path = (folder / image).resolve()
            if not path.is_file() or not path.is_relative_to(folder):
                raise UserError(f"{row.where}: no diagram {image} in {folder}; put it there, or correct the row")
            images.append(path.read_bytes())
        elif isinstance(image, dict) and isinstance(image.get("bytes"), bytes):
            images.append(image["bytes"])
        else:
            raise UserError(f"{row.where}: column 'images' holds no diagram; get the set again")
    return tuple(images)
