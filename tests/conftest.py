"""What the tests share: a tiny world, data and base model, that one worker makes for all by the product's commands."""

from __future__ import annotations

import os
import shutil

import pytest
from hypothesis import HealthCheck, settings
from support import late
from support.configs import experiments  # noqa: F401 (fixtures, here and below)
from support.pretended_gpus import machine  # noqa: F401
from support.vision import processor, tokenizer  # noqa: F401
from support.world import TINY, made_once

from bapo.graders import pool

#: tests run side by side, one thread each; torch reads it when it is imported
os.environ.setdefault("OMP_NUM_THREADS", "1")
#: the same examples on every machine, however busy it is
SLOW = [HealthCheck.too_slow]
settings.register_profile(
    "suite", derandomize=True, deadline=None, database=None, max_examples=60, suppress_health_check=SLOW
)
settings.load_profile("suite")
#: a check by algebra is limited by its CPU time alone, so that a busy machine changes no verdict
pool.shared().wall_seconds = 600.0
#: files that take minutes: one that begins last leaves the other workers idle
LONG = ("test_verl_runs.py", "test_pocket.py", "test_end_to_end.py", "test_live.py", "test_init.py", "test_golden.py")


def pytest_collection_finish() -> None:
    late.note_imports()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files that take longest."""
    items.sort(key=lambda item: (*LONG, item.path.name).index(item.path.name))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    late.run(item.module)


@pytest.fixture(scope="session")
def tiny_world(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Hydra overrides of a world whose data and base model exist: a worker's own copy of the one that is made once."""
    results = tmp_path_factory.mktemp("results")
    shutil.copytree(made_once(tmp_path_factory, "tiny_world", TINY), results, dirs_exist_ok=True)
    return [*TINY, f"paths.results={results}"]
