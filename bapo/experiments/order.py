"""Training runs by their names, and their order: a first look, then a row after the other, each with one seed at first.

Snakemake's priorities follow it, and what is outside Table 1 comes last.
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


#: the priority of an evaluation, which follows its run at once, and of what takes a second
AT_ONCE = 10_000


class Priorities:
    """Gives the priorities at a scale. table: its study of Table 1, None where the scale has none."""

    def __init__(self, table: Study | None) -> None:
        runs = in_order(table.cells, table.method_of) if table else []
        self.look = set(first_look(runs, table.method_of)) if table else set()
        self.place = {cell: i for i, cell in enumerate(runs)}

    def of_start(self, task: str, model: str | None = None) -> int:
        """Return the priority of a task's problems, or of a base model."""
        return 5000 if any(c.task == task and model in (None, c.model) for c in self.look) else 2000

    def of_run(self, cell: Cell) -> int:
        """Return the priority of a training run."""
        return (4000 if cell in self.look else 1000) - self.place[cell] if cell in self.place else 0
