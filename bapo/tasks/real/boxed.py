"""Reading real sets with a gold answer a row, of mathematics, of geometry and of a user's own, into problems."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bapo import seeds
from bapo.errors import UserError
from bapo.graders.mathematics import check_golds
from bapo.tasks import files
from bapo.tasks.base import Problem, Progress
from bapo.tasks.generated import check_data
from bapo.tasks.real import cleaning, decisions, sources
from bapo.tasks.real.cleaning import Item

if TYPE_CHECKING:
    from omegaconf import DictConfig


#: ``data.prompt`` -> the user's message. "boxed" is that of DeepScaleR and of verl's mathematics sets.
PROMPTS = {
    "boxed": "{images}{problem} Let's think step by step and output the final answer within \\boxed{{}}.",
    "think-boxed": (
        "{images}{problem} First think it through inside <think> </think> tags, then give the final answer within "
        "\\boxed{{}}."
    ),
}


@dataclass(frozen=True)
class RealSets:
    """A task's real sets: ``train`` and the benchmarks.

    choices: decisions of ``data.cleaning`` -> allowed values, the first of them the default.
    items: reads one source, whose files were found.
    texts_alone: a text is a whole problem; False: without its diagram it is not.
    prompts: what ``data.prompt`` may name -> template; check: returns golds as a tuple or raises UserError.
    """

    task: str
    benchmarks: tuple[str, ...]
    choices: Mapping[str, Sequence[str]]
    items: Callable[[sources.Source, sources.Opened], list[Item]]
    texts_alone: bool = True
    prompts: Mapping[str, str] = field(default_factory=lambda: PROMPTS)
    check: Callable[[Any, str], tuple[str, ...]] = check_golds

    def write(self, config: DictConfig, folder: Path, progress: Progress | None = None) -> dict[str, Any]:
        """Write ``<split>.parquet`` of every split of ``data.split_sizes`` and the cleaning report.

        A size is the most problems that are taken of a set, from its first row on; benchmarks are never cleaned. The
        probe is a sample of training, or, where ``data.hub`` has a source of it, its own rows, which training lacks.
        Images go into the files as the bytes that were read. Returns counts by split.
        Raises UserError naming the key or file and the cure.
        """
        data = config.data
        opened: list[sources.Opened] = []
        items: dict[str, list[Item]] = {}
        say = progress or (lambda text: None)
        check_data(data, "hub", self.prompts, ("train", "probe", *self.benchmarks))
        if "probe" in data.split_sizes and "train" not in data.split_sizes:
            raise UserError("data.split_sizes.probe: the probe is drawn from the training problems; set train as well")
        chosen = cleaning.options(data.cleaning, self.choices)
        for split in data.split_sizes:
            if split != "probe" or split in data.hub:
                source = sources.source(data.hub, split)
                opened.append(sources.find(source, config.paths.data_folder))
                items[split] = self.items(source, opened[-1])
        if "probe" in items:
            items["probe"] = items["probe"][: data.split_sizes.probe]
            kept_out = {item.id for item in items["probe"]}
            items["train"] = [item for item in items["train"] if item.id not in kept_out]
        train, findings = decisions.clean(items, chosen, self.check, self.texts_alone)
        selected = _select({**items, "train": train}, data, self.task)
        counts = {}
        for split, kept in selected.items():
            problems = [to_problem(item, self.prompts[data.prompt]) for item in kept]
            files.write_problems(folder / f"{split}.parquet", problems, self.task, self.task, split)
            counts[split] = {"problems": len(problems), "rows": findings["rows"].get(split, len(train))}
        sizes = {split: len(kept) for split, kept in selected.items()}
        decisions.write_report(folder, self.task, sources.digests(opened), chosen, findings, sizes, say)
        return counts

    def read(self, hub: Mapping[str, Any], split: str, prompt: str, data_folder: str | None) -> list[Problem]:
        """Read one benchmark without a configuration. Raises UserError naming the key or file and the cure."""
        source = sources.source(hub, split)
        items = self.items(source, sources.find(source, data_folder))
        return [to_problem(item, self.prompts[prompt]) for item in items]


def to_problem(item: Item, template: str) -> Problem:
    """Write an item's prompt and ground truth; each of several golds is a right answer by itself."""
    prompt = template.format(images="<image>" * len(item.images), problem=item.text.strip())
    truth = json.dumps({"answers": list(item.golds), "format": "boxed"}, ensure_ascii=False)
    return Problem(item.id, prompt, truth, item.images)


def read_truth(ground_truth: str) -> dict[str, Any]:
    """Read a ground truth of either format. Raises UserError where it is no JSON object."""
    try:
        truth = json.loads(ground_truth)
    except (ValueError, TypeError, RecursionError):
        truth = None
    if not isinstance(truth, dict):
        raise UserError("ground truth: not a JSON object; make the data again with `python -m bapo data`")
    return truth


def to_golds(where: str, value: Any) -> tuple[str, ...]:
    """Return the texts of a gold or of a list of alternatives, each once; whole floats (142.0) lose their point.

    Raises UserError for what is neither text nor a number.
    """
    texts = []
    for one in value if isinstance(value, list) else [value]:
        if isinstance(one, bool) or not isinstance(one, (str, int, float, type(None))):
            raise UserError(f"{where}: an answer must be text, a number or a list of them, not {type(one).__name__}")
        if isinstance(one, float) and one.is_integer():
            one = int(one)
        texts.append("" if one is None else str(one).strip())
    return tuple(dict.fromkeys(texts)) or ("",)


def to_text(row: sources.Row, entry: sources.Source, without: str = "") -> str:
    """Return a row's problem, ``without`` taken out. Raises UserError where nothing is left."""
    text = row.values["problem"]
    if not isinstance(text, str) or not text.replace(without, "").strip():
        raise UserError(f"{row.where}: column 'problem' holds no text; correct the set or {entry.where}.columns")
    return text


def _select(items: Mapping[str, list[Item]], data: DictConfig, task: str) -> dict[str, list[Item]]:
    """Return the items of each split. A probe without a source is a random sample of training (Figure 15).

    Raises UserError where no problem is left.
    """
    selected: dict[str, list[Item]] = {}
    for split, size in data.split_sizes.items():
        if split == "probe" and split not in data.hub:
            pool = selected.get("train") or items["train"][: data.split_sizes.train]
            order = seeds.generator(data.seed, task, "probe").permutation(len(pool))
            selected[split] = [pool[i] for i in order[:size]]
        else:
            selected[split] = items[split][:size]
        if not selected[split]:
            raise UserError(f"data.split_sizes.{split}: no problem is left; check data.cleaning and data.hub.{split}")
    return selected
