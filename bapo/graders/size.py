"""Whether an answer asks for a number that nobody writes out: a tower of powers, a factorial or binomial of millions.

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
#: one step of working out a text's numbers, from the inside: brackets, n!, n!!, Gamma, binomials, powers, and products
#: that are all of a bracket
_STEP = re.compile(
    rf"[({{]\s*[+-]?\s*{_N}\s*[)}}]|{_N}\s*(!+)|\\(Gamma)\s*{_N}|\\(binom)\s*{_N}\s+{_N}"
    rf"|{_N}\s*(\^)\s*{_N}(?!\s*[\^!])|(?<=[({{])\s*{_N}\s*(\\cdot)\s*{_N}(?=\s*[)}}])"
)
_HINT = re.compile(r"[!^]|\\Gamma|\\binom")
_EXPONENT = re.compile(rf"\^[\s{{(]*[+-]?\s*{_N}")
_CAP = 10**1000  #: stands for a longer number, as a base; elsewhere it is refused anyway


def too_large(latex: str) -> bool:
    """Return whether normalised LaTeX holds such a number."""
    if not _HINT.search(latex):
        return False
    steps = 1
    try:
        while steps:
            latex, steps = _STEP.subn(_worked_out, latex)
    except OverflowError:
        return True
    return any(_value(exponent) >= EXPONENT for exponent in _EXPONENT.findall(latex))


def _value(digits: str) -> int:
    return int(digits) if len(digits) <= 1000 else _CAP


def _worked_out(match: re.Match[str]) -> str:
    """Write the number that a step gives. Raises OverflowError for one beyond the limits."""
    parts = [part for part in match.groups() if part]
    (n, *others), sign = [_value(p) for p in parts if p.isdigit()], next((p for p in parts if not p.isdigit()), "")
    last = others[-1] if others else n
    if sign == "^":
        digits = last * math.log10(max(n, 1))
        if last >= EXPONENT or digits > DIGITS:
            raise OverflowError
        n = n**last if digits < 1000 else _CAP
    elif sign == r"\cdot":
        n *= last
    elif sign:
        terms = min(last, n - last) if others else n
        if terms >= FACTORIAL:
            raise OverflowError
        if terms > 300:
            n = _CAP
        else:
            n = (
                math.comb(n, last)
                if others
                else math.prod(range(n, 0, -len(sign)))
                if "!" in sign
                else math.factorial(max(n - 1, 0))
            )
    return f" {min(n, _CAP)} "
