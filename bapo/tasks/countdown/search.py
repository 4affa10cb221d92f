"""Exhaustive search for Countdown: +, x, |a - b| and exact division, using every number exactly once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Step(NamedTuple):
    """``a sign b = result``, all whole numbers of 0 and more."""

    a: int
    sign: str
    b: int
    result: int


def solve_steps(numbers: Sequence[int], target: int, value_max: int | None = None) -> list[Step] | None:
    """Return the first solution in a fixed order as len(numbers) - 1 steps, or None.

    ``value_max`` bounds every result on the way (the reduced task); None leaves them free (the paper's task).
    """
    steps: list[Step] = []
    return steps if _search(tuple(sorted(numbers)), target, value_max, steps, set()) else None


def _search(
    values: tuple[int, ...], target: int, value_max: int | None, steps: list[Step], hopeless: set[tuple[int, ...]]
) -> bool:
    if len(values) == 1:
        return values[0] == target
    if values in hopeless:
        return False
    last = len(values) == 2
    for i in range(len(values)):
        for j in range(i + 1, len(values)):
            b, a = values[i], values[j]  # sorted, so a >= b: |a - b| is a - b and only a / b can be exact
            rest = () if last else values[:i] + values[i + 1 : j] + values[j + 1 :]
            for sign, result in _results(a, b):
                if (last and result != target) or (value_max is not None and result > value_max):
                    continue
                steps.append(Step(a, sign, b, result))
                if last or _search(tuple(sorted((*rest, result))), target, value_max, steps, hopeless):
                    return True
                steps.pop()
    hopeless.add(values)
    return False


def _results(a: int, b: int) -> list[tuple[str, int]]:
    quotient = [("/", a // b)] if b and a % b == 0 else []
    return [("+", a + b), ("*", a * b), ("-", a - b), *quotient]


def to_expression(numbers: Sequence[int], steps: Sequence[Step]) -> str:
    """Write steps as one expression, with parentheses around every inner operation: ``44 + (19 + 35)``."""
    available = [(number, str(number)) for number in numbers]

    def take(value: int) -> str:
        return available.pop(next(i for i, (v, _) in enumerate(available) if v == value))[1]

    for step in steps:
        left, right = take(step.a), take(step.b)
        available.append((step.result, f"({left} {step.sign} {right})"))
    text = available[0][1]
    return text[1:-1] if steps else text


def to_chain(steps: Sequence[Step]) -> str:
    """Write steps as the laptop's response: ``12 / 3 = 4 , 4 * 7 = 28 , 28 - 4 = 24``."""
    return " , ".join(f"{a} {sign} {b} = {result}" for a, sign, b, result in steps)
