"""What the tests share: a tiny world, data and base model, that one worker makes for all by the product's commands."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from support import late
from support.configs import experiments  # noqa: F401 (fixtures, here and below)
from support.pretended_gpus import machine  # noqa: F401
from support.vision import processor, tokenizer  # noqa: F401
from support.world import TINY, made_once, start_of, table1_of

from bapo.experiments import places
from bapo.graders import pool

#: tests run side by side, one thread each; torch reads it when it is imported
os.environ.setdefault("OMP_NUM_THREADS", "1")
#: what this account once fetched from the hub decides nothing, unless a folder of it is named
os.environ["HF_HOME"] = os.environ.get("BAPO_TEST_HUB") or str(Path(__file__).parents[1] / ".pytest_cache" / "hub")
#: the same examples on every machine, however busy it is
SAME = {"derandomize": True, "deadline": None, "database": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("suite", max_examples=60, **SAME)
settings.load_profile("suite")
#: a check by algebra is limited by its CPU time alone, so that a busy machine changes no verdict
pool.shared().wall_seconds = 600.0
#: files that take minutes: one that begins last leaves the other workers idle
LONG = ("test_verl_runs.py", "test_pocket.py", "test_end_to_end.py", "test_watch.py", "test_init.py", "test_golden.py")


#: folders and files whose tests share what takes minutes to make: one worker has them
TOGETHER = ("tests/engines/verl/", "tests/workflows/test_pocket.py")
#: tests that share what is made of one study's evidence: one worker has those of a study, which their ids begin with
OF_STUDIES = re.compile(
    r"tests/docs/test_(?:tables_of_pages.py::test_a_table_is_what_its_evidence_gives|"
    r"numbers_of_sentences.py::test_a_number_of_a_sentence_stands_in_a_table)\[(\w+/\w+), "
)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """Keep TOGETHER together under ``--dist loadgroup``: xdist 3.8 marks groups in a field that pytest 9.2 has not."""
    from xdist.scheduler import LoadScopeScheduling

    class Together(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            if study := OF_STUDIES.match(nodeid):
                return study[1]
            return next((place for place in TOGETHER if nodeid.startswith(place)), nodeid)

    return Together(config, log) if config.getvalue("dist") == "loadgroup" else None


def pytest_collection_finish() -> None:
    late.note_imports()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files that take longest."""
    items.sort(key=lambda item: (*LONG, item.path.name).index(item.path.name))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    late.run(item.module)


@pytest.fixture(autouse=True)
def the_same_experiments() -> Iterator[None]:
    """What is composed depends on this folder; a test that changes it undoes that (``experiments``)."""
    before = places.EXPERIMENTS
    yield
    assert before == places.EXPERIMENTS


def _tiny(paths: pytest.TempPathFactory) -> list[str]:
    results = paths.mktemp("results")
    made = made_once(paths, "tiny_world", lambda folder: start_of([*TINY, f"paths.results={folder}"]))
    shutil.copytree(made, results, dirs_exist_ok=True)
    return [*TINY, f"paths.results={results}"]


@pytest.fixture(scope="module")
def tiny_world(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Hydra overrides of a world whose data and base model exist: a file's own copy of the one that is made once."""
    return _tiny(tmp_path_factory)


@pytest.fixture(scope="session")
def shared_world(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The same for files that share what they make of it."""
    return _tiny(tmp_path_factory)


@pytest.fixture(scope="session")
def smoke_world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the results of a whole workflow that nothing disturbed, made once for all workers; read only."""
    return made_once(tmp_path_factory, "smoke_world", table1_of)
