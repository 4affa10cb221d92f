"""Countdown's verifiers: a small grammar and exact arithmetic. Text is parsed, and never run as code.

Three formats::

    expression   (12 / 3) * 7 - 4
    answer       anything, with the expression in the last <answer>...</answer> outside the thinking
    chain        12 / 3 = 4 , 4 * 7 = 28 , 28 - 4 = 24

    expression := term (("+" | "-") term)*         chain := step ("," step)*
    term       := factor (("*" | "/") factor)*     step  := NUMBER ("+" | "-" | "*" | "/") NUMBER "=" NUMBER
    factor     := NUMBER | "(" expression ")"      NUMBER: digits 0-9, no sign, no leading zero

Space, tab and line breaks may stand between tokens. As in the grader of TinyZero, which the paper's authors use, there
is no partial reward, and an equals sign in an answer and typographic signs (a multiplication cross) are refused. Unlike
there, ``//``, ``**`` and a sign before a number are refused too: the paper allows + - * / and parentheses only.
"""

from __future__ import annotations

import ast
import json
import operator
import re
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from itertools import accumulate
from typing import Annotated, Literal

from pydantic import Field

from bapo.experiments.schema import Node
from bapo.graders.extract import last_tagged
from bapo.graders.verdict import RIGHT, Verdict
from bapo.validate import read

MAX_EXPRESSION = 256  # characters; a solution with four numbers takes at most 23 without spaces
MAX_CHAIN = 1024  # characters
MAX_DIGITS = 6  # of a number in a response
MAX_DEPTH = 16  # of parentheses
MAX_NUMBERS = 16  # of a problem
MAX_VALUE = 10**MAX_DIGITS - 1  # of a problem's numbers and target

#: Reasons: there is no answer, or none that the grammar accepts.
UNPARSED = (
    *("no-answer", "unfinished-thinking", "too-long", "too-deep", "too-many-digits", "bad-character"),
    *("equals-sign", "syntax"),
)
#: Reasons: the answer was read and is wrong; a chain's step takes a number that is not there, or some are left over.
WRONG = ("wrong-numbers", "wrong-value", "division-by-zero", "unavailable-number", "unused-numbers", "wrong-step")
_INCORRECT = {reason: Verdict(False, reason in WRONG, reason) for reason in UNPARSED + WRONG}


class _Refused(Exception):
    """The grammar does not accept the text; the argument is the reason."""


# ------------------------------------------------------------------------------------------------ expressions

_SPACE = " \t\r\n"
_TOKEN = re.compile(r"(0|[1-9][0-9]*)|([-+*/()])|([^ \t\r\n])")


def _tokens(text: str) -> list[int | str]:
    """Return numbers as int, the rest as one character each."""
    text = text.strip(_SPACE)
    if len(text) > MAX_EXPRESSION:
        raise _Refused("too-long")
    tokens: list[int | str] = []
    for number, sign, other in _TOKEN.findall(text):
        if other:
            raise _Refused("equals-sign" if other == "=" else "bad-character")
        if len(number) > MAX_DIGITS:
            raise _Refused("too-many-digits")
        tokens.append(int(number) if number else sign)
    return tokens


_OPERATIONS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}
_SIGNS = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}


def _value(tree: ast.expr) -> Fraction | None:
    """Work out an expression exactly, which has no more digits than its text; None where something is divided by zero.

    Only numbers and + - * / between them are accepted, so no sign before a number.
    """
    if isinstance(tree, ast.Constant) and isinstance(tree.value, int):
        return Fraction(tree.value)
    if not isinstance(tree, ast.BinOp):
        raise _Refused("syntax")
    left, right, sign = _value(tree.left), _value(tree.right), _SIGNS[type(tree.op)]
    fails = left is None or right is None or (sign == "/" and not right)
    return None if fails else _OPERATIONS[sign](left, right)


def verify_expression(text: str, numbers: Sequence[int], target: int) -> Verdict:
    """Grade an expression, which must use each of ``numbers`` exactly once and equal ``target``.

    Fractions on the way are allowed: 8 / (3 - 8 / 3) is 24.
    """
    try:
        tokens = _tokens(text)
        if not tokens:
            return _INCORRECT["no-answer"]
        if max(accumulate((token == "(") - (token == ")") for token in tokens)) > MAX_DEPTH:
            return _INCORRECT["too-deep"]
        value = _value(ast.parse(" ".join(map(str, tokens)), mode="eval").body)
    except SyntaxError:  # also of // and **, whose two signs are two tokens
        return _INCORRECT["syntax"]
    except _Refused as refused:
        return _INCORRECT[str(refused)]
    if sorted(token for token in tokens if isinstance(token, int)) != sorted(numbers):
        return _INCORRECT["wrong-numbers"]
    if value is None:
        return _INCORRECT["division-by-zero"]
    return RIGHT if value == target else _INCORRECT["wrong-value"]


# ------------------------------------------------------------------------------------------------ answers


def verify_answer(response: str, numbers: Sequence[int], target: int) -> Verdict:
    """Grade the expression in the response's last answer."""
    answer = last_tagged(response)
    if answer is None:
        unfinished = "<think>" in response.rpartition("</think>")[2]
        return _INCORRECT["unfinished-thinking" if unfinished else "no-answer"]
    return verify_expression(answer, numbers, target)


# ------------------------------------------------------------------------------------------------ chains

_NUMBER = rf"(0|[1-9][0-9]{{0,{MAX_DIGITS - 1}}})"
_STEP = re.compile(r"_N_([-+*/])_N_=_N_".replace("_", r"[ \t\r\n]*").replace("N", _NUMBER))


@lru_cache(maxsize=65536)  # a model writes the same steps again and again
def _step(text: str) -> tuple[int, int, int, str] | None:
    """Read ``a sign b = result``: the three numbers, and what is wrong with the step, if anything; None: no step."""
    step = _STEP.fullmatch(text)
    if step is None:
        return None
    left, sign, right, result = step.groups()
    a, b, r = int(left), int(right), int(result)
    if sign == "/" and not b:
        return a, b, r, "division-by-zero"
    return a, b, r, "" if (b * r == a if sign == "/" else _OPERATIONS[sign](a, b) == r) else "wrong-step"


def verify_chain(text: str, numbers: Sequence[int], target: int) -> Verdict:
    """Grade a chain, which must lead from ``numbers`` to ``target`` by true steps.

    Each step takes two available numbers and makes its result available; at the end only the target is left. Results
    are whole numbers of 0 and more, as the grammar has no others.
    """
    if len(text) > MAX_CHAIN:
        return _INCORRECT["too-long"]
    parts = text.split(",")
    steps = [step for step in map(_step, parts) if step]
    if len(steps) < len(parts):
        return _INCORRECT["syntax" if text.strip(_SPACE) else "no-answer"]
    available = list(numbers)
    for a, b, result, fault in steps:
        for used in (a, b):
            if used not in available:
                return _INCORRECT["unavailable-number"]
            available.remove(used)
        if fault:
            return _INCORRECT[fault]
        available.append(result)
    if len(available) > 1:
        return _INCORRECT["unused-numbers"]
    return RIGHT if available[0] == target else _INCORRECT["wrong-value"]


VERIFIERS = {"chain": verify_chain, "answer": verify_answer, "expression": verify_expression}


# ------------------------------------------------------------------------------------------------ ground truth


Whole = Annotated[int, Field(ge=0, le=MAX_VALUE)]


class Truth(Node):
    """Holds a problem, and how its answers are graded. format: a key of VERIFIERS."""

    numbers: Annotated[list[Whole], Field(min_length=1, max_length=MAX_NUMBERS)]
    target: Whole
    format: Literal["chain", "answer", "expression"]

    def verify(self, response: str) -> Verdict:
        return VERIFIERS[self.format](response, self.numbers, self.target)


def to_truth(numbers: object, target: object, form: object, where: str) -> Truth:
    """Check a problem. form: a key of VERIFIERS. Raises UserError naming ``where``, the field and the cure."""
    return read(Truth, {"numbers": numbers, "target": target, "format": form}, None, where)


def to_ground_truth(numbers: Sequence[int], target: int, form: str) -> str:
    """Write the JSON text that :func:`verify` reads. form: a key of VERIFIERS."""
    return json.dumps({"numbers": list(numbers), "target": target, "format": form})


@lru_cache(maxsize=65536)
def from_ground_truth(text: str) -> Truth:
    """Read the JSON of :func:`to_ground_truth`. Raises UserError for one that is wrong."""
    return read(Truth, json.loads(text), None, "ground truth")


def verify(response: str, ground_truth: str) -> Verdict:
    """Grade a response against the JSON of :func:`to_ground_truth`."""
    return from_ground_truth(ground_truth).verify(response)
