"""Mathematics at paper scale: DeepScaleR-Preview to train on; AIME 2024, AMC, MATH-500, Minerva, OlympiadBench."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from bapo import seeds
from bapo.errors import UserError
from bapo.tasks import files
from bapo.tasks.base import Problem, Progress
from bapo.tasks.real import cleaning, sources
from bapo.tasks.real import decisions as cleaning_decisions
from bapo.tasks.real import report as cleaning_report
from bapo.tasks.real.cleaning import Item
from bapo.tasks.real.lock import SourceLock

#: ``data.prompt`` -> the user's message. "boxed" is that of DeepScaleR and of verl's mathematics sets.
PROMPTS = {
    "boxed": "{problem} Let's think step by step and output the final answer within \\boxed{{}}.",
    "think-boxed": (
        "{problem} First think it through inside <think> </think> tags, then give the final answer within \\boxed{{}}."
    ),
}
BENCHMARKS = ("aime24", "amc", "math500", "minerva", "olympiad")
CHOICES = {key: value for key, value in cleaning_decisions.CHOICES.items() if key != "shared_diagrams"}


def write(config: DictConfig, folder: Path, progress: Progress | None = None) -> dict[str, Any]:
    """Write ``<split>.parquet`` of every split of ``data.split_sizes`` and the cleaning report.

    A size is the most problems that are taken of a set, from its first row on; benchmarks are never cleaned.
    Returns counts by split. Raises UserError naming the key or file and the cure.
    """
    from bapo.graders import mathematics as grader

    data, lock = config.data, SourceLock.of(config)
    template = check(data, PROMPTS, ("train", "probe", *BENCHMARKS))
    decisions = cleaning.options(data.get("cleaning") or {}, CHOICES)
    read = {
        split: _items(sources.source(data.hub, split), config.paths.data_folder, lock)
        for split in data.split_sizes
        if split != "probe"
    }
    train, findings = cleaning_decisions.clean(read, decisions, grader.check_golds)
    written = select({**read, "train": train}, data, "mathematics")
    counts = {}
    for split, items in written.items():
        problems = [to_problem(item, template) for item in items]
        files.write_problems(folder / f"{split}.parquet", problems, "mathematics", "mathematics", split)
        counts[split] = {"problems": len(problems), "rows": findings["rows"].get(split, len(train))}
    sizes = {split: len(items) for split, items in written.items()}
    cleaning_report.write(folder, "mathematics", lock.used, decisions, findings, sizes, progress or (lambda text: None))
    lock.save()
    return counts


def read(hub: Mapping[str, Any], split: str, prompt: str, data_folder: str | None, lock: SourceLock) -> list[Problem]:
    """One benchmark's problems, without a configuration. Raises UserError naming the key or file and the cure."""
    return [to_problem(item, PROMPTS[prompt]) for item in _items(sources.source(hub, split), data_folder, lock)]


def to_problem(item: Item, template: str) -> Problem:
    return Problem(item.id, template.format(problem=item.text.strip()), ground_truth(item.golds))


def check(data: DictConfig, prompts: dict[str, str], splits: tuple[str, ...]) -> str:
    """The prompt template, after a look at the keys of ``config.data``. Raises UserError."""
    if data.prompt not in prompts:
        raise UserError(f"data.prompt={data.prompt}: must be one of {', '.join(prompts)}")
    for split, size in data.split_sizes.items():
        if split not in splits:
            raise UserError(f"data.split_sizes.{split}: no such split; allowed: {', '.join(splits)}")
        if size < 1:
            raise UserError(f"data.split_sizes.{split}={size}: must be at least 1")
    if "probe" in data.split_sizes and "train" not in data.split_sizes:
        raise UserError("data.split_sizes.probe: the probe is drawn from the training problems; set train as well")
    return prompts[data.prompt]


def select(read: dict[str, list[Item]], data: DictConfig, task: str) -> dict[str, list[Item]]:
    """The problems of each split. The probe is a random sample of the training problems (Figure 15), always the same.

    Raises UserError where no problem is left.
    """
    chosen = {}
    for split, size in data.split_sizes.items():
        if split == "probe":
            pool = chosen.get("train") or read["train"][: data.split_sizes.train]
            order = seeds.generator(data.seed, task, "probe").permutation(len(pool))
            chosen[split] = [pool[i] for i in order[:size]]
        else:
            chosen[split] = read[split][:size]
        if not chosen[split]:
            raise UserError(f"data.split_sizes.{split}: no problem is left; check data.cleaning and data.hub.{split}")
    return chosen


def ground_truth(golds: tuple[str, ...]) -> str:
    """What the verifier reads. Of several golds each is an answer of its own."""
    return json.dumps({"answers": list(golds), "format": "boxed"}, ensure_ascii=False)


def to_golds(where: str, value: Any) -> tuple[str, ...]:
    """The texts of a gold answer or of a list of alternatives, each once; whole floats (142.0) lose their point.

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


def _items(entry: sources.Source, data_folder: str | None, lock: SourceLock) -> list[Item]:
    items = []
    for row in sources.rows(entry, sources.find(entry, data_folder, lock), ("problem", "answer")):
        text = row.values["problem"]
        if not isinstance(text, str) or not text.strip():
            raise UserError(f"{row.where}: column 'problem' holds no text; correct the set or {entry.where}.columns")
        items.append(Item(f"{entry.name}:{row.index}", text, to_golds(row.where, row.values["answer"])))
    return items
