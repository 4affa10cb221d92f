"""The order of Table 1's runs: a first look, then rows of all tasks, with every row's first seed before any second."""

from __future__ import annotations

from itertools import pairwise

import pytest

from bapo.experiments import order
from bapo.experiments.order import AT_ONCE, Cell, Priorities
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
    of = Priorities(TABLE)
    runs = [of.of_run(cell) for cell in order.in_order(TABLE.cells, TABLE.method_of)]
    assert all(a > b for a, b in pairwise(runs)) and runs[-1] > of.of_run(Cell("countdown", "m", "grpo", 1))
    look, rest = of.of_start("countdown"), of.of_start("geometry")
    assert (of.of_start("countdown", "qwen2-112k"), of.of_start("geometry", "qwen2.5-vl-325k")) == (look, rest)
    assert all(a > b for a, b in pairwise([AT_ONCE, look, *runs[:3], rest, *runs[3:]]))
