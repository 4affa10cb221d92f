"""What every run means is written down: a changed identity is a decision, never an accident."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from support.paths import BENCHMARKS

from bapo.experiments.compose import compose_config
from bapo.experiments.identity import identity_of_seed, train_content, train_identity
from bapo.experiments.places import options

WRITTEN = Path(__file__).with_name("identities.json")


@pytest.mark.parametrize("scale", options("scale"))
def test_every_identity_is_the_one_written_down(scale: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where one must change: raise a revision, say so, and `python benchmarks/identities.py` writes the file anew."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    sys.modules.pop("identities", None)
    import identities

    written = json.loads(WRITTEN.read_text(encoding="utf-8"))[scale]
    assert list(identities.differences(written, identities.meanings(scale))) == []


def test_the_workflow_identifies_a_run_as_the_job_does() -> None:
    """It asks once for all seeds, with a configuration of seed 0."""
    config = compose_config(["method=bapo", "seed=7"])
    assert identity_of_seed(train_content(compose_config(["method=bapo", "seed=0"])), 7) == train_identity(config)


@pytest.mark.parametrize("scale", options("scale"))
def test_no_variant_of_a_study_trains_the_run_of_another(scale: str) -> None:
    """It would train the same run again, into a folder that claims another."""
    runs = json.loads(WRITTEN.read_text(encoding="utf-8"))[scale]["runs"]
    seen = [json.dumps(each["train"]) for each in runs.values()]
    assert len(set(seen)) == len(seen)
