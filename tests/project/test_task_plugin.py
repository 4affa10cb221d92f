"""A task of another package: installed beside this one, found through its entry point, its problems written."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bapo import init, tasks
from bapo.__main__ import main
from bapo.errors import UserError
from bapo.experiments.compose import forget
from bapo.store.files import SUMMARY, read_json

WORDS = ["data", "scale=smoke", "task=ordering"]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A project whose example of a task is in the distribution ``toy-task`` in ``site`` beside it."""
    monkeypatch.delenv("BAPO_EXPERIMENTS", raising=False)
    init.write(tmp_path / "mine")
    information = tmp_path / "site" / "toy_task-1.0.dist-info"
    information.mkdir(parents=True)
    (tmp_path / "mine" / "tasks" / "ordering.py").rename(tmp_path / "site" / "toy_task.py")
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-task\nVersion: 1.0\n", encoding="utf-8")
    (information / "entry_points.txt").write_text("[bapo.tasks]\nordering = toy_task:Ordering\n", encoding="utf-8")
    (tmp_path / "mine/experiments/task/ordering.yaml").write_text("name: ordering\ntitle: Ordering\n")
    monkeypatch.chdir(tmp_path / "mine")
    forget()
    tasks._installed.cache_clear()
    yield tmp_path / "mine"
    forget()
    tasks._installed.cache_clear()


def test_its_problems_are_written(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(project.parent / "site")
    assert main(WORDS) == 0
    summary = read_json(project / "results/smoke/ordering/data" / SUMMARY)
    assert summary["problems"]["ordering_test"] == {"problems": 40} and summary["golds"] == {"ordering_test": 40}


def test_a_task_without_a_class_is_refused(project: Path) -> None:
    with pytest.raises(UserError, match=r"experiments/task/ordering.yaml: code has no value"):
        tasks.get("ordering")
