"""Tables of studies and of difficulty regimes from run directories with hand-worked numbers."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from support.runs import place, write_evaluation, write_run, write_study

from analysis.__main__ import main
from analysis.results import Result, against, paired
from analysis.study import load

Bits = dict[str, list[list[int]]]


def bits(a: str, b: str) -> Bits:
    """Outcomes of one sample of each problem of the benchmarks a and b."""
    return {"a": [[int(c)] for c in a], "b": [[int(c)] for c in b]}


def config(method: str, seed: int, **options: object) -> dict[str, object]:
    return {"seed": seed, "train": {"steps": 4}, "method": {"algorithm": method, "title": method, "v": 5, **options}}


@pytest.fixture
def study(tmp_path: Path) -> Path:
    """bapo is the reference; bapo+slow (v = 9) solves half of what it does; grpo solves as much as the reference."""
    costs = {"rollouts": 100.0, "updates": 10.0, "forward_flops": 2e9, "backward_flops": 1e9}
    good, half = bits("1" * 12, "1" * 8 + "0" * 4), bits("1" * 6 + "0" * 6, "1" * 4 + "0" * 8)
    for seed in (1, 2):
        write_run(place(tmp_path, "bapo", seed), good, costs, config=config("bapo", seed))
        write_run(place(tmp_path, "bapo+slow", seed), half, costs, config=config("bapo", seed, v=9))
        write_run(place(tmp_path, "grpo", seed), good, costs | {"rollouts": 250.0}, config=config("grpo", seed))
    base = tmp_path / "base"
    write_evaluation(base / "eval", bits("0" * 12, "0" * 12))
    cells = [("tiny", m, s) for m in ("bapo", "bapo+slow", "grpo") for s in (1, 2)]
    bases = [{"task": "countdown", "model": "tiny", "model_title": "Tiny", "run": str(base)}]
    return write_study(tmp_path, cells, name="toys", title="Toys of a test", reference="bapo", bases=bases)


def test_every_row_beside_the_reference(study: Path, tmp_path: Path) -> None:
    assert load(study).reference == "bapo"
    assert main(["comparison", "--study", str(study), "--out", str(tmp_path / "out")]) == 0
    text = (tmp_path / "out" / "comparison_toys.md").read_text()
    lines = [[c.strip() for c in line.strip("|").split(" | ")] for line in text.splitlines() if line.startswith("| ")]
    assert [row[0] for row in lines[2:]] == ["Tiny", "+BAPO", "+GRPO", "+BAPO+SLOW"]  # the reference after the base
    assert [row[-1] for row in lines[4:]] == ["another algorithm", "v: 5 -> 9"]
    frame = pd.read_csv(tmp_path / "out" / "comparison_toys.csv").set_index(["method", "benchmark"])
    row = frame.loc[("bapo+slow", "a")]
    # d = -1 six times, 0 six times: mean -1/2, variance 12/44, SE sqrt(12/44/12); seeds add nothing
    assert row.difference == pytest.approx(-50.0)
    assert row.difference_se == pytest.approx(100 * math.sqrt(1 / 44), rel=1e-4)
    assert row.difference_high == pytest.approx(-50 + 2.20099 * 100 * math.sqrt(1 / 44), abs=1e-2)  # t with 11
    # p of t = 3.3166 with 11 degrees of freedom is 0.00687; Holm with two rows doubles the smaller one
    assert row.p == pytest.approx(0.00687, abs=2e-5) and row.p_holm == pytest.approx(0.01374, abs=4e-5)
    assert frame.loc[("grpo", "a"), "p_holm"] == 1.0
    assert math.isnan(frame.loc[("bapo", "a"), "difference"]) and math.isnan(frame.loc[("base", "a"), "difference"])


# ------------------------------------------------------------------------------------------------ regimes


def row(method: str, table: list[list[float]], seeds: tuple[int, ...]) -> Result:
    return Result(method, method, "", seeds, {}, {"a": np.array(table, dtype=float)}, {})


def test_seeds_are_paired_by_their_number() -> None:
    reference = row("grpo", [[0, 0, 1, 1], [1, 1, 1, 1]], (1, 2))
    subject = row("bapo", [[9, 9, 9, 9], [1, 1, 1, 1], [0, 1, 1, 1]], (7, 2, 1))
    pair = paired(subject, reference, "a")
    # seed 1: 0.75 - 0.5; seed 2: 1 - 1; seed 7 has no partner. Mean 1/8
    assert pair.by_seed == {1: 0.25, 2: 0.0} and pair.difference.mean == 0.125
    assert paired(row("bapo", [[1.0]], (3,)), row("grpo", [[1.0]], (4,)), "a") is None


def test_what_a_seed_shares_cancels() -> None:
    """Seeds 1 to 5 differ by 40 points, but within each of them the subject is better on half of the problems."""
    rng = np.random.default_rng(0)
    reference = np.array([rng.permutation(np.arange(20) < 4 * s) for s in range(5)], dtype=float) * 0.5
    subject = reference + np.tile([0.2, 0.0], 10)
    rows = [row(name, table.tolist(), (1, 2, 3, 4, 5)) for name, table in (("bapo", subject), ("grpo", reference))]
    pair = paired(*rows, "a")
    estimate = pair.difference.tested
    assert estimate.mean == pytest.approx(0.1) and set(np.round(list(pair.by_seed.values()), 9)) == {0.1}
    # d = 0.2, 0, 0.2 ...: variance 0.2 / 19 (20 squares of 0.1), SE sqrt(0.2 / 19 / 20)
    assert estimate.se == pytest.approx(math.sqrt(0.2 / 19 / 20)) and estimate.p < 0.001
    # the comparison pairs them as well; as independent seeds they would hide the difference
    found = against(rows, rows[1], "a")["bapo"]
    assert found.paired == 5 and found.difference.tested.se == pytest.approx(estimate.se)
