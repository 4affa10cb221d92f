"""The order of Table 1's runs: a first look, then rows of all tasks, with every row's first seed before any second."""

from __future__ import annotations

from itertools import pairwise

import pytest

from bapo.experiments import order
from bapo.experiments.cells import Cell
from bapo.experiments.order import AT_ONCE, Priorities
from bapo.experiments.settings import Settings
from bapo.experiments.studies import load_study

TABLE = load_study("table1", "laptop")


def test_the_first_look_then_row_after_row() -> None:
    runs = order.in_order(TABLE.cells, TABLE.method_of)
    assert sorted(map(str, runs)) == sorted(map(str, TABLE.cells))
    look = [(r.task, TABLE.method_of(r), r.seed) for r in runs[:3]]
    assert look == [("countdown", method, 1) for method in ("dapo", "grpo", "bapo")]
    rows = [runs[i : i + 3] for i in range(9, len(runs), 3)]
    assert all(len({(TABLE.method_of(r), r.seed) for r in row}) == 1 for row in rows)
    assert all({r.task for r in row} == {"mathematics", "countdown", "geometry"} for row in rows)
    assert [r.seed for r in runs] == sorted(r.seed for r in runs)  # the whole table with one seed, then the next


@pytest.mark.parametrize("scale", ["smoke", "pocket", "gpu", "single_gpu", "paper"])
def test_every_scale_has_a_first_look_of_one_task_and_seed(scale: str) -> None:
    study = load_study("table1", scale)
    look = order.first_look(study.cells, study.method_of)
    assert {study.method_of(c) for c in look} == {"dapo", "grpo", "bapo"}
    assert len({(c.task, c.model, c.seed) for c in look}) == 1


def test_a_study_without_its_methods_still_has_one() -> None:
    study = load_study("table1", "laptop", methods=["mopps"], seeds=[7, 5])
    assert [(c.task, c.method, c.seed) for c in order.first_look(study.cells)] == [("countdown", "mopps", 5)]


def test_priorities_follow_the_order() -> None:
    """Nothing that the first look needs waits for the rest, and an evaluation waits for nothing."""
    of, settings = Priorities(TABLE), Settings()
    config = settings.run(TABLE.cells[0])
    runs = [of.of_run(cell, config) for cell in order.in_order(TABLE.cells, TABLE.method_of)]
    assert all(a > b for a, b in pairwise(runs))
    start = [of.of_data("countdown"), of.of_base("countdown", "qwen2-112k")]
    rest = [of.of_data("geometry"), of.of_base("geometry", "qwen2.5-vl-325k")]
    descending = [AT_ONCE, *start, *runs[:3], *rest, *runs[3:]]
    assert all(a > b for a, b in pairwise(descending))


def test_outside_the_table_the_longest_runs_start_first() -> None:
    none = Priorities(None)
    cells = {m: Cell("countdown", "qwen2-112k", m, 1) for m in ("grpo", "bapo", "dapo")}
    found = {m: none.of_run(cell, Settings().run(cell)) for m, cell in cells.items()}
    assert found == {"grpo": 10, "bapo": 10, "dapo": 20}
    assert Priorities(TABLE).of_run(cells["grpo"], Settings().run(cells["grpo"])) > 20
