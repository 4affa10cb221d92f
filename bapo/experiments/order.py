"""The names of training runs, and their order: a first look, then all rows with one seed, then with further seeds.

Snakemake's priorities follow this order. Runs outside Table 1 come last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from bapo.experiments.studies import Study


@dataclass(frozen=True)
class Cell:
    """Names one training run."""

    task: str
    model: str
    method: str
    seed: int


R = TypeVar("R", bound=Cell)

#: task and methods of the first look. The longest run comes first, so that two cores finish all of them soonest
TASK, METHODS = "countdown", ("dapo", "grpo", "bapo")


def first_look(runs: Sequence[R], method_of: Callable[[R], str] = lambda run: run.method) -> list[R]:
    """Return the runs of METHODS with the lowest seed on TASK.

    A study without TASK shows its first task, and one without METHODS as many other methods. method_of: the method that
    a run stands for.
    """
    start = next((r for r in runs if r.task == TASK), runs[0])
    block = [r for r in runs if (r.task, r.model) == (start.task, start.model)]
    one_seed = sorted((r for r in block if r.seed == min(b.seed for b in block)), key=method_of)
    return [r for r in one_seed if method_of(r) in METHODS] or one_seed[: len(METHODS)]


def in_order(runs: Sequence[R], method_of: Callable[[R], str]) -> list[R]:
    """Return the runs in the order in which they should start.

    The first look is followed by one row after another, a row being a method on every task. All rows get their first
    seed before any gets its second, so that a third of the time gives the whole table with one seed. METHODS are the
    first rows, so that the runs of DAPO, the longest, never end last.
    """
    look = first_look(runs, method_of)
    seeds, tasks = _ranks(r.seed for r in runs), _ranks(r.task for r in runs)
    rows = _ranks([*METHODS, *map(method_of, runs)])
    return sorted(runs, key=lambda r: (r not in look, seeds[r.seed], rows[method_of(r)], tasks[r.task]))


def _ranks(names: Iterable[str | int]) -> dict[str | int, int]:
    return {name: rank for rank, name in enumerate(dict.fromkeys(names))}


#: the priority of evaluations, which follow their run at once, and of jobs that take a second
AT_ONCE = 10_000


class Priorities:
    """Gives the priorities of jobs at a scale. table: its study of Table 1, or None where it has none."""

    def __init__(self, table: Study | None) -> None:
        runs = in_order(table.cells, table.method_of) if table else []
        self.look = set(first_look(runs, table.method_of)) if table else set()
        self.rank = {cell: i for i, cell in enumerate(runs)}

    def of_start(self, task: str, model: str | None = None) -> int:
        """Return the priority of a task's problems, or of a base model."""
        return 5000 if any(c.task == task and model in (None, c.model) for c in self.look) else 2000

    def of_run(self, cell: Cell) -> int:
        """Return the priority of a training run."""
        return (4000 if cell in self.look else 1000) - self.rank[cell] if cell in self.rank else 0
