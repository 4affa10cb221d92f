"""The section ``train`` of a configuration, and random responses, for tests that make updates by hand."""

from __future__ import annotations

from typing import Any

import numpy as np

#: one update of four groups of four; a test states what it has otherwise
SECTION: dict[str, Any] = {
    "batch_size": 4,
    "mini_batch_size": 4,
    "micro_batch_size": None,
    "group_size": 4,
    "learning_rate": 1e-3,
    "betas": [0.9, 0.999],
    "weight_decay": 0.0,
    "grad_clip": 1e9,
    "warmup_updates": 0,
    "underfilled": "fewer-updates",
}


def responses(
    rng: np.random.Generator, size: int, lengths: tuple[int, int], vocabulary: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return random tokens, int32 [size, T], of 2 and above, and the lengths, int32 [size], from a half-open range."""
    counts = rng.integers(*lengths, size).astype(np.int32)
    tokens = np.zeros((size, int(counts.max())), dtype=np.int32)
    for row, count in zip(tokens, counts, strict=True):
        row[:count] = rng.integers(2, vocabulary, count)
    return tokens, counts
