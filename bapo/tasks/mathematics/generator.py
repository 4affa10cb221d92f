"""Arithmetic worked step by step: expressions to evaluate and equations to solve, graded by their number of steps.

A problem is drawn from its answer: the answer is uniform, then a number is replaced again and again by two numbers and
the operation that gives it. So every value on the way is a whole number of 1..value_max, and guessing pays nothing.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Annotated, NamedTuple, TypeVar

import numpy as np
from pydantic import Field

from bapo.errors import UserError
from bapo.tasks import generated
from bapo.tasks.generated import Options, Share, require
from bapo.tasks.mathematics.terms import INVERSE, Node, Plan, Step, X, canonical, compute, to_chain, to_text, work

Option = TypeVar("Option")


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


def owner(identity: str) -> str:
    """Return the one split that this problem may appear in."""
    return generated.owner(identity, SHARES)


class Instance(NamedTuple):
    """A problem, its id, its answer and how to work it out."""

    id: str
    prompt: str
    answer: int
    plan: Plan


class Draws:
    """Uniform numbers from a NumPy generator, many times faster than asking it for one at a time."""

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
    """Problems whose numbers, intermediate results and answers are all in 1..value_max."""

    value_max: Annotated[int, Field(ge=8, le=999)] = 64
    answer_min: Annotated[int, Field(ge=1)] = 2
    noise: Share = 0.25  # probability that a step of a base document slips: its result is off
    slip_max: Annotated[int, Field(ge=1)] = 9  # by how much, at most

    def check(self) -> None:
        for key in ("answer_min", "slip_max"):
            require(getattr(self, key) < self.value_max, key, "be below value_max")

    def draw(self, draws: Draws, tier: Tier, answer: int) -> Instance:
        """Draw a problem of ``tier`` with this answer, whichever split it belongs to."""
        if tier.kind == "equation":
            return self._equation(draws, tier.steps, answer)
        tree = self._expression(draws, tier.steps, answer, tier.kind == "running")
        plan: Plan = []
        to_plan(tree, plan)
        return Instance(f"mathematics:{canonical(tree)}", f"{to_text(tree)} =", answer, plan)

    def _expression(self, draws: Draws, size: int, value: int, running: bool) -> Node | int:
        """Draw ``size`` operations with this value; ``running``: the right operand is always a number."""
        if not size:
            return value
        top = self.value_max
        fits = (value > 1, value < top, bool(_divisors(value)), 2 * value <= top)
        sign = draws.choice([sign for sign, fit in zip("+-*/", fits, strict=True) if fit])
        if sign == "+":
            a = 1 + draws.below(value - 1)
            b = value - a
        elif sign == "-":
            b = 1 + draws.below(top - value)
            a = value + b
        elif sign == "*":
            a = draws.choice(_divisors(value))
            b = value // a
        else:
            b = 2 + draws.below(top // value - 1)
            a = value * b
        left = size - 1 if running else draws.below(size)
        right = size - 1 - left
        return Node(self._expression(draws, left, a, running), sign, self._expression(draws, right, b, running))

    def _equation(self, draws: Draws, size: int, x: int) -> Instance:
        """Draw ``size`` operations done to x, which are undone from the last to the first."""
        side: Node | str = X
        value, undo = x, []
        top = self.value_max
        for _ in range(size):
            fits = (value < top, value > 1, 2 * value <= top, bool(_divisors(value)))
            sign = draws.choice([sign for sign, fit in zip("+-*/", fits, strict=True) if fit])
            if sign == "+":
                b = 1 + draws.below(top - value)
            elif sign == "-":
                b = 1 + draws.below(value - 1)
            elif sign == "*":
                b = 2 + draws.below(top // value - 1)
            else:
                b = draws.choice(_divisors(value))
            side, value = Node(side, sign, b), compute(value, sign, b)
            undo.append((INVERSE[sign], b))
        plan = [(-done if done else value, sign, b) for done, (sign, b) in enumerate(reversed(undo))]
        return Instance(f"mathematics:{canonical(side)}={value}", f"{to_text(side)} = {value} , {X} =", x, plan)

    # -------------------------------------------------------------------------------------------- splits

    def problems(self, rng: np.random.Generator, count: int, split: str) -> list[Instance]:
        """Draw ``count`` distinct problems of ``split``, its tiers and all answers equally often, in random order.

        Raises UserError if so many cannot be found.
        """
        instances: dict[str, Instance] = {}
        draws = Draws(rng)
        for tier, answer in self._wanted(rng, count, split):
            for _ in range(10_000):
                instance = self.draw(draws, tier, answer)
                if instance.id not in instances and owner(instance.id) == split:
                    instances[instance.id] = instance
                    break
            else:
                raise UserError(
                    f"data.split_sizes.{split}: {count} distinct problems are wanted but only {len(instances)} could "
                    "be found; ask for fewer or raise data.generator.value_max"
                )
        problems = list(instances.values())
        return [problems[i] for i in rng.permutation(count)]

    def documents(self, rng: np.random.Generator, count: int) -> list[tuple[Instance, list[Step]]]:
        """Draw ``count`` supervised documents of the base split in random order; problems may repeat."""
        draws, documents = Draws(rng), []
        for tier, answer in self._wanted(rng, count, "base"):
            instance = self.draw(draws, tier, answer)
            while owner(instance.id) != "base":
                instance = self.draw(draws, tier, answer)
            documents.append((instance, work(instance.plan, lambda result: self._slip(draws, result))))
        return [documents[i] for i in rng.permutation(count)]

    def _wanted(self, rng: np.random.Generator, count: int, split: str) -> list[tuple[Tier, int]]:
        """Draw ``count`` pairs of a tier and an answer."""
        answers = np.arange(self.answer_min, self.value_max + 1)
        drawn = np.concatenate([rng.permutation(answers) for _ in range(-(-count // len(answers)))])[:count].tolist()
        tiers = TIERS[split]
        return [(tiers[i % len(tiers)], answer) for i, answer in enumerate(drawn)]

    def _slip(self, draws: Draws, result: int) -> int:
        """Return what a step gives that may go wrong."""
        if draws.unit() < self.noise:
            off = 1 + draws.below(self.slip_max)
            result += off if draws.unit() < 0.5 else -off
        return min(max(result, 0), self.value_max)


def to_plan(term: Node | int | str, plan: Plan) -> int:
    """Append the steps of an expression, the left operand's first. Returns what stands for its value."""
    if not isinstance(term, Node):
        return int(term)
    left, right = to_plan(term.left, plan), to_plan(term.right, plan)
    plan.append((left, term.sign, right))
    return -len(plan)


_SIGNS = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}


def solve(prompt: str) -> str:
    """Work out ``( 7 + 3 ) * 4 - 12 =`` or ``x * 3 + 2 = 14 , x =``, with or without spaces, as a chain of steps.

    Raises UserError where the text is not such a problem.
    """
    left, sign, rest = "".join(prompt.split()).partition("=")
    value, asks, after = rest.partition(f",{X}=")
    try:
        if not sign or after or (rest and not asks):
            raise ValueError("no problem")
        term, plan = _term(ast.parse(left, mode="eval").body), []
        if asks:
            plan = _undone(term, int(value))
        else:
            to_plan(term, plan)
        return to_chain(work(plan))
    except (SyntaxError, ValueError, KeyError, TypeError):
        raise UserError(f"'{prompt[:80]}': not a generated problem of arithmetic; make the data again") from None


def _term(tree: ast.expr) -> Node | int | str:
    if isinstance(tree, ast.BinOp):
        return Node(_term(tree.left), _SIGNS[type(tree.op)], _term(tree.right))
    if isinstance(tree, ast.Constant) and type(tree.value) is int:
        return tree.value
    if isinstance(tree, ast.Name) and tree.id == X:
        return X
    raise ValueError("neither number, x nor operation")


def _undone(side: Node | int | str, value: int) -> Plan:
    """Plan the steps that give x of ``side = value``: what was done to x, undone from the last to the first."""
    plan: Plan = []
    while isinstance(side, Node):
        plan.append((-len(plan) or value, INVERSE[side.sign], int(side.right)))
        side = side.left
    if side != X or not plan:
        raise ValueError("no equation in x")
    return plan
