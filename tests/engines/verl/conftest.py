"""What verl reads when it is imported, before any test of this folder does so; and the mark of the tests that need it.

verl changes classes of transformers where it is used, so one worker runs them, after everything else.
"""

import os
from pathlib import Path

import pytest

os.environ.setdefault("VERL_PLATFORM", "cpu")
os.environ.setdefault("VERL_USE_EXTERNAL_MODULES", "bapo.engines.verl.plugin")
WITHOUT_VERL = ("test_verl_checkpoints.py", "test_verl_memory.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    folder = Path(__file__).parent
    here = [item for item in items if item.path.parent == folder and item.path.name not in WITHOUT_VERL]
    for item in here:
        item.add_marker(pytest.mark.verl)
    items[:] = [*(item for item in items if item not in here), *here]
