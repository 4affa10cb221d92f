"""Numbers written out: integers, decimals, fractions, mixed numbers, powers of ten. Exact, without sympy."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import NamedTuple

#: A power of ten beyond this is left to the symbolic comparison, in a process that can be killed.
MAX_EXPONENT = 400

_D = r"(?:\d+(?:\.\d*)?|\.\d+)"
_SIGN = r"(?P<sign>[+-]*)\s*"
_INTEGER = re.compile(r"[+-]?\d{1,1000}")
_THOUSANDS = re.compile(r"[+-]?\s*\d{1,3}(?:,\d{3})+(?:\.\d*)?")
_SPACED = re.compile(r"[+-]?\s*\d{1,3}(?: \d{3})+(?:\.\d*)?")
_DECIMAL = re.compile(rf"{_SIGN}(?P<n>{_D})")
_POWER = re.compile(rf"{_SIGN}(?:(?P<n>{_D})\s*\\cdot\s*)?10\s*\^\s*(?:\{{\s*(?P<e>[+-]?\s*\d+)\s*\}}|(?P<f>\d))")
_FRACTION = re.compile(rf"{_SIGN}\\frac\s*\{{\s*(?P<n>[+-]?\s*{_D})\s*\}}\s*\{{\s*(?P<d>[+-]?\s*{_D})\s*\}}")
_SLASH = re.compile(rf"{_SIGN}(?P<n>{_D})\s*/\s*(?P<d>{_D})")
_MIXED = re.compile(r"(?P<sign>[+-]?)\s*(?P<w>\d+)\s*\\frac\s*\{\s*(?P<n>\d+)\s*\}\s*\{\s*(?P<d>\d+)\s*\}")
_MIXED_PLAIN = re.compile(r"(?P<sign>[+-]?)\s*(?P<w>\d+)\s+(?P<n>\d+)\s*/\s*(?P<d>\d+)")

_REPEATING = re.compile(
    r"(?P<sign>[+-]*)\s*(?P<n>\d{0,30})\.(?P<a>\d{0,30})\s*(?:\\(?:overline|bar|dot)\s*\{\s*(\d{1,30})\s*\}|\((\d{1,30})\))"
)


class Value(NamedTuple):
    """Holds a number. digits: significant digits where the number was written as a decimal, None where it is exact."""

    value: Fraction
    digits: int | None = None


def integer(text: str) -> int | None:
    """Read a plain integer with at most a sign, leading zeros allowed; else None. The fast path."""
    return int(text) if _INTEGER.fullmatch(text) else None


def read(latex: str) -> Value | None:
    """Read the number that a normalised text is; else None."""
    text = latex.strip()
    while text.startswith("{") and text.endswith("}") and text.count("{") == 1:
        text = text[1:-1].strip()
    if _THOUSANDS.fullmatch(text) or _SPACED.fullmatch(text):
        text = text.replace(",", "").replace(" ", "")
    if match := _DECIMAL.fullmatch(text):
        return _signed(match, _decimal(match["n"]))
    if match := _POWER.fullmatch(text):
        exponent = int((match["e"] or match["f"]).replace(" ", "")) if len(match["e"] or "") < 9 else MAX_EXPONENT + 1
        if abs(exponent) > MAX_EXPONENT:
            return None
        number = _decimal(match["n"] or "1")
        return _signed(match, Value(number.value * Fraction(10) ** exponent, number.digits))
    if (value := mixed(text)) is not None:
        return value
    if match := _REPEATING.fullmatch(text):
        start, period = match["n"] + match["a"], match[4] or match[5]
        under = 10 ** len(match["a"]) * (10 ** len(period) - 1)
        return _signed(match, Value(Fraction(int(start + period) - int(start or 0), under)))
    for pattern in (_FRACTION, _SLASH):
        if match := pattern.fullmatch(text):
            over, under = (_decimal(match[part].replace(" ", "")).value for part in "nd")
            return _signed(match, Value(over / under)) if under else None
    return None


def mixed(text: str) -> Value | None:
    """Read a whole number with a proper fraction behind it; else None."""
    match = _MIXED.fullmatch(text) or _MIXED_PLAIN.fullmatch(text)
    if match is None or int(match["n"]) >= int(match["d"]):
        return None
    return _signed(match, Value(int(match["w"]) + Fraction(int(match["n"]), int(match["d"]))))


def agree(gold: Value, answer: Value, whole: bool | None = None) -> bool:
    """Return whether two numbers are the same answer.

    Exact numbers must be equal. A decimal of at least six significant digits stands for every number that rounds to it
    or is truncated to it, such as 0.333333 for 1/3. A difference of one part in 10**12 is floating point. Neither holds
    for an integer gold, which can be written out. whole: whether the gold is an integer, where the caller knows.
    """
    if gold.value == answer.value:
        return True
    if gold.digits is None and answer.digits is None:
        return False
    if whole is None:
        whole = gold.digits is None and gold.value.denominator == 1
    gap = abs(gold.value - answer.value)
    if not whole and gap <= Fraction(1, 10**12) * min(abs(gold.value), abs(answer.value)):
        return True
    return _stands_for(gold, answer) or (not whole and _stands_for(answer, gold))


def near(a: Value, b: Value) -> bool:
    """Return whether "a = b" is true, or one of them is the other rounded or cut off: 1/3 = 0.33, 29.7 = 30."""
    if a.value == b.value or (a.digits is None and b.digits is None):
        return a.value == b.value
    a, b = (v._replace(digits=v.digits or len(str(abs(v.value)))) if v.value.denominator == 1 else v for v in (a, b))
    return _stands_for(a, b, 1) or _stands_for(b, a, 1)


def _stands_for(short: Value, exact: Value, least: int = 6) -> bool:
    """Return whether the decimal ``short`` is ``exact`` rounded, or cut off, at its last significant digit."""
    if short.digits is None or short.digits < least or (exact.digits is not None and exact.digits < short.digits):
        return False
    if not short.value or not exact.value or (short.value < 0) != (exact.value < 0):
        return False
    # a unit of the last significant digit: rounded differs by at most half of it, cut off by less than all of it
    unit = Fraction(10) ** (_magnitude(short.value) - short.digits + 1)
    gap = abs(exact.value) - abs(short.value)
    return -unit / 2 <= gap < unit


def _magnitude(value: Fraction) -> int:
    """Return the floor of log10 |value|."""
    power = len(str(abs(value.numerator))) - len(str(value.denominator))
    return power if abs(value) >= Fraction(10) ** power else power - 1


def _decimal(text: str) -> Value:
    text = text.replace(" ", "")
    whole, point, part = text.partition(".")
    if not point or not part.strip("0"):
        return Value(Fraction(int(whole or "0")))  # 142.0 is the integer
    return Value(Fraction(text if whole.strip("+-") else text.replace(".", "0.")), len((whole + part).lstrip("+-0")))


def _signed(match: re.Match[str], value: Value) -> Value:
    return value._replace(value=-value.value) if match["sign"].count("-") % 2 else value
