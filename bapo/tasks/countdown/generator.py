"""Countdown's generators.

The exact one is that of the public Countdown-Tasks-3to4 set: the target is drawn first, then the numbers again and
again until a search solves the problem. The reduced one draws random chains of steps between small numbers, so that a
small model with one token a number can learn the task on a laptop. The easy one lists all problems of two and three
small numbers: what a small pretrained model sometimes solves when it is shown how.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations_with_replacement
from typing import Any, NamedTuple

import numpy as np

from bapo.errors import UserError
from bapo.tasks.countdown.problems import (
    EASY_SHARES,
    EASY_SPLITS,
    SHOWN,
    Step,
    easy_owner,
    owned,
    owner,
    problem_id,
    solve_steps,
)
from bapo.tasks.generated import require
from bapo.validate import read, wrong

SIGNS = ("+", "-", "*", "/")


class Instance(NamedTuple):
    """A problem with one of its solutions."""

    numbers: tuple[int, ...]
    target: int
    steps: list[Step]


@dataclass(frozen=True)
class ExactGenerator:
    """Problems as in the paper: 3 or 4 numbers with equal chance, target uniform, numbers redrawn until solvable."""

    kind: str = "exact"
    number_max: int = 99
    target_min: int = 10
    target_max: int = 100

    def __post_init__(self) -> None:
        require(self, "number_max", 1 <= self.number_max <= 9999, "be in 1..9999")
        require(self, "target_min", 0 <= self.target_min <= self.target_max, "be in 0..target_max")

    def draw(self, rng: np.random.Generator, sizes: tuple[int, ...] = (3, 4), split: str | None = None) -> Instance:
        """Draw one problem, with replacement of numbers and without de-duplication.

        ``split``: only problems that this split owns. Raises UserError when a million draws find none.
        """
        size = int(rng.choice(sizes))
        target = int(rng.integers(self.target_min, self.target_max + 1))
        for _ in range(1_000_000):
            numbers = tuple(rng.integers(1, self.number_max + 1, size).tolist())
            if split is not None and owner(numbers, target) != split:
                continue  # the hash is much cheaper than the search
            steps = solve_steps(numbers, target)
            if steps is not None:
                return Instance(numbers, target, steps)
        raise UserError(
            f"data.generator.number_max={self.number_max}: no solvable problem with {size} numbers and target {target} "
            f"for split '{split}' in a million draws; raise it"
        )

    def problems(self, rng: np.random.Generator, count: int, split: str) -> list[Instance]:
        """Draw ``count`` distinct problems owned by ``split``; ``cd4`` has four numbers only."""
        sizes = (4,) if split == "cd4" else (3, 4)
        instances: dict[str, Instance] = {}
        for _ in range(20 * count):
            if len(instances) == count:
                break
            instance = self.draw(rng, sizes, split)
            instances.setdefault(problem_id(instance.numbers, instance.target), instance)
        if len(instances) < count:
            raise _too_many(split, count, len(instances))
        return list(instances.values())


class Chains(NamedTuple):
    """N random chains over k numbers. numbers: int64 [N, k] in the order of the prompt; targets: int64 [N];
    steps: int64 [N, k-1, 4] holding a, index into SIGNS, b, result.
    """

    numbers: np.ndarray
    steps: np.ndarray
    targets: np.ndarray

    def select(self, index: np.ndarray) -> Chains:
        return Chains(self.numbers[index], self.steps[index], self.targets[index])


@dataclass(frozen=True)
class ReducedGenerator:
    """Problems for a small model: numbers 1..number_max, every result 0..value_max, targets of target_min and more."""

    kind: str = "reduced"
    number_max: int = 12
    value_max: int = 60
    target_min: int = 10
    three_number_share: float = 0.4  # of the base documents
    noise: float = 0.5  # share of the base documents whose target is permuted

    _CHUNK = 1 << 15  # chains drawn at a time; part of what the data are, like the seed

    def __post_init__(self) -> None:
        for key in ("three_number_share", "noise"):
            require(self, key, 0 <= getattr(self, key) <= 1, "be in 0..1")
        require(self, "value_max", self.value_max <= 999, "be at most 999")
        require(self, "number_max", 1 <= self.number_max <= self.value_max, "be in 1..value_max")
        require(self, "target_min", 0 <= self.target_min <= self.value_max, "be in 0..value_max")

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

    def problems(self, rng: np.random.Generator, count: int, split: str) -> list[Instance]:
        """Draw ``count`` distinct problems owned by ``split``, in random order.

        Half of them have three numbers, ``cd4`` none. Raises UserError if the split does not own as many.
        """
        threes = 0 if split == "cd4" else count // 2
        instances = self._distinct(rng, 3, threes, split) + self._distinct(rng, 4, count - threes, split)
        return [instances[i] for i in rng.permutation(len(instances))]

    def _distinct(self, rng: np.random.Generator, size: int, count: int, split: str) -> list[Instance]:
        instances: dict[str, Instance] = {}
        barren = 0
        while len(instances) < count:
            before = len(instances)
            chains = self.draw(rng, self._CHUNK, size)
            for instance in _instances(chains.select(owned(chains.numbers, chains.targets, split))):
                instances.setdefault(problem_id(instance.numbers, instance.target), instance)
            barren = barren + 1 if len(instances) == before else 0
            if barren == 50:
                raise _too_many(split, count, len(instances), f" with {size} numbers")
        return list(instances.values())[:count]

    def documents(self, rng: np.random.Generator, count: int) -> list[Instance]:
        """Draw ``count`` supervised documents in random order; problems repeat, with the same or other solutions.

        A noisy document's target is not what its steps reach. Its prompt is a problem of the base split all the same.
        """
        threes = round(count * self.three_number_share)
        documents = self._documents(rng, 3, threes) + self._documents(rng, 4, count - threes)
        return [documents[i] for i in rng.permutation(count)]

    def _documents(self, rng: np.random.Generator, size: int, count: int) -> list[Instance]:
        parts: list[Chains] = []
        while sum(len(part.targets) for part in parts) < count:
            chains = self.draw(rng, self._CHUNK, size)
            parts.append(chains.select(owned(chains.numbers, chains.targets, "base")))
        if not parts:
            return []
        chains = Chains(*(np.concatenate(columns)[:count] for columns in zip(*parts, strict=True)))
        asked = self._permuted(rng, chains)
        return [
            instance._replace(target=target)
            for instance, target in zip(_instances(chains), asked.tolist(), strict=True)
        ]

    def _permuted(self, rng: np.random.Generator, chains: Chains) -> np.ndarray:
        """Permute a share ``noise`` of the targets among themselves, without leaving the base split.

        A permuted target may make a problem of another split. It is permuted again; after 32 rounds the document keeps
        its own.
        """
        asked = chains.targets.copy()
        waiting = np.flatnonzero(rng.random(len(asked)) < self.noise)
        for _ in range(32):
            if not len(waiting):
                break
            drawn = rng.permutation(chains.targets[waiting])
            fits = owned(chains.numbers[waiting], drawn, "base")
            asked[waiting[fits]] = drawn[fits]
            waiting = waiting[~fits]
        return asked


def _instances(chains: Chains) -> list[Instance]:
    rows = zip(chains.numbers.tolist(), chains.targets.tolist(), chains.steps.tolist(), strict=True)
    return [
        Instance(tuple(numbers), target, [Step(a, SIGNS[sign], b, result) for a, sign, b, result in steps])
        for numbers, target, steps in rows
    ]


@dataclass(frozen=True)
class EasyGenerator:
    """Problems with 2 and 3 numbers 1..number_max that + and - solve without a result below 0 on the way.

    two_number_share: of the problems of a split that has both sizes, as far as there are so many.
    """

    kind: str = "easy"
    number_max: int = 20
    target_min: int = 1
    target_max: int = 60
    two_number_share: float = 0.5

    def __post_init__(self) -> None:
        require(self, "number_max", 1 <= self.number_max <= 50, "be in 1..50")
        require(self, "target_min", 0 <= self.target_min <= self.target_max, "be in 0..target_max")
        require(self, "two_number_share", 0 <= self.two_number_share <= 1, "be in 0..1")

    def problems(self, rng: np.random.Generator, count: int, split: str) -> list[Instance]:
        """Draw ``count`` distinct problems owned by ``split``, their numbers in random order.

        Raises UserError if the split does not own as many.
        """
        if split not in EASY_SPLITS:
            cure = f"no such split of the easy problems; they have {', '.join(EASY_SPLITS)}"
            raise wrong(None, f"data.split_sizes.{split}", count, cure)
        pools = {size: self._owned(size, split) for size in EASY_SHARES if EASY_SHARES[size][split]}
        if sum(map(len, pools.values())) < count:
            raise _too_many(split, count, sum(map(len, pools.values())))
        wanted_twos = round(count * self.two_number_share)
        twos = max(min(wanted_twos, len(pools.get(2, ()))), count - len(pools.get(3, ())))
        chosen = []
        for size, wanted in ((2, twos), (3, count - twos)):
            if wanted:
                chosen += [pools[size][i] for i in rng.permutation(len(pools[size]))[:wanted]]
        return [self._instance(rng, *chosen[i]) for i in rng.permutation(len(chosen))]

    def _owned(self, size: int, split: str) -> list[tuple[tuple[int, ...], int]]:
        """List the (sorted numbers, target) that the split owns, in a fixed order."""
        allowed = range(self.target_min, self.target_max + 1)
        every = combinations_with_replacement(range(1, self.number_max + 1), size)
        problems = [(numbers, target) for numbers in every for target in sorted(_reached(numbers)) if target in allowed]
        return [
            (numbers, target)
            for numbers, target in problems
            if easy_owner(numbers, target) == split and problem_id(numbers, target) not in SHOWN
        ]

    @staticmethod
    def _instance(rng: np.random.Generator, numbers: tuple[int, ...], target: int) -> Instance:
        steps = solve_steps(numbers, target)
        assert steps is not None, (numbers, target)
        return Instance(tuple(rng.permutation(numbers).tolist()), target, steps)


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


Generator = ExactGenerator | ReducedGenerator | EasyGenerator
KINDS: dict[str, type[Generator]] = {"exact": ExactGenerator, "reduced": ReducedGenerator, "easy": EasyGenerator}


def build(options: Mapping[str, Any], default_kind: str) -> Generator:
    """Build the generator of ``config.data.generator``; its key ``kind`` is one of KINDS.

    Raises UserError naming key, value and cure.
    """
    kind = options.get("kind", default_kind)
    if kind not in KINDS:
        raise wrong(None, "data.generator.kind", kind, f"must be one of {', '.join(KINDS)}")
    return read(KINDS[kind], {**options, "kind": kind}, None, "data.generator")


def _too_many(split: str, count: int, available: int, what: str = "") -> UserError:
    return UserError(
        f"data.split_sizes.{split}: {count} distinct problems{what} are wanted but only {available} could be found; "
        "ask for fewer or raise data.generator.number_max"
    )
