"""Countdown's generators.

The reduced one draws random chains of steps between small numbers, so that a small model with one token a number can
learn the task on a laptop. The easy one lists all problems of two and three small numbers: what a small pretrained
model sometimes solves when it is shown how.
"""

from __future__ import annotations

from itertools import combinations_with_replacement
from typing import Annotated, Literal, NamedTuple

import numpy as np
from pydantic import Field

from bapo.tasks.countdown.problems import EASY_SHARES, SHOWN, owned, problem_id
from bapo.tasks.generated import BARREN, Options, Share, Step, owner, too_many

SIGNS = ("+", "-", "*", "/")
_CHUNK = 1 << 15  # chains drawn at a time; part of what the data are, like the seed


class CountdownProblem(NamedTuple):
    """Holds a problem, and one of its solutions where it is a document's."""

    numbers: tuple[int, ...]
    target: int
    steps: list[Step]


class Chains(NamedTuple):
    """Holds N random chains over k numbers.

    numbers: int64 [N, k] in the order of the prompt; targets: int64 [N]; steps: int64 [N, k-1, 4], which are a, index
    into SIGNS, b, result.
    """

    numbers: np.ndarray
    steps: np.ndarray
    targets: np.ndarray

    def select(self, index: np.ndarray) -> Chains:
        return Chains(self.numbers[index], self.steps[index], self.targets[index])


class ReducedGenerator(Options):
    """Draws problems for a small model: numbers 1..number_max, results 0..value_max, targets of target_min and more."""

    kind: Literal["reduced"] = "reduced"
    value_max: Annotated[int, Field(ge=1, le=999)] = 60
    number_max: Annotated[int, Field(ge=1, le=999)] = 12
    target_min: Annotated[int, Field(ge=0, le=999)] = 10
    three_number_share: Share = 0.4  # of the base documents
    noise: Share = 0.5  # share of the base documents whose target is permuted

    def draw(self, rng: np.random.Generator, count: int, size: int) -> Chains:
        """Draw ``count`` random chains over ``size`` numbers and keep those within the bounds (13-22%).

        Each step takes two of the remaining numbers and one of + - * / at random.
        """
        numbers = rng.integers(1, self.number_max + 1, size=(count, size))
        left = numbers.copy()
        valid = np.ones(count, dtype=bool)
        steps = np.empty((count, size - 1, 4), dtype=np.int64)
        for i in range(size - 1):
            order = np.argsort(rng.random(left.shape), axis=1)
            left = np.take_along_axis(left, order, axis=1)
            a, b = left[:, 0], left[:, 1]
            sign = rng.integers(0, len(SIGNS), count)
            divisor = np.where(b == 0, 1, b)
            result = np.choose(sign, (a + b, a - b, a * b, a // divisor))
            valid &= (sign != 3) | ((b != 0) & (a % divisor == 0))
            valid &= (result >= 0) & (result <= self.value_max)
            steps[:, i] = np.stack([a, sign, b, result], axis=1)
            # rejected chains go on with a value that cannot overflow
            left = np.concatenate([np.clip(result, 0, self.value_max)[:, None], left[:, 2:]], axis=1)
        valid &= left[:, 0] >= self.target_min
        return Chains(numbers[valid], steps[valid], left[valid, 0])

    def problems(self, rng: np.random.Generator, count: int, split: str) -> list[CountdownProblem]:
        """Draw ``count`` distinct problems owned by ``split``, in random order.

        Half of them have three numbers, ``cd4`` none. Raises UserError if the split does not own as many.
        """
        threes = 0 if split == "cd4" else count // 2
        instances = self._distinct(rng, 3, threes, split) + self._distinct(rng, 4, count - threes, split)
        return [instances[i] for i in rng.permutation(len(instances))]

    def _distinct(self, rng: np.random.Generator, size: int, count: int, split: str) -> list[CountdownProblem]:
        instances: dict[str, CountdownProblem] = {}
        barren = 0
        while len(instances) < count:
            before = len(instances)
            chains = self.draw(rng, _CHUNK, size)
            for instance in _instances(chains.select(owned(chains.numbers, chains.targets, split))):
                instances.setdefault(problem_id(instance.numbers, instance.target), instance)
            barren = barren + 1 if len(instances) == before else 0
            if barren == BARREN:
                raise too_many(split, count, len(instances), f"problems with {size} numbers")
        return list(instances.values())[:count]

    def documents(self, rng: np.random.Generator, count: int) -> list[CountdownProblem]:
        """Draw ``count`` supervised documents in random order; problems repeat, with the same or other solutions.

        A noisy document's target is not what its steps reach. Its prompt is a problem of the base split all the same.
        """
        threes = round(count * self.three_number_share)
        documents = self._documents(rng, 3, threes) + self._documents(rng, 4, count - threes)
        return [documents[i] for i in rng.permutation(count)]

    def _documents(self, rng: np.random.Generator, size: int, count: int) -> list[CountdownProblem]:
        parts: list[Chains] = []
        barren = drawn = 0
        while drawn < count:
            chains = self.draw(rng, _CHUNK, size)
            parts.append(chains.select(owned(chains.numbers, chains.targets, "base")))
            drawn += len(parts[-1].targets)
            barren = 0 if len(parts[-1].targets) else barren + 1
            if barren == BARREN:
                raise too_many("base", count, drawn, f"problems with {size} numbers")
        if not parts:
            return []
        chains = Chains(*(np.concatenate(columns)[:count] for columns in zip(*parts, strict=True)))
        targets = self._permuted(rng, chains).tolist()
        return [i._replace(target=target) for i, target in zip(_instances(chains), targets, strict=True)]

    def _permuted(self, rng: np.random.Generator, chains: Chains) -> np.ndarray:
        """Permute a share ``noise`` of the targets among themselves, without leaving the base split.

        A permuted target may make a problem of another split. It is permuted again; after 32 rounds the document keeps
        its own.
        """
        targets = chains.targets.copy()
        waiting = np.flatnonzero(rng.random(len(targets)) < self.noise)
        for _ in range(32):
            if not len(waiting):
                break
            candidates = rng.permutation(chains.targets[waiting])
            fits = owned(chains.numbers[waiting], candidates, "base")
            targets[waiting[fits]] = candidates[fits]
            waiting = waiting[~fits]
        return targets


def _instances(chains: Chains) -> list[CountdownProblem]:
    rows = zip(chains.numbers.tolist(), chains.targets.tolist(), chains.steps.tolist(), strict=True)
    return [
        CountdownProblem(tuple(numbers), target, [Step(a, SIGNS[sign], b, result) for a, sign, b, result in steps])
        for numbers, target, steps in rows
    ]


class EasyGenerator(Options):
    """Draws problems with 2 and 3 numbers 1..number_max that + and - solve without a result below 0 on the way.

    two_number_share: of the problems of a split that has both sizes, as far as there are so many.
    """

    kind: Literal["easy"] = "easy"
    number_max: Annotated[int, Field(ge=1, le=50)] = 20
    target_min: Annotated[int, Field(ge=0)] = 1
    target_max: int = 60
    two_number_share: Share = 0.5

    def problems(self, rng: np.random.Generator, count: int, split: str) -> list[CountdownProblem]:
        """Draw ``count`` distinct problems owned by ``split``, their numbers in random order.

        Raises UserError if the split does not own as many.
        """
        pools = {size: self._owned(size, split) for size in EASY_SHARES if EASY_SHARES[size][split]}
        if sum(map(len, pools.values())) < count:
            raise too_many(split, count, sum(map(len, pools.values())), "problems")
        wanted_twos = round(count * self.two_number_share)
        twos = max(min(wanted_twos, len(pools.get(2, ()))), count - len(pools.get(3, ())))
        problems = []
        for size, size_count in ((2, twos), (3, count - twos)):
            if size_count:
                problems += [pools[size][i] for i in rng.permutation(len(pools[size]))[:size_count]]
        return [
            CountdownProblem(tuple(rng.permutation(numbers).tolist()), target, [])
            for numbers, target in (problems[i] for i in rng.permutation(len(problems)))
        ]

    def _owned(self, size: int, split: str) -> list[tuple[tuple[int, ...], int]]:
        """List the (sorted numbers, target) that the split owns, in a fixed order."""
        allowed = range(self.target_min, self.target_max + 1)
        every = combinations_with_replacement(range(1, self.number_max + 1), size)
        problems = [(numbers, target) for numbers in every for target in sorted(_reached(numbers)) if target in allowed]
        return [
            p for p in problems if (name := problem_id(*p)) not in SHOWN and owner(name, EASY_SHARES[size]) == split
        ]


def _reached(values: tuple[int, ...]) -> set[int]:
    """Return what + and - between all ``values`` (sorted) can make, without a result below 0 on the way."""
    if len(values) == 1:
        return {values[0]}
    reached: set[int] = set()
    for i, b in enumerate(values):
        for j in range(i + 1, len(values)):
            rest = (*values[:i], *values[i + 1 : j], *values[j + 1 :])
            for result in (values[j] + b, values[j] - b):
                reached |= _reached(tuple(sorted((*rest, result))))
    return reached


Generator = ReducedGenerator | EasyGenerator
#: ``data.prompt`` -> the generator that suits it
GENERATORS: dict[str, type[Generator]] = {"chain": ReducedGenerator, "few-shot": EasyGenerator}
