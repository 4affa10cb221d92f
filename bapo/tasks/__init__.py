"""The tasks, one class each: the suite's and those of the project worked in.

A project's ``experiments/task/NAME.yaml`` names its class (``code: tasks/words.py:Words``): docs/project.md. A task is
imported when it is asked for.
"""

from __future__ import annotations

from functools import cache, lru_cache
from importlib import import_module
from pathlib import Path

from bapo.errors import UserError, unknown
from bapo.tasks.base import Task
from bapo.tasks.checks import checked

#: the suite's own tasks, each with the place of its class
TABLE = {
    "countdown": "bapo.tasks.countdown.task:Countdown",
    "geometry": "bapo.tasks.geometry.task:Geometry",
    "mathematics": "bapo.tasks.mathematics.task:Mathematics",
}


def get(name: str) -> Task:
    """Return the task called ``name``. Raises UserError listing the names that exist, or naming what is wrong."""
    from bapo.experiments import places

    if name in TABLE:
        return _built_in(name)
    if name not in places.own("task"):
        raise UserError(unknown(f"task={name}", "unknown task", name, sorted({*TABLE, *places.own("task")})))
    path = places.file_of("task", name)
    return _from_file(path, path.stat().st_mtime_ns)


@cache
def _built_in(name: str) -> Task:
    module, _, cls = TABLE[name].partition(":")
    return getattr(import_module(module), cls)()


@lru_cache(maxsize=64)
def _from_file(path: Path, changed: int) -> Task:
    """Make the task of a file. changed: when the file was, so that a later state of it is another task."""
    from bapo.experiments.schema import TaskConfig
    from bapo.project import load
    from bapo.validate import parse_yaml, read

    code = read(TaskConfig, parse_yaml(path), path).code
    if not code:
        raise UserError(f"{path}: code has no value; name the task's class (code: FILE.py:CLASS)")
    cls, where = load(code, f"{path}: code"), f"{path}: code={code}"
    if not (isinstance(cls, type) and issubclass(cls, Task) and getattr(cls, "name", None) == path.stem):
        raise UserError(f"{where}: must be a class derived from bapo.tasks.base.Task whose name is '{path.stem}'")
    if cls.verify is Task.verify or not getattr(cls, "benchmarks", None):
        raise UserError(f"{where}: needs verify(response, ground_truth) and benchmarks, test split -> title in tables")
    return checked(cls(), code.rpartition(":")[0])
