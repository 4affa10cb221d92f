"""Recorded numbers: of every method (benchmarks/golden.py) and of the analysis (benchmarks/golden_analysis.py)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.world import made_once

from benchmarks import golden, golden_analysis


@pytest.mark.system
@pytest.mark.parametrize("name", golden.names())
def test_every_number_is_as_recorded(name: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    recorded = json.loads(golden.FILE.read_text(encoding="utf-8"))
    world = f"golden_{name.rpartition('/')[0]}"
    folder = made_once(tmp_path_factory, world, lambda folder: golden.prepare(name, folder))
    assert golden.differences(recorded, name, golden.measured(name, folder)) == []


def test_every_difference_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Digests of two generations of a processor lie side by side; a third one's numbers may be rounded otherwise."""
    same = {"steps": "ab", "first steps": {"loss": [0.5, 0.25]}}
    rounded = {"steps": "cd", "first steps": {"loss": [0.5, 0.2501]}}
    other = {"steps": "cd", "first steps": {"loss": [0.5, 0.26]}}
    recorded = {"digests": {}, "numbers": {}}
    for processor, found in (("EPYC, 25-17", same), ("EPYC, 26-2", rounded)):
        monkeypatch.setattr(golden, "processor", lambda processor=processor: processor)
        golden.record(recorded, "grpo", found)
        assert golden.differences(recorded, "grpo", found) == []
    assert len(golden.differences(recorded, "grpo", same)) == 1
    assert len(golden.differences(recorded, "grpo", other)) == 1
    assert golden.differences(recorded, "new", same) == ["new: not recorded"]
    monkeypatch.setattr(golden, "processor", lambda: "Xeon, 6-207")
    assert golden.differences(recorded, "grpo", rounded) == []
    golden.record(recorded, "grpo", other)
    assert recorded["numbers"]["grpo"] == {"first steps": other["first steps"]}
    assert [*recorded["digests"]] == ["EPYC, 25-17", "EPYC, 26-2", "Xeon, 6-207"]
    assert [bool(digests) for digests in recorded["digests"].values()] == [False, False, True]


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
