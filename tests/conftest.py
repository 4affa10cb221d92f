"""What the tests share: a tiny world, data and base model, that one worker makes for all by the product's commands."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from filelock import FileLock
from support import late
from support.world import TINY

#: tests run side by side, one thread each; torch reads it when it is imported
os.environ.setdefault("OMP_NUM_THREADS", "1")
#: files that take minutes: one that begins last leaves the other workers idle
LONG = ("test_end_to_end.py", "test_slurm.py", "test_pocket.py", "test_verl_runs.py")


def pytest_collection_finish() -> None:
    late.note_imports()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files that take longest."""
    items.sort(key=lambda item: item.path.name not in LONG)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    late.run(item.module)


@pytest.fixture(scope="session")
def of_all_workers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder that this run's workers share."""
    folder = tmp_path_factory.getbasetemp()
    return folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder


@pytest.fixture(scope="session")
def tiny_world(of_all_workers: Path) -> list[str]:
    """Hydra overrides of a world whose data and base model exist."""
    from bapo.engines.torch.base import train_base
    from bapo.experiments.compose import compose_config
    from bapo.store.files import SUMMARY
    from bapo.tasks.job import base_folder, make_data

    overrides = [*TINY, f"paths.results={of_all_workers / 'tiny_world'}"]
    config = compose_config(overrides)
    with FileLock(of_all_workers / "tiny_world.lock"):
        if not (base_folder(config) / SUMMARY).exists():  # else another worker has made it
            make_data(config)
            train_base(config)
    return overrides
