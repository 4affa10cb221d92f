"""How language models write an expression, in the signs of the strict grammar: ``data.grading=lenient``.

Read besides the grammar's own: a box (``\\boxed{12 + 3}``), formulas in dollar signs or LaTeX's brackets, ``\\times``,
``\\cdot``, ``\\div``, ``\\frac{12}{3}``, typographic signs and an x between two factors, bold type or backticks around
it all, thousands in groups of three (``1,000``), a full stop, and an equation with a number alone on one side. Nothing
is left out that could change a value, and what is left out never joins two numbers. Not read, as its meaning is open:
a sign left out between two factors, powers, decimals, words, an equation of three sides.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from bapo.graders.extract import last_boxes

LONGEST = 1024  #: characters that are looked at; LaTeX takes more of them than the grammar's own signs

_SIGNS = str.maketrans(
    {
        **dict.fromkeys("×·⋅∙•∗✕✖＊", "*"),  # noqa: RUF001
        **dict.fromkeys("÷∕⁄／", "/"),  # noqa: RUF001
        **dict.fromkeys("−–‐‑‒﹣－", "-"),  # noqa: RUF001
        **{"＋": "+", "＝": "=", "（": "(", "）": ")"},  # noqa: RUF001
        **dict.fromkeys("\u00a0\u2009\u200a\u202f\u2002\u2003$", " "),
    }
)
_WRAPPED = re.compile(r"(\*\*|`{1,3})([^*`]+(?:\*[^*`]+)*)\1")
#: in this order; Markdown writes an asterisk as \*, and a dollar sign behind a backslash is a space by now
_COMMANDS = (
    (re.compile(r"\{,\}"), ","),
    (re.compile(r"\\(?:times|cdot|ast)(?![a-zA-Z])|\\\*"), "*"),
    (re.compile(r"\\div(?![a-zA-Z])"), "/"),
    (re.compile(r"\\(?:left|right|[bB]igg?[lr]?)(?=\s*[()])"), " "),
    (re.compile(r"\\(?:displaystyle|q?quad)(?![a-zA-Z])|\\[()\[\],;:! ]"), " "),
)
_FRACTION = re.compile(r"\\[dt]?frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}")
_DEEPEST = 8  # of fractions within fractions
_CROSS = re.compile(r"(?<=[0-9)])(\s*)[xX](\s*)(?=[0-9(])")
_HEXADECIMAL = re.compile(r"(?<![0-9])0[xX]")
_THOUSANDS = re.compile(r"(?<![0-9,.])[1-9][0-9]{0,2}(?:,[0-9]{3})+(?![0-9,.])")
_NUMBER = re.compile(r"0|[1-9][0-9]*")


class Reading(NamedTuple):
    """An expression, perhaps, in the grammar's signs. claimed: what an equation says that it equals, if it is one."""

    expression: str
    claimed: int | None = None


def content(text: str) -> str | None:
    """Return what stands in the last box of ``text`` outside the thinking; None without a box, or with several."""
    boxes = last_boxes(text)
    return boxes[0] if len(boxes) == 1 else None


def plain(text: str) -> str:
    """Return ``text`` in the grammar's signs, as far as it is made of signs that stand for them."""
    text = text.translate(_SIGNS).strip()
    if wrapped := _WRAPPED.fullmatch(text):
        text = wrapped[2]
    for pattern, sign in _COMMANDS:
        text = pattern.sub(sign, text)
    for _ in range(_DEEPEST):
        text, changed = _FRACTION.subn(r"((\1)/(\2))", text)
        if not changed:
            break
    text = _THOUSANDS.sub(lambda number: number[0].replace(",", ""), text).strip()
    if text.endswith("."):
        text = text[:-1].rstrip()
    return text if _HEXADECIMAL.search(text) else _CROSS.sub(r"\1*\2", text)


def read(text: str) -> Reading:
    """Return the expression of ``text``; of an equation, the side that is no number alone, or else the left one.

    An equation with more than two sides, or with no number on either, is left as it is: the grammar refuses its sign.
    """
    text = plain(text)
    sides = [side.strip() for side in text.split("=")]
    if len(sides) == 2:
        for expression, value in (sides, sides[::-1]):
            if _NUMBER.fullmatch(value) and len(value) < 20:
                return Reading(expression, int(value))
    return Reading(text)
