"""The section ``train`` of a configuration for tests that make updates by hand."""

from __future__ import annotations

from typing import Any

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
