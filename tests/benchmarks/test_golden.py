"""The numbers of every method are the recorded ones: benchmarks/golden.py."""

from __future__ import annotations

import subprocess
import sys

import pytest
from support.paths import ROOT

from benchmarks import golden


@pytest.mark.system
def test_every_number_is_as_recorded() -> None:
    done = subprocess.run(
        [sys.executable, "benchmarks/golden.py"], cwd=ROOT, capture_output=True, text=True, timeout=3000
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_difference_is_named() -> None:
    recorded = {"grpo": {"steps": "ab", "first steps": {"loss": [0.5, 0.25]}}}
    rounded = {"grpo": {"steps": "cd", "first steps": {"loss": [0.5, 0.2501]}}}
    other = {"grpo": {"steps": "cd", "first steps": {"loss": [0.5, 0.26]}}, "new": {"steps": "ef"}}
    assert golden.differences(recorded, recorded, same_processor=True) == []
    assert golden.differences(recorded, rounded, same_processor=False) == []
    assert len(golden.differences(recorded, rounded, same_processor=True)) == 2
    named = golden.differences(recorded, other, same_processor=False)
    assert [line.split(":")[0] for line in named] == ["grpo", "new"]
