"""The one door to ``bapo.engines.fast``: delete that folder and everything works as before, slower."""

from __future__ import annotations

import importlib
from functools import cache
from types import ModuleType
from typing import Any

FOLDER = "bapo.engines.fast"


def shortcut(part: str, *subject: Any) -> ModuleType | None:
    """Return the module ``part`` (sampler, scoring or vision) if it is there and computes what ``subject`` computes.

    subject: the arguments of the module's own ``supports``, a model or a vision tower with its images' sizes.
    """
    module = _module(part)
    return module if module is not None and module.supports(*subject) else None


@cache
def _module(part: str) -> ModuleType | None:
    try:
        return importlib.import_module(f"{FOLDER}.{part}")
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith(FOLDER):
            raise
        return None
