"""Snakemake's priorities: what a first look at Table 1 needs, then Table 1's runs in their order, then the rest."""

from __future__ import annotations

from bapo.experiments import order
from bapo.experiments.cells import Cell
from bapo.experiments.schema import Config
from bapo.experiments.studies import Study

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
        self.look = set(order.first_look(table.cells, table.method_of)) if table else set()
        self.place = {c: i for i, c in enumerate(order.in_order(table.cells, table.method_of))} if table else {}

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
