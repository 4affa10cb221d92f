"""Real sets with a gold answer a row: read into problems, and without the rows that nobody could train on."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from bapo import seeds
from bapo.errors import UserError
from bapo.graders import mathematics
from bapo.graders.extract import boxed
from bapo.graders.verdict import RIGHT, Verdict
from bapo.store.files import Json, write_json
from bapo.tasks import files, sources
from bapo.tasks.base import Problem, Task
from bapo.tasks.checks import TaskFault, grade_golds
from bapo.tasks.generated import GeneratedTask, check_data
from bapo.validate import wrong

if TYPE_CHECKING:
    from bapo.experiments.schema import Config

#: ``data.prompt`` -> the user's message. "boxed" is that of DeepScaleR and of verl's mathematics sets.
PROMPTS = {
    "boxed": "{images}{problem} Let's think step by step and output the final answer within \\boxed{{}}.",
    "think-boxed": (
        "{images}{problem} First think it through inside <think> </think> tags, then give the final answer within "
        "\\boxed{{}}."
    ),
}
#: Written beside the problems: the files that were read, and the rows that were left out.
REPORT = "cleaning.json"
#: Tokens of the longest prompt (Table 3); a problem that surely has more cannot be trained on.
LONGEST = 2048
#: Words, digits and runs of signs: Qwen's tokenizers make at least as many tokens of a text.
_PIECES = re.compile(r"(?:[^\w\s]|_)?[^\W\d_]+|\d|(?:[^\w\s]|_)+")


class Item(NamedTuple):
    """Holds a problem of a real set before its prompt is written. where: its place in a file, for messages."""

    id: str
    text: str
    golds: tuple[str, ...]
    images: tuple[bytes, ...] = ()
    where: str = ""


class RealTask(Task):
    """Reads real sets: ``train`` and the benchmarks, with the columns ``problem`` and ``answer``."""

    columns: ClassVar[Sequence[str]] = ("problem", "answer")  #: that are read

    def item(self, row: sources.Row, entry: sources.Source) -> Item:
        """Read one row. Raises UserError naming it."""
        return Item(row.id, to_text(row, entry), to_golds(row, entry), where=row.where)

    def check_golds(self, golds: object, where: str) -> tuple[str, ...]:
        """Return the golds as a tuple. Raises UserError naming ``where`` for none, or one that cannot be read."""
        return mathematics.check_golds(golds, where)

    def real_prompts(self, prompt: str) -> Mapping[str, str]:
        """Return what ``data.prompt`` may name, here ``prompt``, with the template of each."""
        return PROMPTS

    def read_set(
        self, hub: Json, split: str, prompt: str, sizes: Mapping[str, int], data_folder: str | None
    ) -> list[Problem]:
        entry = sources.source(hub, split)
        rows, _ = sources.read_rows(entry, data_folder, self.columns)
        return [to_problem(self.item(row, entry), self.real_prompts(prompt)[prompt]) for row in rows[: sizes[split]]]

    def write_hub(self, config: Config, folder: Path) -> Json:
        """Write ``<split>.parquet`` of every split of ``data.split_sizes`` and the report.

        A size is the most problems that are taken of a set, from its first row on; benchmarks are never cleaned. The
        probe is a random sample of training (Figure 15), or, where ``data.hub`` has a source of it, its own rows, which
        training lacks. Images go into the files as the bytes that were read. Returns counts by split.
        Raises UserError naming the key or file and the cure.
        """
        data, sizes = config.data, config.data.split_sizes
        prompts = self.real_prompts(data.prompt)
        check_data(data, prompts, ("train", "probe", *self.benchmarks))
        if "probe" in sizes and "train" not in sizes:
            raise wrong(None, "data.split_sizes.probe", None, "the probe is drawn from training; set train as well")
        digests: dict[str, str] = {}
        items: dict[str, list[Item]] = {}
        places: dict[str, list[str]] = {}
        for split in sizes:
            if split != "probe" or split in data.hub:
                entry = sources.source(data.hub, split)
                source_rows, file_digests = sources.read_rows(entry, config.paths.data_folder, self.columns)
                items[split] = [self.item(row, entry) for row in source_rows]
                places[split] = [row.where for row in source_rows]
                digests |= file_digests
        rows = {split: len(split_items) for split, split_items in items.items()}
        if "probe" in items:
            items["probe"] = items["probe"][: sizes["probe"]]
            asked = set(places["probe"][: sizes["probe"]])
            train_rows = zip(items["train"], places["train"], strict=True)
            items["train"] = [item for item, place in train_rows if place not in asked]
            if shared := {item.id for item in items["probe"]} & {item.id for item in items["train"]}:
                cure = "name one file in both, or give one a `set` (and a `file` in paths.data_folder)"
                cure = f"{min(shared)} is a row of each, in different files; {cure}"
                raise wrong(None, "data.hub.train and data.hub.probe", None, cure)
        unusable: list[str] = []
        too_long: list[str] = []
        for split, split_items in items.items():
            for item in split_items:
                try:
                    self.check_golds(item.golds, "column 'answer'")
                    grade_golds(self, to_problem(item, "").ground_truth)
                except UserError as error:  # no response could ever be right
                    if split != "train" or isinstance(error, TaskFault):
                        raise UserError(f"data.hub.{split}: problem {item.id} ({item.where}): {error}") from error
                    unusable.append(item.id)
        if "train" in items:
            train = [item for item in items["train"] if item.id not in unusable]
            too_long = [item.id for item in train if len(_PIECES.findall(item.text)) > LONGEST]
            items["train"] = [item for item in train if item.id not in too_long]
        if "probe" in sizes and "probe" not in items:
            pool = items["train"][: sizes["train"]]
            order = seeds.generator(data.seed, self.name, "probe").permutation(len(pool))
            items["probe"] = [pool[i] for i in order]
        counts = {}
        for split, size in sizes.items():
            problems = [to_problem(item, prompts[data.prompt]) for item in items[split][:size]]
            if not problems:
                raise wrong(None, f"data.split_sizes.{split}", None, f"no problem is left; check data.hub.{split}")
            files.write_problems(folder / f"{split}.parquet", problems, self.name, self.name, split)
            counts[split] = {"problems": len(problems), "rows": rows.get(split, len(items.get("train", ())))}
        report = {"files": digests, "unusable_answers": unusable, "long_prompts": too_long, "rows": rows}
        report["problems"] = {split: count["problems"] for split, count in counts.items()}
        write_json(folder / REPORT, report)
        return counts


def to_problem(item: Item, template: str) -> Problem:
    """Write an item's prompt and ground truth; each of several golds is a right answer by itself."""
    prompt = template.format(images=files.PLACEHOLDER * len(item.images), problem=item.text.strip())
    truth = json.dumps({"answers": list(item.golds), "format": "boxed"}, ensure_ascii=False)
    return Problem(item.id, prompt, truth, item.images)


def to_golds(row: sources.Row, entry: sources.Source) -> tuple[str, ...]:
    """Return the texts of a row's gold or of its alternatives, each once; whole floats (142.0) lose their point.

    Raises UserError for what is neither text nor a finite number, and for a text without ``answer_after``.
    """
    value, mark = row.values["answer"], entry.answer_after
    if mark is not None:
        if not isinstance(value, str) or mark not in value:
            cure = f"correct the set or {entry.where}.answer_after"
            raise UserError(f"{row.where}: no '{mark}' in column 'answer'; {cure}")
        value = value.rpartition(mark)[2]
    texts = []
    for gold in value if isinstance(value, list) else [value]:
        if isinstance(gold, bool) or not isinstance(gold, (str, int, float, type(None))):
            kind = type(gold).__name__
            raise UserError(f"{row.where}: an answer must be text, a number or a list of them, not {kind}")
        if isinstance(gold, float) and not math.isfinite(gold):
            raise UserError(f"{row.where}: an answer is {gold}, no finite number; correct it, or put it in quotes")
        if isinstance(gold, float) and gold.is_integer():
            gold = int(gold)
        texts.append("" if gold is None else str(gold).strip())
    return tuple(dict.fromkeys(texts)) or ("",)


def to_text(row: sources.Row, entry: sources.Source, without: str = "") -> str:
    """Return a row's problem, ``without`` taken out. Raises UserError where nothing is left."""
    text = row.values["problem"]
    if not isinstance(text, str) or not text.replace(without, "").strip():
        raise UserError(f"{row.where}: column 'problem' holds no text; correct the set or {entry.where}.columns")
    return text


# ------------------------------------------------------------------------------------------------ two formats


class BoxedTask(RealTask, GeneratedTask):
    """Grades several formats: "boxed" as the paper's sets, and others by a number alone."""

    #: format -> reasons of verdicts on no number and on a wrong one, and the shortest response that is right
    numeric: ClassVar[Mapping[str, tuple[str, str, str]]] = {"chain": ("no-answer", "wrong-answer", "= {}")}

    def number(self, response: str, form: str) -> int | None:
        """Return the number that a response in this format gives, such as a chain's last; None where there is none."""
        raise NotImplementedError

    def steps(self, problem_id: str, prompt: str) -> str:
        """Work out a generated problem, one operation each, as the base documents have them."""
        raise NotImplementedError

    def verify(self, response: str, ground_truth: str) -> Verdict:
        truth = json.loads(ground_truth)
        form = truth["format"]
        if form == "boxed":
            return mathematics.grade(response, truth["answers"])
        number = self.number(response, form)
        no_number, wrong_number, _ = self.numeric[form]
        if number is None:
            return Verdict(False, False, no_number)
        return RIGHT if number == truth["answer"] else Verdict(False, True, wrong_number)

    def gold_responses(self, ground_truth: str) -> Sequence[str]:
        """Return every gold in a box, or the shortest right response. Raises UserError for unusable golds."""
        truth = json.loads(ground_truth)
        if truth["format"] in self.numeric:
            return [self.numeric[truth["format"]][2].format(truth["answer"])]
        return [boxed(gold) for gold in mathematics.check_golds(truth["answers"], "ground truth: 'answers'")]

    def demonstration(self, problem_id: str, prompt: str, ground_truth: str) -> str | None:
        """Return the steps of a generated problem, the number of another one; None for public sets."""
        form = json.loads(ground_truth)["format"]
        if form == "chain":
            return self.steps(problem_id, prompt)
        return self.gold_responses(ground_truth)[0] if form in self.numeric else None

    grade_line = staticmethod(mathematics.grade_line)


def number_truth(answer: int, form: str = "chain") -> str:
    """Write the ground truth of a generated problem."""
    return json.dumps({"answer": answer, "format": form})
