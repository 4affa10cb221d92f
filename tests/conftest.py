"""What the tests share: a tiny world (data and base model) that the product's own commands make once a session."""

from __future__ import annotations

import pytest
from support.world import TINY

#: files that take minutes: with ``--dist loadfile`` one that begins last leaves the other workers idle
LONG = ("test_slurm.py", "test_pocket.py", "test_verl_runs.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files that take longest."""
    items.sort(key=lambda item: item.path.name not in LONG)


@pytest.fixture(scope="session")
def tiny_world(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Hydra overrides of a world whose data and base model exist."""
    from bapo.engines.torch.base import train_base
    from bapo.experiments.compose import compose_config
    from bapo.tasks.job import make_data

    overrides = [*TINY, f"paths.results={tmp_path_factory.mktemp('results')}"]
    config = compose_config(overrides)
    make_data(config)
    train_base(config)
    return overrides
