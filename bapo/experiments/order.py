"""The order of a table's runs: a first look first, then a row after the other, each row with one seed at first."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, TypeVar


class Run(Protocol):
    """What the order of a run depends on."""

    @property
    def task(self) -> str: ...
    @property
    def model(self) -> str: ...
    @property
    def method(self) -> str: ...
    @property
    def seed(self) -> int: ...


R = TypeVar("R", bound=Run)

#: what the first look shows: this task, and these methods, the longest run first so that two cores end them soonest
TASK, METHODS = "countdown", ("dapo", "grpo", "bapo")


def first_look(runs: Sequence[R], method_of: Callable[[R], str] = lambda run: run.method) -> list[R]:
    """Return METHODS with the lowest seed on TASK; of a study without them, other methods or its first task.

    method_of: the method that a run stands for.
    """
    start = next((r for r in runs if r.task == TASK), runs[0])
    block = [r for r in runs if (r.task, r.model) == (start.task, start.model)]
    same = sorted((r for r in block if r.seed == min(b.seed for b in block)), key=method_of)
    return [r for r in same if method_of(r) in METHODS] or same[: len(METHODS)]


def in_order(runs: Sequence[R], method_of: Callable[[R], str] = lambda run: run.method) -> list[R]:
    """Return the runs as they should start.

    After the first look a row follows the other, that is a method on every task. All rows get their first seed before
    one gets its second: after a third of the time a reader has the whole table with one seed, and no row waits for the
    end. METHODS are the first rows. DAPO's runs, the longest, so never end last.
    """
    look = first_look(runs, method_of)
    seeds, tasks = _ranks(r.seed for r in runs), _ranks(r.task for r in runs)
    rows = _ranks([*METHODS, *map(method_of, runs)])
    return sorted(runs, key=lambda r: (r not in look, seeds[r.seed], rows[method_of(r)], tasks[r.task]))


def _ranks(names: Iterable[str | int]) -> dict[str | int, int]:
    return {name: rank for rank, name in enumerate(dict.fromkeys(names))}
