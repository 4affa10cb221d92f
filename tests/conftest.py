"""What the tests share: a tiny world (data and base model) that the product's own commands make once a session."""

from __future__ import annotations

from pathlib import Path

import pytest

SHARED = Path(__file__).resolve().parents[2] / "shared"

#: the smoke scale with shorter runs: about a second each. The base is smoke's own: one trained for less solves nothing,
#: and a run without a single reward would test nothing
TINY = (
    "scale=smoke", "tracking=none", "base.threads=1",
    "data.split_sizes={base: 12000, train: 48, probe: 8, cd34: 6, cd4: 6}",
    "train.steps=6", "train.batch_size=8", "train.mini_batch_size=4", "train.group_size=8", "checkpoint.every=2",
    "probe.prompts=4", "probe.samples=4", "probe.points=3", "evaluation.samples=32",
)  # fmt: skip


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


def needs_shared(*parts: str) -> Path:
    """A file beside the checkout; skips the test, with a reason, where it is absent."""
    path = SHARED.joinpath(*parts)
    if not path.exists():
        pytest.skip(f"{'/'.join(parts)} is not beside this checkout (data of other projects, not part of the product)")
    return path
