"""Which split a Countdown problem belongs to. Every problem has exactly one, so the splits cannot overlap."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from bapo.tasks import splits

#: Share of all problems with 3 and 4 numbers that each split owns. The reduced task has only 2,569 problems with three
#: numbers, so the splits that are trained and tested on get little more than they need and the base gets the rest.
SHARES: dict[int, dict[str, float]] = {
    3: {"base": 0.60, "train": 0.24, "probe": 0.06, "cd34": 0.10, "cd4": 0.0},
    4: {"base": 0.90, "train": 0.04, "probe": 0.01, "cd34": 0.02, "cd4": 0.03},
}
SPLITS = tuple(SHARES[3])
#: The same of the easy task, whose problems have 2 and 3 numbers.
EASY_SHARES: dict[int, dict[str, float]] = {
    2: {"train": 0.5, "probe": 0.2, "cd2": 0.3, "cd3": 0.0},
    3: {"train": 0.5, "probe": 0.2, "cd2": 0.0, "cd3": 0.3},
}
EASY_SPLITS = tuple(EASY_SHARES[2])


def problem_id(numbers: Sequence[int], target: int) -> str:
    """Name a problem by its multiset of numbers and its target: ``countdown:3-4-7-12:24``, in whatever order."""
    return f"countdown:{'-'.join(map(str, sorted(numbers)))}:{target}"


@lru_cache(maxsize=1 << 18)
def _owner(identity: str, size: int) -> str:
    return splits.owner(identity, SHARES[size])


def owner(numbers: Sequence[int], target: int) -> str:
    """Return the one split that this problem may appear in: a function of its identity, not of a seed or size."""
    return _owner(problem_id(numbers, target), len(numbers))


def easy_owner(numbers: Sequence[int], target: int) -> str:
    """Return the split of the easy task that this problem may appear in."""
    return splits.owner(problem_id(numbers, target), EASY_SHARES[len(numbers)])


def owned(numbers: np.ndarray, targets: np.ndarray, split: str) -> np.ndarray:
    """Return bool [N]: whether ``split`` is the owner. numbers: int [N, k]; targets: int [N]."""
    rows = np.column_stack([np.sort(numbers, axis=1), targets])
    radix = int(rows.max(initial=0)) + 1
    keys = rows @ (radix ** np.arange(rows.shape[1], dtype=np.int64))
    _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    belongs = [owner(row[:-1], row[-1]) == split for row in rows[first].tolist()]
    return np.array(belongs, dtype=bool)[inverse]
