"""Rows of a file or a set of the hub with a prompt and a gold answer: a task by YAML alone, or a class to extend."""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bapo.errors import UserError
from bapo.graders import mathematics
from bapo.graders.extract import boxed, last_box, without_thinking
from bapo.graders.verdict import NO_ANSWER, RIGHT, WRONG, Verdict
from bapo.tasks.base import Progress, Task
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


#: ``answer_in`` -> a response that has the answer there
WRAPPERS: Mapping[str, Callable[[str], str]] = {
    "box": boxed,
    "tag": "<answer>{}</answer>".format,
    "last-line": str,
    "all": str,
}


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

    answers: mathematics, exact (the same words) or choice (a letter); answer_in: a key of PLACES. A project's subclass
    sets ``name`` and ``benchmarks``, and may compare by ``equal`` (docs/project.md).
    """

    fields = ("gold", "response")
    revision = 1  # 0 let the splits of a folder share ids, and a probe of its own took rows from training
    answers: str = "exact"
    answer_in: str = "box"

    @classmethod
    def of_file(cls, content: TaskConfig, path: Path) -> RowsTask:
        """Make the task that a project's YAML file describes. Raises UserError naming the file and the field."""
        if not content.benchmarks:
            raise UserError(f"{path}: benchmarks is empty; map at least one test split to its title in tables")
        task = cls()
        task.name, task.benchmarks = content.name, dict(content.benchmarks)  # type: ignore[misc]
        task.answers, task.answer_in = content.answers or cls.answers, content.answer_in
        return task

    def content(self) -> dict[str, Any]:
        """Return what decides the grades."""
        return {"answers": self.answers, "place": self.answer_in}

    # ------------------------------------------------------------------ grading
    def verify(self, response: str, ground_truth: str) -> Verdict:
        return self._grade(response, read_truth(ground_truth)["answers"])

    def equal(self, answer: str, gold: str) -> bool:
        """Return whether an answer is the gold, where ``answers`` is not mathematics."""
        return self._read(answer) == self._read(gold)

    def _read(self, text: str) -> str | None:
        return _choice(text) if self.answers == "choice" else _folded(text)

    def _grade(self, response: str, golds: Sequence[str]) -> Verdict:
        answer = self.find_answer(response)
        if answer is None or len(answer) > _LONGEST:
            return Verdict(False, False, NO_ANSWER)
        if self.answers == "mathematics":
            return mathematics.judge(answer, golds)
        if self._read(answer) is None:
            return Verdict(False, False, NO_ANSWER)
        return RIGHT if any(self.equal(answer, gold) for gold in golds) else Verdict(False, True, WRONG)

    def find_answer(self, response: str) -> str | None:
        """Return the part of a response that ``answer_in`` names; None where there is none."""
        return PLACES[self.answer_in](response)

    def answer(self, response: str) -> str | None:
        found = self.find_answer(response)
        if found is None:
            return None
        if self.answers == "mathematics":
            return mathematics.answer(boxed(found))
        return self._read(found)

    def gold_responses(self, ground_truth: str) -> Sequence[str]:
        """Return every gold where a response has its answer."""
        golds = check(read_truth(ground_truth).get("answers"), "ground truth: 'answers'", self.answers)
        return [WRAPPERS[self.answer_in](gold) for gold in golds]

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
        return sets.write(config, folder, progress)


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
