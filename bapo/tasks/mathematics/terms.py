"""The laptop's mathematics as text and as data: expressions, equations and their worked solutions.

A response is a chain of steps such as ``7 + 3 = 10 , 10 * 4 = 40``. It is graded by its outcome: it must end in
``= NUMBER``; nothing before that is judged, as in the paper, whose reward is the answer's.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

X = "x"  #: the unknown
_PRECEDENCE = {"+": 1, "-": 1, "*": 2, "/": 2}
INVERSE = {"+": "-", "-": "+", "*": "/", "/": "*"}

# ------------------------------------------------------------------------------------------------ terms


class Node(NamedTuple):
    """``left sign right``; an operand is a number, the unknown X or another node."""

    left: Any
    sign: str
    right: Any


def to_text(term: Node | int | str) -> str:
    """Write a term with spaces between tokens and only the brackets that it needs: ``( 7 + 3 ) * 4 - 12``."""
    if not isinstance(term, Node):
        return str(term)
    left, right = to_text(term.left), to_text(term.right)
    precedence = _PRECEDENCE[term.sign]
    if isinstance(term.left, Node) and _PRECEDENCE[term.left.sign] < precedence:
        left = f"( {left} )"
    if isinstance(term.right, Node) and _PRECEDENCE[term.right.sign] <= precedence:
        right = f"( {right} )"
    return f"{left} {term.sign} {right}"


def canonical(term: Node | int | str) -> str:
    """Write all orders and groupings of the terms of a sum, or the factors of a product, as one text."""
    if not isinstance(term, Node):
        return str(term)
    if term.sign in "-/":
        return f"({canonical(term.left)}{term.sign}{canonical(term.right)})"
    return f"({term.sign.join(sorted(map(canonical, _flat(term, term.sign))))})"


def _flat(term: Node | int | str, sign: str) -> list[Any]:
    """Return the operands of nested sums, or products, as one list."""
    if isinstance(term, Node) and term.sign == sign:
        return _flat(term.left, sign) + _flat(term.right, sign)
    return [term]


# ------------------------------------------------------------------------------------------------ solutions


class Step(NamedTuple):
    a: int
    sign: str
    b: int
    result: int


#: (a, sign, b) for each step; an operand below 0 stands for an earlier result, -1 for the first step's.
Plan = list[tuple[int, str, int]]


def compute(a: int, sign: str, b: int) -> int:
    """Compute the result of one operation; a quotient is rounded down, and 0 where the divisor is."""
    if sign == "+":
        return a + b
    if sign == "-":
        return a - b
    if sign == "*":
        return a * b
    return a // b if b else 0


def work(plan: Plan, slip: Callable[[int], int] = int) -> list[Step]:
    """Work out a plan; ``slip`` may change a result, and the steps after it go on from what it gave."""
    steps: list[Step] = []
    for left, sign, right in plan:
        a, b = (steps[-1 - n].result if n < 0 else n for n in (left, right))
        steps.append(Step(a, sign, b, slip(compute(a, sign, b))))
    return steps


def to_chain(steps: list[Step]) -> str:
    """Write steps as ``7 + 3 = 10 , 10 * 4 = 40``: the answer is the last number."""
    return " , ".join(f"{a} {sign} {b} = {result}" for a, sign, b, result in steps)


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
