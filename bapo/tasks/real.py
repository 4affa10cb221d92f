"""Real sets with a gold answer a row: read into problems, cleaned where no response could be right, and counted."""

from __future__ import annotations

import json
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from bapo import seeds
from bapo.errors import UserError
from bapo.graders.mathematics import check_golds
from bapo.store.files import Json, write_json
from bapo.tasks import files, sources
from bapo.tasks.base import Problem, Task
from bapo.tasks.generated import check_data
from bapo.validate import wrong

if TYPE_CHECKING:
    from bapo.experiments.schema import Config, DataConfig

#: ``data.prompt`` -> the user's message. "boxed" is that of DeepScaleR and of verl's mathematics sets.
PROMPTS = {
    "boxed": "{images}{problem} Let's think step by step and output the final answer within \\boxed{{}}.",
    "think-boxed": (
        "{images}{problem} First think it through inside <think> </think> tags, then give the final answer within "
        "\\boxed{{}}."
    ),
}
#: Written beside the problems: the files that were read, and what was found in them.
REPORT = "cleaning.json"


class Item(NamedTuple):
    """A problem of a real set before its prompt is written.

    id: the set's name, the file where the set is a folder of the user's, and the row; where: its place in a file.
    """

    id: str
    text: str
    golds: tuple[str, ...]
    images: tuple[bytes, ...] = ()
    where: str = ""


class RealTask(Task):
    """A task of real sets: ``train`` and the benchmarks, with the columns ``problem`` and ``answer``."""

    texts_alone: ClassVar[bool] = True  #: whether a text is a whole problem; False: without its diagram it is not

    def items(self, entry: sources.Source, opened: sources.Opened) -> list[Item]:
        """Read one source, whose files were found."""
        return [
            Item(
                f"{entry.name}/{row.place}" if row.place else f"{entry.name}:{row.number}",
                to_text(row, entry),
                to_golds(row.where, _answer(row, entry)),
                where=row.where,
            )
            for row in sources.rows(entry, opened, ("problem", "answer"))
        ]

    def check_golds(self, golds: object, where: str) -> tuple[str, ...]:
        """Return the golds as a tuple. Raises UserError naming ``where`` for none, or one that cannot be read."""
        return check_golds(golds, where)

    def real_prompts(self, prompt: str) -> Mapping[str, str]:
        """Return what ``data.prompt`` may name, here ``prompt``, with the template of each."""
        return PROMPTS

    def read_set(
        self, hub: Json, split: str, prompt: str, sizes: Mapping[str, int], data_folder: str | None
    ) -> list[Problem]:
        entry = sources.source(hub, split)
        items = self.items(entry, sources.find(entry, data_folder))
        return [to_problem(item, self.real_prompts(prompt)[prompt]) for item in items[: sizes[split]]]

    def write_hub(self, config: Config, folder: Path, say: Callable[[str], None]) -> Json:
        """Write ``<split>.parquet`` of every split of ``data.split_sizes`` and the report.

        A size is the most problems that are taken of a set, from its first row on; benchmarks are never cleaned. The
        probe is a sample of training, or, where ``data.hub`` has a source of it, its own rows, which training lacks.
        Images go into the files as the bytes that were read. Returns counts by split.
        Raises UserError naming the key or file and the cure.
        """
        data = config.data
        prompts = self.real_prompts(data.prompt)
        check_data(data, prompts, ("train", "probe", *self.benchmarks))
        if "probe" in data.split_sizes and "train" not in data.split_sizes:
            raise wrong(None, "data.split_sizes.probe", None, "the probe is drawn from training; set train as well")
        opened: list[sources.Opened] = []
        items: dict[str, list[Item]] = {}
        for split in data.split_sizes:
            if split != "probe" or split in data.hub:
                entry = sources.source(data.hub, split)
                opened.append(sources.find(entry, config.paths.data_folder))
                items[split] = self.items(entry, opened[-1])
        if "probe" in items:
            items["probe"] = items["probe"][: data.split_sizes["probe"]]
            kept_out = {item.id for item in items["probe"]}
            items["train"] = [item for item in items["train"] if item.id not in kept_out]
        train, findings = self._cleaned(items)
        selected = _select({**items, "train": train}, data, self.name)
        counts = {}
        for split, kept in selected.items():
            problems = [to_problem(item, prompts[data.prompt]) for item in kept]
            files.write_problems(folder / f"{split}.parquet", problems, self.name, self.name, split)
            counts[split] = {"problems": len(problems), "rows": findings["rows"].get(split, len(train))}
        sizes = {split: len(kept) for split, kept in selected.items()}
        write_json(folder / REPORT, {"files": sources.digests(opened), "problems": sizes, **findings})
        for line in _in_words(findings):
            say(line)
        return counts

    def _cleaned(self, items: Mapping[str, Sequence[Item]]) -> tuple[list[Item], Json]:
        """Return (training problems that stay, findings). Raises UserError for an unusable gold in a benchmark.

        Left out are problems without a gold answer that the grader can read, and prompts that are surely too long.
        """
        train, tests = items.get("train", ()), {name: rows for name, rows in items.items() if name != "train"}
        for name, rows in tests.items():
            for reason in self._unusable(rows).values():
                raise UserError(f"data.hub.{name}: {reason}")
        unusable = self._unusable(train)
        too_long = [item.id for item in train if item.id not in unusable and pieces(item.text) > LONGEST]
        best = iter(overlap(train, [item for rows in tests.values() for item in rows], self.texts_alone))
        shares = {name: list(islice(best, len(rows))) for name, rows in tests.items()}
        return [item for item in train if item.id not in {*unusable, *too_long}], {
            "rows": {name: len(rows) for name, rows in items.items()},
            "unusable_answers": list(unusable),
            "long_prompts": too_long,
            "duplicates": duplicates(train),
            "overlap": {
                name: {
                    "problems": len(found),
                    "any": sum(share > 0 for share in found),
                    "near": sum(share >= NEAR for share in found),
                    "all": sum(share >= 1 for share in found),
                }
                for name, found in shares.items()
            },
        }

    def _unusable(self, items: Iterable[Item]) -> dict[str, str]:
        """Return by id why no response could ever be right: an empty gold, or one that the grader refuses to read."""
        reasons = {}
        for item in items:
            try:
                self.check_golds(item.golds, f"problem {item.id} ({item.where}): column 'answer'")
            except UserError as error:
                reasons[item.id] = str(error)
        return reasons


def to_problem(item: Item, template: str) -> Problem:
    """Write an item's prompt and ground truth; each of several golds is a right answer by itself."""
    prompt = template.format(images=files.PLACEHOLDER * len(item.images), problem=item.text.strip())
    truth = json.dumps({"answers": list(item.golds), "format": "boxed"}, ensure_ascii=False)
    return Problem(item.id, prompt, truth, item.images)


def read_truth(ground_truth: str) -> Json:
    """Read a ground truth. Raises UserError where it is no JSON object."""
    try:
        truth = json.loads(ground_truth)
    except (ValueError, TypeError, RecursionError):
        truth = None
    if not isinstance(truth, dict):
        raise UserError("ground truth: not a JSON object; make the data again with `python -m bapo data`")
    return truth


def to_golds(where: str, value: object) -> tuple[str, ...]:
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


def _answer(row: sources.Row, entry: sources.Source) -> object:
    """Return a row's answer, without the solution before it. Raises UserError where there is no such answer."""
    answer, mark = row.values["answer"], entry.answer_after
    if mark is None:
        return answer
    if not isinstance(answer, str) or mark not in answer:
        raise UserError(f"{row.where}: no '{mark}' in column 'answer'; correct the set or {entry.where}.answer_after")
    return answer.rpartition(mark)[2].strip()


def _select(items: Mapping[str, list[Item]], data: DataConfig, task: str) -> dict[str, list[Item]]:
    """Return the items of each split. A probe without a source is a random sample of training (Figure 15).

    Raises UserError where no problem is left.
    """
    selected: dict[str, list[Item]] = {}
    for split, size in data.split_sizes.items():
        if split == "probe" and split not in data.hub:
            pool = selected.get("train") or items["train"][: data.split_sizes["train"]]
            order = seeds.generator(data.seed, task, "probe").permutation(len(pool))
            selected[split] = [pool[i] for i in order[:size]]
        else:
            selected[split] = items[split][:size]
        if not selected[split]:
            raise wrong(None, f"data.split_sizes.{split}", None, f"no problem is left; check data.hub.{split}")
    return selected


# ------------------------------------------------------------------------------------------------ what is in a set

#: Tokens of the longest prompt (Table 3); a problem that surely has more cannot be trained on.
LONGEST = 2048
#: Share of a benchmark problem's n-grams in one training problem from which the two count as near-duplicates.
NEAR = 0.5
#: Length of the n-grams by which problems are compared.
N = 10
_LAYOUT = re.compile(r"\\left|\\right|\\[,;:! ]|\\text\s*\{([^{}]*)\}|[\s$]+")
_PIECES = re.compile(r"(?:[^\w\s]|_)?[^\W\d_]+|\d|(?:[^\w\s]|_)+")
_DROPPED = re.compile(r"\[asy\].*?\[/asy\]|<[^<>]{1,20}>|\\(?:left|right|displaystyle)(?![a-z])|\\[,;:! ]", re.DOTALL)
_TOKENS = re.compile(r"[^\W\d_]+|\d+|[+\-*/=<>^|!]")


def pieces(text: str) -> int:
    """Count words, digits and runs of signs: Qwen's tokenizers make at least as many tokens of a text."""
    return len(_PIECES.findall(text))


def duplicates(items: Iterable[Item]) -> dict[str, int]:
    """Count problems that stand in several rows, whatever their white space and case, and those whose answers differ.

    conflicting: also after layout is taken away; equal numbers are the grader's affair.
    """
    groups: dict[tuple[str, tuple[bytes, ...]], list[Item]] = defaultdict(list)
    for item in items:
        groups[re.sub(r"\s+", "", unicodedata.normalize("NFKC", item.text)).casefold(), item.images].append(item)
    doubled = [group for group in groups.values() if len(group) > 1]
    return {
        "groups": len(doubled),
        "rows": sum(map(len, doubled)),
        "differing_text": sum(len({item.golds for item in group}) > 1 for group in doubled),
        "conflicting": sum(len({tuple(map(_same_answer, item.golds)) for item in group}) > 1 for group in doubled),
    }


def _same_answer(gold: str) -> str:
    """Write answers that differ in layout only as one text."""
    return _LAYOUT.sub(r"\1", gold.replace("dfrac", "frac").replace("tfrac", "frac")).casefold().rstrip(".")


def overlap(train: Iterable[Item], test: Sequence[Item], short: bool = True) -> list[float]:
    """Return, by problem of ``test``, the largest share of its n-grams that one problem of ``train`` holds.

    short: a text of fewer than N tokens counts as one n-gram, itself; else as none.
    """
    grams = [_grams(item.text, short) for item in test]
    where: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for index, own in enumerate(grams):
        for gram in own:
            where[gram].append(index)
    best = [0.0] * len(grams)
    for item in train:
        common = Counter(index for gram in _grams(item.text, short) for index in where.get(gram, ()))
        for index, held in common.items():
            best[index] = max(best[index], held / len(grams[index]))
    return best


def _grams(text: str, short: bool) -> Collection[tuple[str, ...]]:
    tokens = _TOKENS.findall(_DROPPED.sub(" ", unicodedata.normalize("NFKC", text).lower()))
    if len(tokens) >= N:
        return set(zip(*(tokens[i:] for i in range(N)), strict=False))
    return [tuple(tokens)] if short else []


def _in_words(findings: Json) -> list[str]:
    """Return the findings as sentences."""
    if "train" not in findings["rows"]:
        return []
    doubled = findings["duplicates"]
    return [
        f"left out of training: {len(findings['unusable_answers'])} problems whose answer is empty or unreadable, "
        f"{len(findings['long_prompts'])} of more than {LONGEST} tokens",
        f"duplicates: {doubled['groups']} problems of training stand in {doubled['rows']} rows; the answers differ in "
        f"{doubled['differing_text']} of them, in {doubled['conflicting']} by more than layout",
        *(
            f"overlap with {name}: {found['near']} of {found['problems']} problems are near one of training, "
            f"{found['all']} wholly in one"
            for name, found in findings["overlap"].items()
        ),
    ]
