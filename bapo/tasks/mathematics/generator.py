"""Arithmetic worked step by step: expressions to evaluate and equations to solve, graded by their number of steps.

A problem is drawn from its answer: the answer is uniform, then a number is replaced again and again by two numbers and
the operation that gives it. So every value on the way is a whole number of 1..value_max, and guessing pays nothing.

A response is a chain of steps such as ``7 + 3 = 10 , 10 * 4 = 40``. It is graded by its outcome: it must end in
``= NUMBER``; nothing before that is judged, as in the paper, whose reward is the answer's.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import cycle
from typing import Annotated, NamedTuple, TypeVar

import numpy as np
from pydantic import Field

from bapo.tasks.generated import Options, Share, Step, owner, to_chain, too_many

Option = TypeVar("Option")
X = "x"  #: the unknown
MOST_DRAWS = 10_000  #: of one problem, before there are too few of its kind
_PRECEDENCE = {"+": 1, "-": 1, "*": 2, "/": 2}
_INVERSE = {"+": "-", "-": "+", "*": "/", "/": "*"}

# ------------------------------------------------------------------------------------------------ terms


class Operation(NamedTuple):
    """``left sign right``; an operand is a number, the unknown X or another node."""

    left: Term
    sign: str
    right: Term


Term = Operation | int | str


def to_text(term: Term) -> str:
    """Write a term with spaces between tokens and only the brackets that it needs: ``( 7 + 3 ) * 4 - 12``."""
    if not isinstance(term, Operation):
        return str(term)
    left, right = to_text(term.left), to_text(term.right)
    precedence = _PRECEDENCE[term.sign]
    if isinstance(term.left, Operation) and _PRECEDENCE[term.left.sign] < precedence:
        left = f"( {left} )"
    if isinstance(term.right, Operation) and _PRECEDENCE[term.right.sign] <= precedence:
        right = f"( {right} )"
    return f"{left} {term.sign} {right}"


def canonical(term: Term) -> str:
    """Write all orders and groupings of the terms of a sum, or the factors of a product, as one text."""
    if not isinstance(term, Operation):
        return str(term)
    if term.sign in "-/":
        return f"({canonical(term.left)}{term.sign}{canonical(term.right)})"
    return f"({term.sign.join(sorted(map(canonical, _flat(term, term.sign))))})"


def _flat(term: Term, sign: str) -> list[Term]:
    """Return the operands of nested sums, or products, as one list."""
    if isinstance(term, Operation) and term.sign == sign:
        return _flat(term.left, sign) + _flat(term.right, sign)
    return [term]


#: (a, sign, b) for each step; an operand below 0 stands for an earlier result, -1 for the first step's.
Plan = list[tuple[int, str, int]]


def compute(a: int, sign: str, b: int) -> int:
    """Compute the result of one operation; a quotient is rounded down, and 0 where the divisor is."""
    return {"+": a + b, "-": a - b, "*": a * b, "/": a // b if b else 0}[sign]


def work(plan: Plan, slip: Callable[[int], int] = int) -> list[Step]:
    """Work out a plan; ``slip`` may change a result, and the steps after it go on from what it gave."""
    steps: list[Step] = []
    for left, sign, right in plan:
        a, b = (steps[-1 - n].result if n < 0 else n for n in (left, right))
        steps.append(Step(a, sign, b, slip(compute(a, sign, b))))
    return steps


# ------------------------------------------------------------------------------------------------ tiers and splits


class Tier(NamedTuple):
    """steps: operations in the problem, and so steps of its solution. kind: what there is to do::

    running    evaluate an expression whose operations are done from left to right: ( 7 + 3 ) * 4 - 12
    nested     evaluate an expression of any shape, of which some happen to be running: 60 / ( 2 + 3 * ( 9 - 8 ) )
    equation   solve for x by undoing one operation after the other: ( x + 5 ) * 3 = 36
    """

    kind: str
    steps: int


RUNNING = tuple(Tier("running", steps) for steps in (2, 3, 4, 5))
NESTED = tuple(Tier("nested", steps) for steps in (2, 3))
EQUATIONS = tuple(Tier("equation", steps) for steps in (2, 3))
ALL = RUNNING + NESTED + EQUATIONS

#: The tiers of each split, in equal numbers. The benchmarks differ in difficulty and size, as the paper's five do.
TIERS: Mapping[str, tuple[Tier, ...]] = {
    "base": ALL,
    "train": ALL,
    "probe": ALL,
    "nested_3": (Tier("nested", 3),),
    "running_3": (Tier("running", 3),),
    "mixed": ALL,
    "equations": EQUATIONS,
    "running_5": (Tier("running", 5),),
}
BENCHMARKS = {
    "nested_3": "Nested-3",
    "running_3": "Running-3",
    "mixed": "Mixed",
    "equations": "Equations",
    "running_5": "Running-5",
}
#: Share of all problems, of any tier, that each split owns.
SHARES: Mapping[str, float] = {"base": 0.8, "train": 0.1, "probe": 0.05} | dict.fromkeys(BENCHMARKS, 0.01)


class ArithmeticProblem(NamedTuple):
    """Holds a problem, its id, its answer and how to work it out."""

    id: str
    prompt: str
    answer: int
    plan: Plan


class Draws:
    """Draws uniform numbers from a NumPy generator, many times faster than asking it for one at a time."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self.waiting: list[float] = []

    def unit(self) -> float:
        if not self.waiting:
            self.waiting = self.rng.random(1 << 14).tolist()
        return self.waiting.pop()

    def below(self, bound: int) -> int:
        """Draw a whole number of 0..bound-1."""
        return int(self.unit() * bound)

    def choice(self, options: Sequence[Option]) -> Option:
        return options[self.below(len(options))]


@lru_cache(maxsize=1 << 12)
def _divisors(value: int) -> tuple[int, ...]:
    """Return the divisors between 1 and ``value``."""
    return tuple(d for d in range(2, value // 2 + 1) if value % d == 0)


# ------------------------------------------------------------------------------------------------ the generator


class Generator(Options):
    """Draws problems whose numbers, intermediate results and answers are all in 1..value_max."""

    value_max: Annotated[int, Field(ge=8, le=999)] = 64
    answer_min: Annotated[int, Field(ge=1, le=7)] = 2
    noise: Share = 0.25  # probability that a step of a base document slips: its result is off
    slip_max: Annotated[int, Field(ge=1, le=999)] = 9  # by how much, at most

    def draw(self, draws: Draws, tier: Tier, answer: int) -> ArithmeticProblem:
        """Draw a problem of ``tier`` with this answer, whichever split it belongs to."""
        if tier.kind == "equation":
            return self._equation(draws, tier.steps, answer)
        tree = self._expression(draws, tier.steps, answer, tier.kind == "running")
        plan: Plan = []
        to_plan(tree, plan)
        return ArithmeticProblem(f"mathematics:{canonical(tree)}", f"{to_text(tree)} =", answer, plan)

    def _expression(self, draws: Draws, size: int, value: int, running: bool) -> Operation | int:
        """Draw ``size`` operations with this value; ``running``: the right operand is always a number."""
        if not size:
            return value
        sign, n = self._operation(draws, value, "+-*/")
        a, b = {"+": (n, value - n), "-": (value + n, n), "*": (n, value // n), "/": (value * n, n)}[sign]
        left = size - 1 if running else draws.below(size)
        right = size - 1 - left
        return Operation(self._expression(draws, left, a, running), sign, self._expression(draws, right, b, running))

    def _equation(self, draws: Draws, size: int, x: int) -> ArithmeticProblem:
        """Draw ``size`` operations done to x, which are undone from the last to the first."""
        side: Operation | str = X
        value, undo = x, []
        for _ in range(size):
            undo.append(self._operation(draws, value, "-+/*"))
            sign, b = _INVERSE[undo[-1][0]], undo[-1][1]
            side, value = Operation(side, sign, b), compute(value, sign, b)
        plan = [(-earlier if earlier else value, sign, b) for earlier, (sign, b) in enumerate(reversed(undo))]
        return ArithmeticProblem(
            f"mathematics:{canonical(side)}={value}", f"{to_text(side)} = {value} , {X} =", x, plan
        )

    def _operation(self, draws: Draws, value: int, signs: str) -> tuple[str, int]:
        """Draw one of ``signs`` and a number of an operation with this result.

        The number is a of a + b and a * b, and b of a - b and a / b.
        """
        top = self.value_max
        fits = {"+": value > 1, "-": value < top, "*": bool(_divisors(value)), "/": 2 * value <= top}
        sign = draws.choice([sign for sign in signs if fits[sign]])
        if sign == "*":
            return sign, draws.choice(_divisors(value))
        if sign == "/":
            return sign, 2 + draws.below(top // value - 1)
        return sign, 1 + draws.below(value - 1 if sign == "+" else top - value)

    # -------------------------------------------------------------------------------------------- splits

    def problems(self, rng: np.random.Generator, count: int, split: str) -> list[ArithmeticProblem]:
        """Draw ``count`` distinct problems of ``split``, its tiers and all answers equally often, in random order.

        Raises UserError if so many cannot be found.
        """
        instances: dict[str, ArithmeticProblem] = {}
        draws = Draws(rng)
        for tier, answer in self._draw_pairs(rng, count, split):
            for _ in range(MOST_DRAWS):
                instance = self.draw(draws, tier, answer)
                if instance.id not in instances and owner(instance.id, SHARES) == split:
                    instances[instance.id] = instance
                    break
            else:
                raise too_many(split, count, len(instances), "problems")
        problems = list(instances.values())
        return [problems[i] for i in rng.permutation(count)]

    def documents(self, rng: np.random.Generator, count: int) -> list[tuple[ArithmeticProblem, list[Step]]]:
        """Draw ``count`` supervised documents of the base split in random order; problems may repeat.

        Raises UserError if so many cannot be found.
        """
        draws = Draws(rng)
        documents: list[tuple[ArithmeticProblem, list[Step]]] = []
        for tier, answer in self._draw_pairs(rng, count, "base"):
            for _ in range(MOST_DRAWS):
                instance = self.draw(draws, tier, answer)
                if owner(instance.id, SHARES) == "base":
                    documents.append((instance, work(instance.plan, lambda result: self._slip(draws, result))))
                    break
            else:
                raise too_many("base", count, len(documents), "problems")
        return [documents[i] for i in rng.permutation(count)]

    def _draw_pairs(self, rng: np.random.Generator, count: int, split: str) -> list[tuple[Tier, int]]:
        """Draw ``count`` pairs of a tier and an answer."""
        answers = np.arange(self.answer_min, self.value_max + 1)
        shuffled = np.concatenate([rng.permutation(answers) for _ in range(-(-count // len(answers)))])[:count]
        return list(zip(cycle(TIERS[split]), shuffled.tolist(), strict=False))

    def _slip(self, draws: Draws, result: int) -> int:
        """Return what a step gives that may go wrong."""
        if draws.unit() < self.noise:
            off = 1 + draws.below(self.slip_max)
            result += off if draws.unit() < 0.5 else -off
        return min(max(result, 0), self.value_max)


# ------------------------------------------------------------------------------------------------ solutions


def to_plan(term: Term, plan: Plan) -> int:
    """Append the steps of an expression, the left operand's first. Returns what stands for its value."""
    if not isinstance(term, Operation):
        return int(term)
    left, right = to_plan(term.left, plan), to_plan(term.right, plan)
    plan.append((left, term.sign, right))
    return -len(plan)


def solve(prompt: str) -> str:
    """Work out ``( 7 + 3 ) * 4 - 12 =`` or ``x * 3 + 2 = 14 , x =``, with or without spaces, as a chain of steps."""
    left, _, rest = "".join(prompt.split()).partition("=")
    plan: Plan = []
    value = rest.partition(",")[0]
    side = _term(ast.parse(left, mode="eval").body)
    if not value:
        to_plan(side, plan)
    while value and isinstance(side, Operation):  # what was done to x is undone, from the last to the first
        plan.append((-len(plan) or int(value), _INVERSE[side.sign], to_plan(side.right, plan)))
        side = side.left
    return to_chain(work(plan))


_SIGNS = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}


def _term(tree: ast.expr) -> Term:
    if isinstance(tree, ast.BinOp):
        return Operation(_term(tree.left), _SIGNS[type(tree.op)], _term(tree.right))
    return tree.value if isinstance(tree, ast.Constant) and isinstance(tree.value, int) else X


_ANSWER = re.compile(r"=[ \t\r\n]*([0-9]{1,6})[ \t\r\n]*\Z")


def final_answer(response: str) -> int | None:
    """Return the number after the last equals sign, where the response ends with it; else None."""
    match = _ANSWER.search(response[-64:])  # whatever the response's length
    return int(match[1]) if match else None
