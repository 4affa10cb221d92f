"""Recorded numbers: of every method (benchmarks/golden.py) and of the analysis (benchmarks/golden_analysis.py)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from support.paths import ROOT

from benchmarks import golden, golden_analysis


@pytest.mark.system
def test_every_number_is_as_recorded() -> None:
    done = subprocess.run(
        [sys.executable, "benchmarks/golden.py"], cwd=ROOT, capture_output=True, text=True, timeout=3600
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


@pytest.mark.slow
def test_every_number_of_the_analysis_is_as_recorded(tmp_path: Path) -> None:
    recorded = json.loads(golden_analysis.FILE.read_text(encoding="utf-8"))
    same_processor = recorded["processor"] == golden_analysis.processor()
    assert golden_analysis.differences(recorded["numbers"], golden_analysis.measured(tmp_path), same_processor) == []


def test_a_number_of_the_analysis_that_changes_is_named(tmp_path: Path) -> None:
    table = tmp_path / "table1.csv"
    table.write_text("method,mean\ngrpo,0.5\n")
    recorded = {"table1.csv": golden_analysis.numbers_of(table)}
    table.write_text("method,mean\ngrpo,0.500001\n")
    rounded = {"table1.csv": golden_analysis.numbers_of(table)}
    assert golden_analysis.differences(recorded, recorded, strict=True) == []
    assert [line.split(": ")[:2] for line in golden_analysis.differences(recorded, rounded, strict=True)] == [
        ["table1.csv", "mean"]
    ]
    assert golden_analysis.differences(recorded, rounded, strict=False) == []
    table.write_text("method,mean\ngrpo,0.6\n")
    assert len(golden_analysis.differences(recorded, {"table1.csv": golden_analysis.numbers_of(table)}, False)) == 1
