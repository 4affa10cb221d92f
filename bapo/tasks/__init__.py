"""The tasks, one class each: the suite's, those of installed packages and those of the project worked in.

A project's ``experiments/task/NAME.yaml`` names its class (``code: tasks/words.py:Words``), a package registers it
under the entry point ``bapo.tasks``: docs/project.md. A task is imported when it is asked for.
"""

from __future__ import annotations

from functools import cache, lru_cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

from bapo.errors import UserError
from bapo.tasks.base import Task

GROUP = "bapo.tasks"
_TABLE = {
    "countdown": "bapo.tasks.countdown.task:Countdown",
    "geometry": "bapo.tasks.geometry.task:Geometry",
    "mathematics": "bapo.tasks.mathematics.task:Mathematics",
}


def table() -> dict[str, str]:
    """Return the name of each of the suite's own tasks and the place of its class, as ``module:class``."""
    return dict(_TABLE)


def get(name: str) -> Task:
    """Return the task called ``name``. Raises UserError listing the names that exist, or naming what is wrong."""
    from bapo.experiments import places

    if name in _TABLE:
        return _own(name)
    own = places.own("task")
    path = places.file_of("task", name) if name in own else None
    if path and (name not in _installed() or _code(path)):  # a project's class before a package's
        return _of_file(path, path.stat().st_mtime_ns)
    if name in _installed():
        return _made(_installed()[name].load(), f"entry point {GROUP}: {name}", name)
    raise UserError(f"task={name}: unknown task; allowed: {', '.join(sorted({*_TABLE, *_installed(), *own}))}")


@cache
def _own(name: str) -> Task:
    module, _, cls = _TABLE[name].partition(":")
    return getattr(import_module(module), cls)()


@cache
def _installed() -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=GROUP)}


def _code(path: Path) -> str | None:
    from bapo.experiments.schema import TaskConfig
    from bapo.validate import parse_yaml, read

    return read(TaskConfig, parse_yaml(path), path).code


@lru_cache(maxsize=64)
def _of_file(path: Path, changed: int) -> Task:
    """Make the task of a file. changed: when the file was, so that a later state of it is another task."""
    from bapo.project import load

    code = _code(path)
    if not code:
        raise UserError(f"{path}: code has no value; name the task's class (code: FILE.py:CLASS)")
    return _made(load(code, f"{path}: code"), f"{path}: code={code}", path.stem)


def _made(cls: object, where: str, name: str) -> Task:
    if not (isinstance(cls, type) and issubclass(cls, Task) and getattr(cls, "name", None) == name):
        raise UserError(f"{where}: must be a class derived from bapo.tasks.base.Task whose name is '{name}'")
    if cls.verify is Task.verify or not getattr(cls, "benchmarks", None):
        raise UserError(f"{where}: needs verify(response, ground_truth) and benchmarks, test split -> title in tables")
    return cls()
