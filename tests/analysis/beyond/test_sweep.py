"""The report of a sweep, on small run directories whose accuracies are written down here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from support.sweep_tables import PROBLEMS, run, sweep, table

from analysis.__main__ import main
from analysis.beyond.sweep import estimate, importances, load, sensitivities
from bapo.errors import UserError
from bapo.store import provenance
from bapo.store.files import SUMMARY


@pytest.fixture
def plane(tmp_path: Path) -> Path:
    """v matters (0.4, 0.6, 0.5), m does not."""
    accuracy = {1: 0.4, 5: 0.6, 10: 0.5}
    trials = [{"drawn": {"v": v, "m": m}, "seeds": table(accuracy[v] + 0.001 * m)} for v in accuracy for m in (1, 2, 3)]
    return sweep(tmp_path, {"v": [1, 5, 10], "m": [1, 2, 3]}, trials)


def test_levels_are_means_over_the_other_parameters(plane: Path) -> None:
    loaded = load(plane)
    (v, m), weights = sensitivities(loaded), importances(loaded)
    assert [level[:2] for level in v.levels] == [("1", 3), ("5", 3), ("10", 3)]
    assert [round(float(x[2].mean()), 4) for x in v.levels] == [0.402, 0.602, 0.502]
    assert [round(float(x[2].mean()), 4) for x in m.levels] == [0.501, 0.502, 0.503]
    assert v.change and m.change  # the ends in order, not the best and the worst
    assert (v.change.mean, m.change.mean) == pytest.approx((0.1, 0.002)) and v.p < 0.05 < m.p
    assert weights["v"] > 0.8 and sum(weights.values()) == pytest.approx(1)


def test_the_region_is_one_standard_error_of_the_best_and_above_the_reference(tmp_path: Path) -> None:
    values = {1: 0.6, 2: 0.595, 3: 0.5, 4: 0.3}
    trials = [{"drawn": {"v": v}, "seeds": table(a)} for v, a in values.items()]
    loaded = load(sweep(tmp_path, {"v": list(values)}, trials))
    # by hand: problems' spread 0.02 * sqrt(6) around the mean, so SE^2 = 0.0004 * 6 / 8; seeds 0.01 apart from the
    # mean add 0.0002 / 2 and no interaction
    assert loaded.complete[0].estimate.se == pytest.approx((0.0004 * 6 / 8 + 0.0002 / 2) ** 0.5)
    assert [t.drawn("v") for t in loaded.region] == [1, 2]  # 0.5 is above GRPO's 0.385, but not near the best
    assert loaded.reference.mean() == pytest.approx(0.385)
    low = load(sweep(tmp_path / "low", {"v": [1]}, [{"drawn": {"v": 1}, "seeds": table(0.3)}]))
    assert low.region == []  # the best itself is below the reference


def test_many_values_of_a_number_are_three_levels_of_like_size(tmp_path: Path) -> None:
    values = [1.0, 2.0, 3.5, 4.0, 7.0, 9.0, 12.0, 20.0, 29.0]
    trials = [{"drawn": {"v": v}, "seeds": table(0.4 + 0.01 * i)} for i, v in enumerate(values)]
    loaded = load(sweep(tmp_path, {"v": None}, trials))
    (v,) = sensitivities(loaded)
    assert [x[0] for x in v.levels] == ["1 to 3.5", "4 to 9", "12 to 29"]
    assert v.change and v.change.mean == pytest.approx(0.06) and importances(loaded) == {}  # one parameter


def test_a_choice_without_an_order_is_compared_with_what_is_furthest_from_the_first(tmp_path: Path) -> None:
    accuracy = {"adaptive": 0.5, "fixed low": 0.52, "fixed high": 0.44}
    trials = [{"drawn": {"c": c}, "seeds": table(a)} for c, a in accuracy.items()]
    (c,) = sensitivities(load(sweep(tmp_path, {"c": list(accuracy)}, trials)))
    assert c.end == "fixed high" and c.change
    assert c.p == pytest.approx(2 * c.change.p) and 0 < c.change.p < 0.5  # the furthest of two was picked


def test_the_files_hold_the_numbers_and_the_same_bytes_again(plane: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert main(["robustness", "--trials", str(plane), "--out", str(out)]) == 0
    frame = pd.read_csv(out / "robustness.csv")
    assert list(frame["kind"]) == ["trial"] * 9 + ["level"] * 6
    assert frame.loc[frame["trial"] == 3, "accuracy"].item() == pytest.approx(60.1)
    page = (out / "robustness.md").read_text()
    assert "| the v | 1 | 10 | +10.0" in page and "Its numbers mean nothing." in page
    assert (out / "robustness.png").read_bytes()[:4] == b"\x89PNG"
    assert (out / provenance.FOLDER / "robustness.json").is_file()
    first = (out / "robustness.pdf").read_bytes()
    main(["robustness", "--trials", str(plane), "--out", str(out)])
    assert (out / "robustness.pdf").read_bytes() == first


def test_failed_trials_are_shown_and_count_in_no_level(tmp_path: Path) -> None:
    trials: list[dict[str, Any]] = [
        {"drawn": {"v": v, "w": w}, "seeds": table(a)}
        for v, w, a in ((1.5, 2.0, 0.5), (3.0, 9.0, 0.52), (4.0, 3.0, 0.54))
    ]
    trials.append({"drawn": {"v": 20.0, "w": 1.0}, "seeds": [], "state": "fail", "reason": "c2 exceeds c3"})
    path = sweep(tmp_path, {"v": None, "w": None}, trials, sampler="tpe")
    assert main(["robustness", "--trials", str(path), "--out", str(tmp_path / "out")]) == 0
    assert "fail: c2 exceeds c3" in (tmp_path / "out" / "robustness.md").read_text()
    assert [x[0] for x in sensitivities(load(path))[0].levels] == ["1.5", "3", "4"]
    assert importances(load(path)) == {}  # of three trials there are none


def test_runs_that_changed_or_are_about_other_problems_are_named(plane: Path, tmp_path: Path, capsys: Any) -> None:
    place = Path(json.loads(plane.read_text())["trials"][0]["seeds"]["1"]["run"])
    run(place, [0.9] * PROBLEMS)
    with pytest.raises(UserError, match=r"trial 0 was told 0\.401000"):
        load(plane)
    run(place, [0.9] * (PROBLEMS - 1))
    with pytest.raises(UserError, match=str(place)):
        load(plane)
    (place / SUMMARY).unlink()
    assert main(["robustness", "--trials", str(plane), "--out", str(tmp_path / "out")]) == 2
    assert str(place) in capsys.readouterr().err


def test_an_interval_wider_than_all_accuracies_is_left_out() -> None:
    # two seeds that differ by the same amount on every problem: hardly a degree of freedom
    found = estimate(np.array([[0.0, 0.0, 0.0, 0.0], [0.5, 0.5, 0.5, 0.4999]]))
    assert found.mean == pytest.approx(0.25, abs=1e-4) and found.se > 0 and np.isnan(found.half_width)
    assert estimate(np.array(table(0.5))).half_width < 0.1
