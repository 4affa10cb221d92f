"""Tasks from outside the package: of a project's ``experiments/task/NAME.yaml`` or of the entry point ``bapo.tasks``.

The YAML names a class (``code: tasks/words.py:Words``), or says how rows of a file are graded (``answers``), which
takes no code: docs/project.md.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from bapo.errors import UserError
from bapo.experiments import places
from bapo.experiments.schema import TaskConfig
from bapo.project import code_digest, file_and_name, load
from bapo.tasks.base import Task
from bapo.validate import parse_yaml, read

GROUP = "bapo.tasks"


def names() -> list[str]:
    """List the tasks of installed packages and of the project in the working directory."""
    return sorted({*_installed(), *places.own("task")})


@cache
def _installed() -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=GROUP)}


def find(name: str) -> Task | None:
    """Return the task called ``name``; None where there is none. Raises UserError naming the file and what is wrong."""
    if name in _installed():
        _require_names_only(name)
        return _made(_installed()[name].load(), f"entry point {GROUP}: {name}", name)
    path = places.file_of("task", name)
    return _of_file(path, path.stat().st_mtime_ns) if name in places.own("task") else None


def _require_names_only(name: str) -> None:
    """Raise UserError where a project's file makes another task of the name that an installed package has."""
    if name not in places.own("task"):
        return
    path = places.file_of("task", name)
    content = _content(path)
    if content.code or content.answers:
        raise UserError(f"{path}: an installed package has a task {name} (entry point {GROUP}); give this another name")


def _content(path: Path) -> TaskConfig:
    return read(TaskConfig, parse_yaml(path), path)


@lru_cache(maxsize=64)
def _of_file(path: Path, changed: int) -> Task:
    """Make the task of a file. changed: when the file was, so that a later state of it is another task."""
    content = _content(path)
    if content.code and content.answers:
        raise UserError(f"{path}: code and answers: give one of them; each is another kind of task")
    if content.code:
        return _made(load(content.code, f"{path}: code"), f"{path}: code={content.code}", content.name)
    if content.answers:
        from bapo.tasks.rows import RowsTask

        return RowsTask.of_file(content, path)
    raise UserError(f"{path}: code and answers have no value: name a class (code: FILE.py:CLASS) or a way of grading")


def _made(cls: Any, where: str, name: str) -> Task:
    if not (isinstance(cls, type) and issubclass(cls, Task)):
        raise UserError(f"{where}: must be a class derived from bapo.tasks.base.Task")
    task = cls()
    if getattr(task, "name", None) != name:
        raise UserError(
            f"{where}: its name is {getattr(task, 'name', None)!r}; set name = '{name}', as the file is called"
        )
    if cls.verify is Task.verify:
        raise UserError(f"{where}: has no method verify(response, ground_truth), which grades a response; write it")
    if not getattr(task, "benchmarks", None):
        raise UserError(f"{where}: benchmarks is empty; map at least one test split to its title in tables")
    return task


def meaning(name: str) -> dict[str, Any]:
    """Return what identifies a task from outside beside ``config.data``; {} for the suite's own and for packages.

    A package's task raises its ``revision`` when it changes what the same configuration means; of a project's files the
    code and the rows themselves count.
    """
    task = find(name)
    if task is None:
        return {}
    content: dict[str, Any] = {"revision": task.revision} if task.revision else {}
    describe: Callable[[], dict[str, Any]] | None = getattr(task, "content", None)
    if describe:
        content |= describe()
    if name in places.own("task"):
        path = places.file_of("task", name)
        code = _content(path).code
        content |= {"code": code_digest(file_and_name(code, f"{path}: code")[0])} if code else {}
    return content
