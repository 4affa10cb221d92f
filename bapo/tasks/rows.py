"""A task without code: rows of a file or a set of the hub with a prompt and a gold answer, graded as the YAML says."""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bapo.errors import UserError
from bapo.graders import mathematics, user
from bapo.graders.extract import boxed, last_box, without_thinking
from bapo.graders.verdict import NO_ANSWER, RIGHT, WRONG, Verdict
from bapo.project import code_digest, file_and_name
from bapo.tasks.base import Progress, Task
from bapo.tasks.files import read_problems
from bapo.tasks.mathematics.hub import items
from bapo.tasks.real import decisions
from bapo.tasks.real.boxed import PROMPTS, RealSets, read_truth

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from bapo.experiments.schema import TaskConfig

#: what ``data.prompt`` may name, or be: a text with a place for {problem}
_PLAIN = {"plain": "{images}{problem}"}
_TAG = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
#: Longer answers are wrong.
_LONGEST = 2000


def _tagged(response: str) -> str | None:
    found = _TAG.findall(without_thinking(response)[-20_000:])
    return found[-1].strip() if found else None


def _last_line(response: str) -> str | None:
    lines = [line.strip() for line in without_thinking(response)[-20_000:].splitlines() if line.strip()]
    return lines[-1] if lines else None


#: ``answer_in`` -> the answer of a response, None where there is none
PLACES: Mapping[str, Callable[[str], str | None]] = {
    "box": last_box,
    "tag": _tagged,
    "last-line": _last_line,
    "all": lambda response: without_thinking(response).strip() or None,
}


def place_name(place: Callable[[str], str | None]) -> str:
    return next(name for name, known in PLACES.items() if known is place)


def wrapped(place: Callable[[str], str | None], answer: str) -> str:
    """Return a response that has the answer where ``place`` looks for it."""
    return {"box": boxed, "tag": "<answer>{}</answer>".format}.get(place_name(place), str)(answer)


def prompts_of(prompt: str) -> dict[str, str]:
    """Return what ``data.prompt`` may name, with ``prompt`` itself where it is a text with a place for {problem}.

    Raises UserError where it has another place.
    """
    prompts = {**PROMPTS, **_PLAIN}
    if "{problem}" in prompt:
        try:
            others = {field for _, field, _, _ in string.Formatter().parse(prompt) if field is not None}
        except ValueError as error:
            raise UserError(f"data.prompt: {error}; write {{{{ and }}}} for braces that stay") from None
        if others := others - {"problem", "images"}:
            places = ", ".join(f"{{{field}}}" for field in sorted(others))
            raise UserError(
                f"data.prompt: has a place {places}; only {{problem}} and {{images}} can be filled in, and braces that "
                "stay are written {{ and }}"
            )
        prompts[prompt] = prompt
    return prompts


def _folded(text: str) -> str:
    return " ".join(text.split())


def _choice(text: str) -> str | None:
    """Return the letter that an answer is: ``B``, ``(b)``, ``B.`` or ``B) because``; None for anything else."""
    found = re.match(r"\(?([A-Za-z])(?:$|[).:,\s])", text.strip())
    return found[1].upper() if found else None


class RowsTask(Task):
    """Rows with the columns ``problem`` and ``answer`` (``data.hub.SPLIT.columns`` names others).

    answers: mathematics, exact (the same words), choice (a letter) or function (``FILE.py:NAME``, called with the
    response's answer and the gold in a process with limits of time and memory).
    """

    fields = ("gold", "response")
    revision = 1  # 0 let the splits of a folder share ids, and a probe of its own took rows from training

    def __init__(self, content: TaskConfig, path: Path) -> None:
        if not content.benchmarks:
            raise UserError(f"{path}: benchmarks is empty; map at least one test split to its title in tables")
        if (content.answers == "function") != bool(content.function):
            raise UserError(
                f"{path}: function: names the Python function (FILE.py:NAME) of answers: function, else nothing"
            )
        self.name, self.path = content.name, path  # type: ignore[misc]
        self.benchmarks = dict(content.benchmarks)  # type: ignore[misc]
        self.answers, self.find_answer = content.answers, PLACES[content.answer_in]
        self.function = file_and_name(content.function, f"{path}: function") if content.function else None

    def content(self) -> dict[str, Any]:
        """Return what decides the grades."""
        return {
            "answers": self.answers,
            "place": place_name(self.find_answer),
            **({"function": [code_digest(self.function[0]), self.function[1]]} if self.function else {}),
        }

    # ------------------------------------------------------------------ grading
    def verify(self, response: str, ground_truth: str) -> Verdict:
        return self._grade(response, read_truth(ground_truth)["answers"])

    def _grade(self, response: str, golds: Sequence[str]) -> Verdict:
        answer = self.find_answer(response)
        if answer is None or (len(answer) > _LONGEST and self.function is None):
            return Verdict(False, False, NO_ANSWER)
        if self.answers == "mathematics":
            return mathematics.judge(answer, golds)
        if self.function:
            return user.judge(*self.function, answer, golds)
        read = _choice if self.answers == "choice" else _folded
        given = read(answer)
        if given is None:
            return Verdict(False, False, NO_ANSWER)
        return RIGHT if given in [read(gold) for gold in golds] else Verdict(False, True, WRONG)

    def answer(self, response: str) -> str | None:
        found = self.find_answer(response)
        if found is None:
            return None
        if self.answers == "mathematics":
            return mathematics.answer(boxed(found))
        return _choice(found) if self.answers == "choice" else _folded(found)

    def gold_responses(self, ground_truth: str) -> Sequence[str]:
        """Return every gold where a response has its answer; () where only the user's function knows right answers."""
        golds = check(read_truth(ground_truth).get("answers"), "ground truth: 'answers'", self.answers)
        return () if self.function else [wrapped(self.find_answer, gold) for gold in golds]

    def grade_line(self, line: Mapping[str, Any]) -> Verdict:
        golds = check(line["gold"], "field 'gold'", self.answers)
        return self._grade(mathematics.read_response(line), golds)

    # ------------------------------------------------------------------ data
    def write_data(self, config: DictConfig, folder: Path, progress: Progress | None = None) -> dict[str, Any]:
        if config.data.source != "hub":
            raise UserError(
                f"data.source={config.data.source}: the rows of task {self.name} are read: set data.source: hub"
            )
        sets = RealSets(
            task=self.name,
            benchmarks=tuple(self.benchmarks),
            choices={key: allowed for key, allowed in decisions.CHOICES.items() if key != "shared_diagrams"},
            items=items,
            prompts=prompts_of(config.data.prompt),
            check=lambda golds, where: check(golds, where, self.answers),
        )
        counts = sets.write(config, folder, progress)
        for split in counts if self.function else ():
            self._try_function(split, folder, progress or (lambda text: None))
        return counts

    def _try_function(self, split: str, folder: Path, say: Progress) -> None:
        """Call the user's function once with a gold as the answer. Raises UserError where it fails."""
        problem = read_problems(folder / f"{split}.parquet")[0]
        gold = read_truth(problem.ground_truth)["answers"][0]
        path, name = self.function or (Path(), "")
        if not user.tried(path, name, gold):
            say(f"{split}: {path.name}:{name} says that the gold {gold!r:.80} is no right answer to {problem.id}")


def check(golds: Any, where: str, answers: str | None) -> tuple[str, ...]:
    """Return the golds as a tuple. Raises UserError naming ``where`` for none, or one that no answer could equal."""
    if answers == "mathematics":
        return mathematics.check_golds(golds, where)
    golds = (golds,) if isinstance(golds, str) else golds
    if not isinstance(golds, Sequence) or not golds or not all(isinstance(g, str) and g.strip() for g in golds):
        raise UserError(f"{where}: must be a text or a list of texts, none of them empty; got {golds!r:.80}")
    if answers == "choice":
        for gold in golds:
            if _choice(gold) is None:
                raise UserError(f"{where}: the gold {gold!r:.80} is no letter; answers: choice has golds such as B")
    return tuple(golds)
