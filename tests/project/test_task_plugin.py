"""A task of another package: installed beside this one, found through its entry point, its problems written."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bapo import tasks
from bapo.__main__ import main
from bapo.errors import UserError
from bapo.store.files import SUMMARY, read_json

WORDS = ["data", "scale=smoke", "task=ordering"]


@pytest.fixture
def project(example_project: Path) -> Iterator[Path]:
    """A project whose example of a task is in the distribution ``toy-task`` in ``site`` beside it."""
    site = example_project.parent / "site"
    information = site / "toy_task-1.0.dist-info"
    information.mkdir(parents=True)
    (example_project / "tasks" / "ordering.py").rename(site / "toy_task.py")
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-task\nVersion: 1.0\n", encoding="utf-8")
    (information / "entry_points.txt").write_text("[bapo.tasks]\nordering = toy_task:Ordering\n", encoding="utf-8")
    describe(example_project, "")
    tasks._installed.cache_clear()
    yield example_project
    tasks._installed.cache_clear()


def describe(project: Path, more: str) -> None:
    text = f"name: ordering\ntitle: Ordering\n{more}"
    (project / "experiments" / "task" / "ordering.yaml").write_text(text, encoding="utf-8")


def test_its_problems_are_written(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(project.parent / "site")
    assert main(WORDS) == 0
    summary = read_json(project / "results/smoke/ordering/data" / SUMMARY)
    assert summary["problems"]["ordering_test"] == {"problems": 40} and summary["golds"] == {"ordering_test": 40}


@pytest.mark.parametrize(
    ("installed", "more", "named"),
    [
        (False, "", "experiments/task/ordering.yaml: code has no value"),
        (True, "code: tasks/x.py:X\n", "task/ordering.yaml: an installed package has a task ordering"),
    ],
)
def test_no_task_and_two_tasks_are_refused(
    project: Path, monkeypatch: pytest.MonkeyPatch, installed: bool, more: str, named: str
) -> None:
    if installed:
        monkeypatch.syspath_prepend(project.parent / "site")
    describe(project, more)
    with pytest.raises(UserError, match=named):
        tasks.get("ordering")
