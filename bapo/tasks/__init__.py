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
    """Return every task's name and the place of its class, as ``module:class``."""
    return dict(_TABLE)


@cache
def get(name: str) -> Task:
    """Return the task called ``name``. Raises UserError listing the names that exist."""
    if name not in _TABLE:
        raise UserError(f"task={name}: unknown task; allowed: {', '.join(sorted(_TABLE))}")
    module, _, cls = _TABLE[name].partition(":")
    return getattr(import_module(module), cls)()
