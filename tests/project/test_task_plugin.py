"""A task of another package: installed beside this one, found through its entry point, its problems written."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.paths import ROOT

from bapo import init
from bapo.store.files import SUMMARY, read_json


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project whose example of a task is in the distribution ``toy-task`` in ``site`` beside it."""
    init.write(tmp_path / "mine")
    site = tmp_path / "site"
    information = site / "toy_task-1.0.dist-info"
    information.mkdir(parents=True)
    (tmp_path / "mine" / "tasks" / "ordering.py").rename(site / "toy_task.py")
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-task\nVersion: 1.0\n", encoding="utf-8")
    (information / "entry_points.txt").write_text("[bapo.tasks]\nordering = toy_task:Ordering\n", encoding="utf-8")
    names = "name: ordering\ntitle: Ordering\n"
    (tmp_path / "mine" / "experiments" / "task" / "ordering.yaml").write_text(names, encoding="utf-8")
    return tmp_path / "mine"


def data(project: Path, *places: Path) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(map(str, [*places, ROOT]))
    command = [sys.executable, "-m", "bapo", "data", "scale=smoke", "task=ordering"]
    known = {**os.environ, "PYTHONPATH": path}
    return subprocess.run(command, cwd=project, env=known, capture_output=True, text=True, timeout=900)


def test_its_problems_are_written(project: Path) -> None:
    done = data(project, project.parent / "site")
    assert done.returncode == 0, done.stderr
    summary = read_json(project / "results/smoke/ordering/data" / SUMMARY)
    assert summary["problems"]["ordering_test"] == {"problems": 40} and summary["golds"] == {"ordering_test": 40}


def test_without_the_package_it_is_not_there(project: Path) -> None:
    done = data(project)
    assert done.returncode == 2
    assert "experiments/task/ordering.yaml: code has no value" in done.stderr


def test_two_tasks_of_a_name_are_refused(project: Path) -> None:
    (project / "experiments" / "task" / "ordering.yaml").write_text(
        "name: ordering\ntitle: Ordering\ncode: tasks/x.py:X\n", encoding="utf-8"
    )
    done = data(project, project.parent / "site")
    assert done.returncode == 2 and "an installed package has a task ordering" in done.stderr
