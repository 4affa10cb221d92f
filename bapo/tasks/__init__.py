"""The tasks, one class each. ``table()`` is the list; a task is imported when it is asked for."""

from __future__ import annotations

from functools import cache
from importlib import import_module

from bapo.errors import UserError
from bapo.tasks.base import Task

_TABLE = {
    "countdown": "bapo.tasks.countdown.task:Countdown",
    "geometry": "bapo.tasks.geometry.task:Geometry",
    "mathematics": "bapo.tasks.mathematics.task:Mathematics",
}


def table() -> dict[str, str]:
    """Return the name of each of the suite's own tasks and the place of its class, as ``module:class``."""
    return dict(_TABLE)


def get(name: str) -> Task:
    """Return the task called ``name``, the suite's or another. Raises UserError listing the names that exist."""
    if name in _TABLE:
        return _own(name)
    from bapo.tasks import outside

    task = outside.find(name)
    if task is None:
        raise UserError(f"task={name}: unknown task; allowed: {', '.join(sorted({*_TABLE, *outside.names()}))}")
    return task


@cache
def _own(name: str) -> Task:
    module, _, cls = _TABLE[name].partition(":")
    return getattr(import_module(module), cls)()
