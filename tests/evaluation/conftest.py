"""One tiny world for the tests of evaluation: a configuration, its base model, and its evaluation."""

from __future__ import annotations

from pathlib import Path

import pytest

from bapo.experiments.compose import compose_config
from bapo.experiments.places import base_directory
from bapo.experiments.schema import Config

World = tuple[Config, Path]


@pytest.fixture(scope="session")
def world(shared_world: list[str]) -> World:
    """The configuration of a tiny world and its base model."""
    config = compose_config([*shared_world, "device=cpu"])
    return config, base_directory(config) / "checkpoint"
