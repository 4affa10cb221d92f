"""The grader of geometry: the grader of mathematics, with the letters of choices.

An answer may be a value or the letter of a choice; a letter with a value must have both right. The values of choices
are compared like any others: units and degrees do not matter unless they differ, and a value is not rounded to the
nearest choice. Where choices are given, a small letter that is none of the values is a choice's letter, too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from bapo.errors import UserError
from bapo.graders import mathematics, pool
from bapo.graders.extract import last_boxes
from bapo.graders.mathematics import check_golds
from bapo.graders.verdict import WRONG, Verdict

_LETTER = re.compile(r"\(?\s*([A-H])\s*[).]?")
_LETTER_AND_VALUE = re.compile(r"(?:\(\s*([A-H])\s*\)|([A-H])\s*[.:)])\s*(\S.*)", re.DOTALL)
_WRAPPER = re.compile(r"\\(?:text|textbf|mathrm|mathbf|mbox)\s*\{([^{}]*)\}")


def grade(response: str, golds: Sequence[str], choices: Sequence[str] | None = None) -> Verdict:
    """Grade a response. golds: values, any of which is right, or the letter of a choice.

    choices: the values that A, B, C, ... stand for, if the problem offered any. Raises UserError for unusable golds
    or choices, and for a gold that is a letter without a choice.
    """
    golds = check_golds(golds, "golds")
    if choices is None:
        return mathematics.grade(response, golds)
    choices = check_choices(choices, "choices")
    golds = tuple(_gold_value(gold, choices) for gold in golds)
    deadline = pool.deadline()
    boxes = last_boxes(response)
    return mathematics.judge_boxes(boxes, golds, lambda content, golds: _judge(content, golds, choices, deadline))


def _judge(content: str, golds: Sequence[str], choices: Sequence[str], deadline: pool.Deadline) -> Verdict:
    letter, value = _split(content, choices)
    if letter is None:
        return mathematics.judge(content, golds, deadline)
    index = ord(letter) - ord("A")
    if index >= len(choices):
        return Verdict(False, True, WRONG)
    verdict = mathematics.judge(choices[index], golds, deadline)
    if verdict.correct and value:
        return mathematics.judge(value, golds, deadline)
    return verdict if verdict.correct else Verdict(False, True, WRONG)


def check_choices(choices: Any, where: str) -> tuple[str, ...]:
    """Return the choices as a tuple. Raises UserError naming ``where``."""
    if isinstance(choices, str) or not isinstance(choices, Sequence) or not 2 <= len(choices) <= 8:
        raise UserError(f"{where}: must be a list of two to eight texts, got {choices!r:.80}")
    return check_golds(choices, where)


def grade_line(line: Mapping[str, Any]) -> Verdict:
    """Grade {"gold": text or list of texts, "response": text} with optional "choices". Raises UserError."""
    return grade(*_read(line))


def _read(line: Mapping[str, Any]) -> tuple[str, tuple[str, ...], tuple[str, ...] | None]:
    response, choices = mathematics.read_response(line), line.get("choices")
    golds = check_golds(line["gold"], "field 'gold'")
    return response, golds, None if choices is None else check_choices(choices, "field 'choices'")


def _gold_value(gold: str, choices: Sequence[str]) -> str:
    """Return the value of a gold that is a choice's letter (unless it is itself one of the values)."""
    match = _LETTER.fullmatch(_bare(gold))
    if match is None or gold in choices:
        return gold
    index = ord(match[1]) - ord("A")
    if index >= len(choices):
        raise UserError(f"golds: {gold!r} is the letter of a choice, and there are only {len(choices)} choices")
    return choices[index]


def _split(content: str, choices: Sequence[str]) -> tuple[str | None, str]:
    """Return (letter of a choice or None, the value beside it or "")."""
    text = _bare(content)
    small = re.fullmatch(r"\(?\s*([a-h])\s*[).]?", text)
    if small and not any(small[1] == _bare(choice) for choice in choices):
        return small[1].upper(), ""
    if match := _LETTER.fullmatch(text):
        return match[1], ""
    if match := _LETTER_AND_VALUE.fullmatch(text):
        return match[1] or match[2], match[3]
    return None, ""


def _bare(text: str) -> str:
    return _WRAPPER.sub(r"\1", text).strip().strip("$").strip()
