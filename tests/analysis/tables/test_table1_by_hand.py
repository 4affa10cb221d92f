"""Table 1's differences, shares of a gain and picture, by hand."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from support.runs import place, write_run, write_study

from analysis.__main__ import main
from analysis.statistics import t_quantile

NAMES = ("cd34", "cd4")


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Countdown: the base, two seeds of GRPO and BAPO; two benchmarks of four problems with two samples."""
    root = tmp_path_factory.mktemp("forest")
    base = {"task": "countdown", "model": "tiny", "run": str(write_run(root / "base", {n: _bits(2) for n in NAMES}))}
    right = {  # correct answers of eight on each benchmark
        ("grpo", 1): (4, 2),
        ("grpo", 2): (4, 4),
        ("bapo", 1): (6, 4),
        ("bapo", 2): (6, 8),
    }
    cells = []
    for (method, seed), counts in right.items():
        bits = {name: _bits(count) for name, count in zip(NAMES, counts, strict=True)}
        write_run(place(root, method, seed), bits)
        cells.append(("tiny", method, seed))
    study = write_study(root, cells, NAMES, bases=[base])
    assert main(["table1", "--study", str(study), "--out", str(root / "tables")]) == 0
    return root / "tables"


def _bits(correct: int) -> list[list[int]]:
    return [[int(2 * i < correct), int(2 * i + 1 < correct)] for i in range(4)]


def test_the_numbers_by_hand(written: Path) -> None:
    """Base: 4 of 16 right; GRPO: 4 + 2 + 4 + 4 of 32; BAPO: 6 + 4 + 6 + 8 of 32. The paper: 60.25 - 49.41."""
    (drawn,) = pd.read_csv(written / "table1_forest.csv").to_dict("records")
    assert (drawn["points"], drawn["paper"], drawn["runs"]) == (pytest.approx(31.25), pytest.approx(10.84), 2)
    pairs = pd.read_csv(written / "table1_differences.csv").set_index(["a", "b", "benchmark"])
    pair = pairs.loc[("grpo", "bapo", "avg")]
    ends = -pair.high_problems_and_seeds, -pair.low_problems_and_seeds
    assert (drawn["low"], drawn["high"]) == pytest.approx(ends, rel=1e-5) and ends[0] < 31.25 < ends[1]
    bapo = pd.read_csv(written / "table1.csv").set_index(["method", "benchmark"]).loc[("bapo", "avg")]
    assert bapo.share == pytest.approx(500 / 3, rel=1e-5) and bapo.paper_share == pytest.approx(1084 / 48.66, rel=1e-4)
    # delta method, d - 5/3 g over the gain 3/16. Means over seeds: 0 -5/3 1 0 on cd34 and 0 -1/3 1/2 1/2 on cd4, so the
    # variances are 11/36 and 1/24, the error sqrt(25/288); the seeds (1/24 and -1/24) add nothing to it
    half = t_quantile(3.797) * 100 * 16 / 3 * (25 / 288) ** 0.5
    assert (bapo.share_low, bapo.share_high) == pytest.approx((500 / 3 - half, 500 / 3 + half), rel=1e-3)
