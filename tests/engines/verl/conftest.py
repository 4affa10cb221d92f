"""What verl reads when it is imported, before any test of this folder does so; and the mark of these tests.

verl changes classes of transformers where it is used, so one worker runs them, after everything else.
"""

import os
from pathlib import Path

import pytest

os.environ.setdefault("VERL_PLATFORM", "cpu")
os.environ.setdefault("VERL_USE_EXTERNAL_MODULES", "bapo.engines.verl.plugin")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = [item for item in items if item.path.parent == Path(__file__).parent]
    for item in here:
        item.add_marker(pytest.mark.verl)
        item.add_marker(pytest.mark.xdist_group("verl"))
    items[:] = [*(item for item in items if item not in here), *here]
