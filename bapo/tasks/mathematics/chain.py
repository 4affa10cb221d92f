"""Grading worked arithmetic by its outcome: the last number of a chain of steps.

    7 + 3 = 10 , 10 * 4 = 40 , 40 - 12 = 28

The response must end in ``= NUMBER``; nothing before that is judged, as in the paper, whose reward is the answer's.
"""

from __future__ import annotations

import json
import re

from bapo.errors import UserError
from bapo.graders.verdict import Verdict

MAX_DIGITS = 6
_ANSWER = re.compile(rf"=[ \t\r\n]*([0-9]{{1,{MAX_DIGITS}}})[ \t\r\n]*\Z")
_WINDOW = 64  # characters at the end that are looked at, whatever the response's length
#: What a chain may hold; other text that ends in a number is no chain.
_CHAIN = re.compile(r"[0-9+\-*/=,()x \t\r\n]*\Z")


def to_ground_truth(answer: int) -> str:
    return json.dumps({"answer": answer, "format": "chain"})


def final_answer(response: str) -> int | None:
    """The number after the last equals sign, where the response ends with it."""
    match = _ANSWER.search(response[-_WINDOW:])
    return int(match[1]) if match else None


def is_chain(response: str) -> bool:
    return bool(_CHAIN.match(response))


def verify(response: str, answer: int) -> Verdict:
    """Reasons: "no-answer" (unparsed) and "wrong-answer"."""
    given = final_answer(response)
    if given is None:
        return Verdict(False, False, "no-answer")
    return Verdict(True, True, "") if given == answer else Verdict(False, True, "wrong-answer")


def read_answer(truth: dict[str, object]) -> int:
    """The answer of a ground truth of :func:`to_ground_truth`. Raises UserError where it is no whole number."""
    answer = truth.get("answer")
    if type(answer) is not int or answer < 0:
        raise UserError(f"ground truth: 'answer' must be a whole number of 0 and more, got {answer!r}")
    return answer
