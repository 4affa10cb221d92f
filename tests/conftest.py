"""What the tests share: a tiny world (data and base model) that the product's own commands make once a session."""

from __future__ import annotations

import pytest
from support.world import TINY


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
