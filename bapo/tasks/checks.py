"""What the methods of a project's task may return, checked between the task and whatever calls it.

Without these checks a job would fail far from the task's own code, and not say for which problem.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from functools import wraps
from numbers import Integral
from typing import Any

from bapo.errors import UserError, first_line, lacks_memory
from bapo.graders.verdict import Verdict
from bapo.tasks.base import Task


class TaskFault(UserError):
    """Reports a fault in the code of a task, which says nothing about the problem that shows it."""


def checked(task: Task, file: str) -> Task:
    """Return the task with methods that raise TaskFault where they fail, or return something that nobody can use.

    file: the task's, as its configuration names it
    """
    for name, (holds, must) in ANSWERS.items():
        setattr(task, name, _checked(task, name, file, holds, must))
    return task


def _checked(task: Task, name: str, file: str, holds: Callable[[Any], bool], must: str) -> Callable[..., Any]:
    method, place = getattr(task, name), f"{type(task).__name__}.{name}"
    told = (UserError, KeyError) if name == "grade_line" else (UserError,)  # its KeyError is a missing field

    @wraps(method)
    def call(*arguments: Any, **keywords: Any) -> Any:
        try:
            answer = method(*arguments, **keywords)
        except told:
            raise
        except Exception as error:
            if lacks_memory(error):
                raise
            lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if _is_in(frame, file)]
            at = f"{file}, line {lines[-1]}" if lines else file
            fault = f"{place} raised {type(error).__name__} ({first_line(error):.200})"
            raise TaskFault(f"{at}: {fault}{_given(arguments, keywords)}; it must return {must}") from error
        if not holds(answer):
            raise TaskFault(f"{file}: {place} returned {answer!r:.80}{_given(arguments, keywords)}, must be {must}")
        return answer

    return call


def _is_in(frame: traceback.FrameSummary, file: str) -> bool:
    return frame.filename.endswith(f"/{file}")


def _given(arguments: tuple[Any, ...], keywords: dict[str, Any]) -> str:
    return f" for {' and '.join(f'{value!r:.200}' for value in (*arguments, *keywords.values()))}"


def _is_verdict(answer: Any) -> bool:
    return isinstance(answer, Verdict) and [*map(type, answer)] == [bool, bool, str]


def _are_texts(answer: Any) -> bool:
    return isinstance(answer, list | tuple) and all(isinstance(text, str) for text in answer)


_VERDICT = "a Verdict of bool, bool and text (bapo.graders.verdict)"
#: method -> whether what it returned can be used, and what it must be
ANSWERS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "verify": (_is_verdict, _VERDICT),
    "grade_line": (_is_verdict, _VERDICT),
    "gold_responses": (_are_texts, "a list of texts"),
    "demonstration": (lambda answer: isinstance(answer, str | None), "a text or None"),
    "difficulty": (lambda answer: isinstance(answer, Integral), "a whole number"),
}


def grade_golds(task: Task, ground_truth: str) -> int:
    """Grade the gold responses of a problem, and return how many there are: zero where the task knows none.

    Raises UserError where the task's own verifier refuses one, since then no response to the problem is surely right,
    and TaskFault where its code fails.
    """
    try:
        responses = task.gold_responses(ground_truth)
        reasons = [v.reason for v in (task.verify(r, ground_truth) for r in responses) if not v.correct]
    except TaskFault:
        raise
    except UserError as error:
        reasons = [str(error)]
    if reasons:
        raise UserError(f"the grader does not accept its gold answer ({reasons[0]}); correct or remove the row")
    return len(responses)
