"""The one door to ``bapo.engines.fast``: delete that folder and everything works as before, slower."""

from __future__ import annotations

import importlib
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from torch.nn import Module

FOLDER = "bapo.engines.fast"

#: The answers about each model, by part: a look at all its modules is a twentieth of an update of a small one.
_ANSWERS: WeakKeyDictionary[Module, dict[str, bool]] = WeakKeyDictionary()


def shortcut(part: str, model: Module) -> ModuleType | None:
    """Return the module ``part`` (sampler, scoring or vision) if it is there and computes what ``model`` computes.

    model: a language model or a vision tower. It is looked at once, so it has its hooks, adapters and precision before
    it is first used.
    """
    module = _module(part)
    if module is None:
        return None
    answers = _ANSWERS.setdefault(model, {})
    if part not in answers:
        answers[part] = module.supports(model)
    return module if answers[part] else None


@cache
def _module(part: str) -> ModuleType | None:
    try:
        return importlib.import_module(f"{FOLDER}.{part}")
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith(FOLDER):
            raise
        return None
