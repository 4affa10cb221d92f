"""Finds numbers in an answer that nobody writes out: a tower of powers, a factorial or binomial of millions.

A checker would use up its time on it. The rule reads the answer's text alone, so that the verdict depends neither on
the gold nor on the machine.
"""

from __future__ import annotations

import math
import re

DIGITS = 100_000  #: of the largest power
EXPONENT = 100_000  #: the smallest that is refused, whatever it stands on, also as the last term of a sum or product
FACTORIAL = 10_000  #: the smallest that is refused, also as the smaller of a binomial's lower numbers

_N = r"(?<!\d)(\d+)(?!\d)"
#: one step of working out a text's numbers, from the inside: n in brackets, n!, n!!, Gamma, binomials and powers, and
#: products that a bracket begins with
_STEP = re.compile(
    rf"[({{]\s*[+-]?\s*{_N}\s*[)}}]|{_N}\s*(!+)|\\(Gamma)\s*{_N}|\\(binom)\s*{_N}\s+{_N}"
    rf"|{_N}\s*(\^)\s*{_N}(?!\s*[\^!])|(?<=[({{])\s*{_N}\s*(\\cdot)\s*{_N}(?!\s*[\^!])"
)
_HINT = re.compile(r"[!^]|\\Gamma|\\binom")
_EXPONENT = re.compile(rf"\^[\s{{(]*[+-]?\s*{_N}")
_CAP = 10**1000  #: stands for a longer number, as a base; elsewhere it is refused anyway


def too_large(latex: str) -> bool:
    """Return whether normalised LaTeX holds such a number."""
    steps = 1 if _HINT.search(latex) else 0
    try:
        while steps:
            latex, steps = _STEP.subn(_worked_out, latex)
        return any(_value(exponent) >= EXPONENT for exponent in _EXPONENT.findall(latex))
    except OverflowError:
        return True


def _value(digits: str) -> int:
    return int(digits) if len(digits) <= 1000 else _CAP


def _worked_out(match: re.Match[str]) -> str:
    """Write the number that a step gives. Raises OverflowError for one beyond the limits."""
    parts = [part for part in match.groups() if part]
    sign = next((part for part in parts if not part.isdigit()), "")
    first, *others = (_value(part) for part in parts if part.isdigit())
    last = others[-1] if others else first
    if sign == "^":
        digits = last * math.log10(max(first, 1))
        if last >= EXPONENT or digits > DIGITS:
            raise OverflowError
        first = first**last if digits < 1000 else _CAP
    elif sign == r"\cdot":
        first *= last
    elif sign:
        factors = min(last, first - last) if others else first
        if factors >= FACTORIAL:
            raise OverflowError
        if factors > 300 or factors * math.log10(max(first, 1)) > 1000:
            first = _CAP
        else:
            first = math.comb(first, last) if others else math.prod(range(first, 0, -max(sign.count("!"), 1)))
    return f" {min(first, _CAP)} "
