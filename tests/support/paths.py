"""Places that tests read: the checkout, and the data of other projects beside it."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SHARED = ROOT.parent / "shared"
BENCHMARKS = ROOT / "benchmarks"


def needs_shared(*parts: str) -> Path:
    """Give a file beside the checkout; skip the test, with a reason, where it is absent."""
    path = SHARED.joinpath(*parts)
    if not path.exists():
        pytest.skip(f"{'/'.join(parts)} is not beside this checkout (data of other projects, not part of the product)")
    return path
