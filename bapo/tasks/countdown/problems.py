"""Countdown's problems: their names and splits, the few-shot prompt, and the exhaustive search for solutions.

Every problem belongs to exactly one split, so the splits cannot overlap. All few-shot prompts begin with the same
tokens, which engines may compute once.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from bapo.tasks import generated
from bapo.tasks.generated import Step

#: Share of all problems with 3 and 4 numbers that each split owns. The reduced task has only 2,569 problems with three
#: numbers, so the splits that are trained and tested on get little more than they need and the base gets the rest.
SHARES: dict[int, dict[str, float]] = {
    3: {"base": 0.60, "train": 0.24, "probe": 0.06, "cd34": 0.10, "cd4": 0.0},
    4: {"base": 0.90, "train": 0.04, "probe": 0.01, "cd34": 0.02, "cd4": 0.03},
}
SPLITS = tuple(SHARES[3])
#: The same of the easy task, whose problems have 2 and 3 numbers.
EASY_SHARES: dict[int, dict[str, float]] = {
    2: {"train": 0.5, "probe": 0.2, "cd2": 0.3, "cd3": 0.0},
    3: {"train": 0.5, "probe": 0.2, "cd2": 0.0, "cd3": 0.3},
}
EASY_SPLITS = tuple(EASY_SHARES[2])


def problem_id(numbers: Sequence[int], target: int) -> str:
    """Name a problem by its multiset of numbers and its target: ``countdown:3-4-7-12:24``, in whatever order."""
    return f"countdown:{'-'.join(map(str, sorted(numbers)))}:{target}"


@lru_cache(maxsize=1 << 18)
def owner(numbers: tuple[int, ...], target: int) -> str:
    """Return the one split that this problem may appear in: a function of its identity, not of a seed or size."""
    return generated.owner(problem_id(numbers, target), SHARES[len(numbers)])


def owned(numbers: np.ndarray, targets: np.ndarray, split: str) -> np.ndarray:
    """Return bool [N]: whether ``split`` is the owner. numbers: int [N, k]; targets: int [N]."""
    rows = zip(np.sort(numbers, axis=1).tolist(), targets.tolist(), strict=True)  # sorted: one key for a problem
    return np.array([owner(tuple(row), target) == split for row, target in rows], dtype=bool)


#: numbers, target, expression; the easy generator makes none of these problems
EXAMPLES: tuple[tuple[tuple[int, ...], int, str], ...] = (
    ((2, 9), 11, "2 + 9"),
    ((12, 4, 3), 19, "12 + 4 + 3"),
    ((15, 6), 9, "15 - 6"),
    ((9, 2, 5), 6, "9 + 2 - 5"),
)
SHOWN = frozenset(problem_id(numbers, target) for numbers, target, _ in EXAMPLES)


def to_few_shot(numbers: Sequence[int], target: int) -> str:
    """Write the examples and the problem; the answer is to follow on the same line."""
    examples = [f"{_question(operands, value)} {expression}" for operands, value, expression in EXAMPLES]
    return "\n\n".join([*examples, _question(numbers, target)])


def _question(numbers: Sequence[int], target: int) -> str:
    listed = ", ".join(map(str, numbers))
    return f"Question: Use each of the numbers {listed} once, with + or -, to make {target}.\nAnswer:"


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
    """Return the signs and results that are whole numbers of 0 and more. a >= b."""
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
