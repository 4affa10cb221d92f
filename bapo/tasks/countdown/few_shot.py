"""The prompt of easy Countdown: four solved examples, then the problem, for models that continue a text.

All prompts begin with the same tokens, which engines may compute once.
"""

from __future__ import annotations

from collections.abc import Sequence

from bapo.tasks.countdown.splits import problem_id

#: numbers, target, expression; the easy generator makes none of these problems
EXAMPLES: tuple[tuple[tuple[int, ...], int, str], ...] = (
    ((2, 9), 11, "2 + 9"),
    ((12, 4, 3), 19, "12 + 4 + 3"),
    ((15, 6), 9, "15 - 6"),
    ((9, 2, 5), 6, "9 + 2 - 5"),
)
SHOWN = frozenset(problem_id(numbers, target) for numbers, target, _ in EXAMPLES)


def to_prompt(numbers: Sequence[int], target: int) -> str:
    """Write the examples and the problem; the answer is to follow on the same line."""
    shown = [f"{_question(given, value)} {expression}" for given, value, expression in EXAMPLES]
    return "\n\n".join([*shown, _question(numbers, target)])


def _question(numbers: Sequence[int], target: int) -> str:
    listed = ", ".join(map(str, numbers))
    return f"Question: Use each of the numbers {listed} once, with + or -, to make {target}.\nAnswer:"
