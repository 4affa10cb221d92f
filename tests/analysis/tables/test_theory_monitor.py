"""The theory monitor: the bound's forms by hand, files."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from support.runs import place, write_run, write_study

from analysis.__main__ import main
from analysis.beyond.theory import BIAS, step_terms, worst_k2
from bapo.algorithm import theory

NAN = math.nan
K2 = 3.0


def step(**values: float) -> dict[str, float]:
    """A row of steps.parquet: X1 of 6 groups and X3 of 2, nothing in X2."""
    row = {"staleness": 0.0, "x1": 6, "x2": 0, "x3": 2, "k1": 2.0, "k2": 2.0, "k3": 1.5}
    return {**row, "tv_x1": 0.10, "tv_x2": NAN, "tv_x3": 0.20, **values}


# ------------------------------------------------------------------------------------------------ one step


def test_largest_values_by_hand() -> None:
    found = step_terms(step(), K2)
    # printed: (1 - 2) 0.1 + (1 - 1.5) 0.2; repaired: 6/8 of 0.1 + 2/8 of 0.2
    assert found["ceiling_printed"] == pytest.approx(-0.2)
    assert found["ceiling_repaired"] == pytest.approx(0.125)
    assert math.isnan(found["bound_printed"]) and math.isnan(found["bound_repaired"])  # no L was recorded


def test_estimates_by_hand() -> None:
    found = step_terms(step(surrogate_x1=0.5, surrogate_x2=NAN, surrogate_x3=-0.1), K2)
    # printed: 0.5 - 2 * 2 * 0.1 + (-0.1 - 2 * 1.5 * 0.2) = 0.1 - 0.7
    assert found["bound_printed"] == pytest.approx(-0.6)
    # repaired: 6/8 (0.5 - 2 * 0.1) + 2/8 (-0.1 - 1.5 * 0.2) = 0.225 - 0.1
    assert found["bound_repaired"] == pytest.approx(0.125)


def test_x2_takes_the_worst_constant_in_the_repaired_form_only() -> None:
    row = step(x1=0, x3=0, x2=1, tv_x1=NAN, tv_x3=NAN, tv_x2=0.1, surrogate_x2=0.5)
    found = step_terms(row, K2)
    assert found["bound_printed"] == pytest.approx(0.5 - 2 * 2.0 * 0.1)
    assert found["bound_repaired"] == pytest.approx(0.5 - 3.0 * 0.1)


@pytest.mark.parametrize("row", [step(tv_x3=NAN), step(k1=NAN), step(x1=0, x3=0)])
def test_a_missing_term_or_an_empty_batch_is_unknown(row: dict[str, float]) -> None:
    assert math.isnan(step_terms(row, K2)["ceiling_printed"])


def test_constants_of_a_configuration() -> None:
    found = worst_k2({"method": {"c1": 0.25}, "train": {"group_size": 8}})
    # of k/8 with 1/4 < k/8 < 1 the worst is 7/8: sigma = sqrt(7)/8 = 0.330719
    assert found == pytest.approx(2.023716, abs=1e-6)
    assert worst_k2({"method": {"algorithm": "grpo"}, "train": {"group_size": 8}}) is None
    assert math.isnan(worst_k2({"method": {"c1": 0.9}, "train": {"group_size": 8}}) or 0.0)  # nothing is admitted


def test_no_policy_gets_above_the_ceiling_and_the_repaired_bound_holds() -> None:
    """Enumerable policies over four answers, two of them right; true expectations."""
    rng = np.random.default_rng(3)
    reward = np.array([0.0, 0.0, 1.0, 1.0])
    printed, repaired = [], []
    for _ in range(400):
        alpha, pi, current = rng.dirichlet(np.full(4, 0.6), 3) * 0.98 + 0.005
        mu = float(alpha @ reward)
        k, gain = theory.stability(mu), float((pi @ reward - mu) / math.sqrt(mu * (1 - mu)))
        tv, tv_now = 0.5 * abs(pi - alpha).sum(), 0.5 * abs(current - alpha).sum()
        for factor in (1.0, 2.0):
            bound = theory.lower_bound([gain], k, tv, tv_now, factor)
            assert bound <= theory.ceiling(k, tv, tv_now, factor) + 1e-9
            assert bound <= pi @ reward - current @ reward + 1e-9  # the theorem
            (printed if factor == 2 else repaired).append(theory.lower_bound([gain], k, tv, 0.0, factor))
    assert max(printed) <= 1e-9  # never positive, even without the current policy's distance
    assert max(repaired) > 0.01


# ------------------------------------------------------------------------------------------------ files


CONFIG = {"seed": 1, "train": {"group_size": 8}, "method": {"algorithm": "bapo", "c1": 0.125}}


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    """BAPO, two seeds of three steps; the last one's batch is empty. GRPO beside it."""
    empty = step(x1=0, x3=0, tv_x1=NAN, tv_x3=NAN, surrogate_x1=NAN, surrogate_x3=NAN)
    good = step(surrogate_x1=0.9, surrogate_x3=0.7)  # printed 0.5 + 0.1, repaired 0.75 * 0.7 + 0.25 * 0.4
    bad = step(surrogate_x1=0.1, surrogate_x3=0.1)  # printed -0.3 - 0.5, repaired 0.75 * -0.1 + 0.25 * -0.2
    for seed in (1, 2):
        write_run(place(tmp_path, "bapo", seed), steps=[good, bad, empty], config=CONFIG)
    write_run(place(tmp_path, "grpo", 1), config={"seed": 1, "method": {"algorithm": "grpo"}})
    return write_study(tmp_path, [("tiny", "bapo", 1), ("tiny", "bapo", 2), ("tiny", "grpo", 1)])


def test_the_table(recorded: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert main(["theory_monitor", "--study", str(recorded), "--out", str(out)]) == 0
    frame = pd.read_csv(out / "theory_monitor.csv")
    assert len(frame) == 6 and set(frame.method) == {"bapo"} and list(frame.seed) == [1, 1, 1, 2, 2, 2]
    assert frame.bound_printed[:2].tolist() == pytest.approx([0.6, -0.8])
    assert frame.bound_repaired[:2].tolist() == pytest.approx([0.625, -0.125])
    assert frame.k2_repaired[0] == pytest.approx(2.02372, abs=1e-5)
    text = (out / "theory_monitor.md").read_text()
    line = next(x for x in text.split("## How often")[1].splitlines() if x.startswith("| Countdown"))
    cells = [c.strip() for c in line.strip("|").split(" | ")]
    assert cells[1] == "100.0% (4 of 6 steps not positive, 2 unknown)"  # as printed, whatever is gained
    assert cells[2] == "33.3% (0 of 6 steps not positive, 2 unknown)"
    assert cells[3] == cells[4] == "66.7% (2 of 6 steps not positive, 2 unknown)"
    assert "0.100 (0.100; 4)" in text and BIAS in text
    for seed in (1, 2):  # without L the largest values alone are known
        write_run(place(recorded.parent, "bapo", seed), steps=[step(), step()], config=CONFIG)
    assert main(["theory_monitor", "--study", str(recorded), "--out", str(out)]) == 0
    row = "| 100.0% (4 of 4 steps not positive) | 0.0% (0 of 4 steps not positive) | not recorded | not recorded |"
    assert row in (out / "theory_monitor.md").read_text()
    study = write_study(recorded.parent, [("tiny", "grpo", 1)])
    assert main(["theory_monitor", "--study", str(study), "--out", str(out)]) == 2
