"""Solutions of Countdown problems as text, and by brute force all that a problem's numbers can make."""

from __future__ import annotations

from collections.abc import Sequence

from bapo.tasks.countdown.problems import solve_steps, to_expression
from bapo.tasks.generated import to_chain


def solve(numbers: Sequence[int], target: int) -> str | None:
    """Return an expression that solves the problem, or None if the search finds none."""
    steps = solve_steps(numbers, target)
    return None if steps is None else to_expression(numbers, steps)


def solve_chain(numbers: Sequence[int], target: int, value_max: int | None = None) -> str | None:
    """Return a chain that solves the problem with results in 0..value_max, or None if there is none."""
    steps = solve_steps(numbers, target, value_max)
    return None if steps is None else to_chain(steps)


def reachable(numbers: Sequence[int], value_max: int) -> set[int]:
    """Return every value that some chain makes of all ``numbers`` with results in 0..value_max."""
    if len(numbers) == 1:
        return set(numbers)
    values: set[int] = set()
    for i, a in enumerate(numbers):
        for j, b in enumerate(numbers):
            if i != j:
                rest = [n for k, n in enumerate(numbers) if k not in (i, j)]
                results = [a + b, a - b, a * b, *([a // b] if b and a % b == 0 else [])]
                for result in {r for r in results if 0 <= r <= value_max}:
                    values |= reachable((*rest, result), value_max)
    return values
