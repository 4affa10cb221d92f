"""The laptop's format of mathematics, a chain of steps that is graded by its outcome: its last number.

    7 + 3 = 10 , 10 * 4 = 40 , 40 - 12 = 28

The response must end in ``= NUMBER``; nothing before that is judged, as in the paper, whose reward is the answer's.
"""

from __future__ import annotations

import re

MAX_DIGITS = 6
_ANSWER = re.compile(rf"=[ \t\r\n]*([0-9]{{1,{MAX_DIGITS}}})[ \t\r\n]*\Z")
#: The only characters of a chain; other text that ends in a number is no chain.
_CHAIN = re.compile(r"[0-9+\-*/=,()x \t\r\n]*\Z")


def final_answer(response: str) -> int | None:
    """Return the number after the last equals sign, where the response ends with it; else None."""
    match = _ANSWER.search(response[-64:])  # whatever the response's length
    return int(match[1]) if match else None


def is_chain(response: str) -> bool:
    """Return whether a response holds nothing but numbers, signs and x."""
    return bool(_CHAIN.match(response))
