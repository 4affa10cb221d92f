"""The order of a table's runs: a first look first, then a row after the other, each row with one seed at first.

Snakemake's priorities follow it, and what is outside the table comes last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from bapo.experiments.cells import Cell
    from bapo.experiments.schema import Config
    from bapo.experiments.studies import Study


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


# ------------------------------------------------------------------------------------------------ priorities

#: an evaluation follows its run at once, and what takes a second never waits
AT_ONCE = 10_000
#: of problems, a base model and the first of the runs: those of the first look, and those of the rest
LOOK = {"data": 6000, "base": 5000, "run": 4000}
REST = {"data": 3000, "base": 2000, "run": 1000}
#: of a run outside Table 1: longest first, so that no core idles at the end (DAPO generates up to 4x)
LONG, OTHER = 20, 10


class Priorities:
    """The priorities at a scale. table: its study of Table 1, None where the scale has none."""

    def __init__(self, table: Study | None) -> None:
        self.look = set(first_look(table.cells, table.method_of)) if table else set()
        self.place = {c: i for i, c in enumerate(in_order(table.cells, table.method_of))} if table else {}

    def of_data(self, task: str) -> int:
        """Return the priority of a task's problems."""
        return (LOOK if any(c.task == task for c in self.look) else REST)["data"]

    def of_base(self, task: str, model: str) -> int:
        """Return the priority of a base model."""
        return (LOOK if any((c.task, c.model) == (task, model) for c in self.look) else REST)["base"]

    def of_run(self, cell: Cell, config: Config) -> int:
        """Return the priority of a training run, whose configuration is asked for outside Table 1 only."""
        if cell in self.place:
            return (LOOK if cell in self.look else REST)["run"] - self.place[cell]
        return LONG if config.method.algorithm == "dapo" else OTHER
