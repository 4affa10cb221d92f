"""The simulated results that tests of the analysis read, made once by each process."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.simulated import write_all


@pytest.fixture(scope="session")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return the file of each simulated study by its name."""
    return write_all(tmp_path_factory.mktemp("simulated") / "results" / "laptop")
