"""The split of an accuracy's variance: by hand, against Table 1's standard error, and the files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from support.runs import rewrite
from support.simulated import MODEL, write_simulated

from analysis import reading, statistics
from analysis.beyond import variance
from analysis.beyond.variance import components, contributions
from analysis.study import load


def test_one_benchmark_is_split_as_its_components_say() -> None:
    random = np.random.default_rng(1)
    y = (random.random((4, 3, 30, 5)) < random.random((1, 1, 30, 1)) + random.normal(0, 0.1, (4, 3, 1, 1))).astype(int)
    parts = contributions([y])
    expected = components(y).of_mean(30, 4, 3, 5)
    assert parts == pytest.approx(expected, abs=1e-12)
    assert min(expected.values()) > 0  # nothing was cut at 0, so this holds for every part


def test_seeds_that_are_better_everywhere_count_once_for_all_benchmarks() -> None:
    """Seeds at 0.2 and 0.6 on each problem of two benchmarks: their variance 0.08 is halved by two seeds alone."""
    seeds = np.array([[1, 0, 0, 0, 0], [1, 1, 1, 0, 0]])
    y = np.broadcast_to(seeds[:, None, None, :], (2, 1, 6, 5))
    sample = np.mean([0.2, 0.6]) - np.mean([0.04, 0.36])  # p - p^2 of each seed, on average
    parts = contributions([y, y])
    assert parts["sample"] == pytest.approx(sample * 5 / 4 / (2 * 6 * 5) / 2)
    assert parts["problem"] == 0 and parts["problem_seed"] == 0
    assert parts["seed"] == pytest.approx(0.08 / 2 - parts["sample"])


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    parts = {("countdown", MODEL): ("grpo", "repo", "bapo")}
    return write_simulated(tmp_path_factory.mktemp("variance"), "table1", parts, (1, 2, 3), curves=("grpo", "bapo"))


def test_the_parts_sum_to_the_error_for_new_problems_and_seeds(file: Path) -> None:
    study = load(file)
    (block,) = study.blocks
    for method in block.methods:
        found = variance.split(block, method, study)
        tables = [reading.evaluations(block.methods[method], b, study).correct for b, _ in block.benchmarks]
        mean = statistics.mean_over_seeds(*tables)
        assert found.accuracy == pytest.approx(mean.mean)
        if min(found.parts.values()) > 0:  # Table 1 cuts other estimates at 0
            assert found.total == pytest.approx(mean.both.se**2)
        for kind in variance.FALLS:  # that many halve the standard error, and one fewer does not
            needed = found.for_half(kind)
            if needed is not None:
                assert _with(found, kind, needed) <= found.total / 4 + 1e-15 < _with(found, kind, needed - 1)


def _with(found: variance.Split, kind: str, count: int) -> float:
    factor = found.counts[kind] / count
    return sum(v * (factor if name in variance.FALLS[kind] else 1) for name, v in found.parts.items())


def test_the_files(file: Path, tmp_path: Path) -> None:
    paths = variance.write(load(file), tmp_path)
    assert [p.name for p in paths] == ["variance.csv", "variance.md", "variance.tex"]
    frame = pd.read_csv(paths[0]).set_index(["method", "source"])
    assert frame.loc[("grpo", "checkpoint"), "count"] == 2  # steps 9 and 12 of 0, 3, 6, 9, 12
    assert np.isfinite(frame.loc[("grpo", "checkpoint"), "variance"])
    assert np.isnan(frame.loc[("repo", "checkpoint"), "variance"])  # its checkpoints were not evaluated
    parts = frame.loc["bapo"].drop(["all", "checkpoint"])
    assert parts["variance"].sum() == pytest.approx(frame.loc[("bapo", "all"), "variance"], rel=1e-4)
    assert parts["share"].sum() == pytest.approx(1, abs=1e-4)
    assert frame.loc[("bapo", "problem"), "count"] == 24
    assert r"\begin{tabular}{lrrrrrrrrrr}" in paths[2].read_text() and "| +GRPO |" in paths[1].read_text()


def test_one_seed_and_one_sample_say_what_they_can(tmp_path: Path) -> None:
    one = load(write_simulated(tmp_path / "a", "table1", {("countdown", MODEL): ("grpo",)}, (1,)))
    found = variance.split(one.blocks[0], "grpo", one)
    assert np.isnan(found.parts["seed"]) and found.parts["problem"] > 0 and found.for_half("seeds") is None
    single = load(write_simulated(tmp_path / "b", "table1", {("countdown", MODEL): ("grpo",)}))
    for table in (tmp_path / "b" / "countdown" / MODEL / "grpo").glob("*/eval/*.parquet"):
        frame = pd.read_parquet(table)
        rewrite(table.parent, **{table.stem: frame[frame["sample"] == 0]})
    assert np.isnan(variance.split(single.blocks[0], "grpo", single).total)
    variance.write(single, tmp_path)
    assert "| +GRPO |" in (tmp_path / "variance.md").read_text()
