"""Results of pure functions in this process; a look gives a copy, which pickle makes faster than ``copy.deepcopy``."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Hashable
from typing import TypeVar

Result = TypeVar("Result")


class Memory:
    """Pickled results by key. A key begins with the name of what was asked."""

    def __init__(self) -> None:
        self.results: dict[Hashable, bytes] = {}

    def get(self, key: Hashable, compute: Callable[[], Result]) -> Result:
        """Return a copy of the result for ``key``, which ``compute`` gives the first time."""
        if key not in self.results:
            self.results[key] = pickle.dumps(compute())
        return pickle.loads(self.results[key])

    def clear(self) -> None:
        self.results.clear()


#: what this process knows
KEPT = Memory()
