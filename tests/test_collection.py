"""What a process pays that only collects tests."""

from __future__ import annotations

import importlib.util

import pytest
from support import late


def test_nothing_slow_is_imported() -> None:
    if importlib.util.find_spec("verl"):
        pytest.skip("files of the verl engine import verl, and that torch, where verl is installed")
    assert set() == late.EARLY
