"""Importing transformers without the packages that it would load for features that nothing here uses."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

#: Where they are installed, transformers' model classes load scikit-learn (and with it scipy and pandas) for one mode
#: of assisted generation, and scipy for the losses of detection models.
UNUSED = ("sklearn", "scipy")
#: The modules that do so; every causal language model imports them.
_USERS = ("transformers.generation.utils", "transformers.modeling_utils")


def load_transformers() -> ModuleType:
    """Import transformers' model classes; returns the package. Call it before the first ``from transformers import``.

    ``sys.modules[name] = None`` is Python's own way of saying that a module cannot be imported. It holds while the
    modules above are imported and no longer: afterwards anybody can import scikit-learn and scipy as ever. Only
    transformers remembers that it found none, and so does without them in the two features above. What is already
    loaded stays. Should some version of transformers need these packages after all, they are loaded as usual.
    """
    try:
        with _hidden(*UNUSED):
            _import(*_USERS)
    except ImportError:
        _import(*_USERS)
    return importlib.import_module("transformers")


def _import(*names: str) -> None:
    for name in names:
        importlib.import_module(name)


@contextmanager
def _hidden(*names: str) -> Iterator[None]:
    absent = [n for n in names if n not in sys.modules]
    sys.modules.update(dict.fromkeys(absent))
    try:
        yield
    finally:
        for name in absent:
            if sys.modules.get(name) is None:
                sys.modules.pop(name, None)
