"""The robustness report of a sweep, on small run directories whose accuracies are written down here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from support.sweep_tables import PROBLEMS, run, sweep, table

from analysis import text
from analysis.__main__ import main
from analysis.robustness import page, reading, sensitivity
from bapo.errors import UserError
from bapo.store import provenance
from bapo.store.files import SUMMARY


@pytest.fixture
def plane(tmp_path: Path) -> Path:
    """v matters (0.4, 0.6, 0.5), m does not."""
    accuracy = {1: 0.4, 5: 0.6, 10: 0.5}
    trials = [{"drawn": {"v": v, "m": m}, "seeds": table(accuracy[v] + 0.001 * m)} for v in accuracy for m in (1, 2, 3)]
    return sweep(tmp_path, {"v": [1, 5, 10], "m": [1, 2, 3]}, trials)


def test_levels_are_means_over_the_other_parameters(plane: Path):
    found = sensitivity.sensitivities(reading.load(plane), None)
    v, m = found
    assert [level.title for level in v.levels] == ["1", "5", "10"] and [len(x.trials) for x in v.levels] == [3, 3, 3]
    assert [round(x.estimate.mean, 4) for x in v.levels] == [0.402, 0.602, 0.502]
    assert [round(x.estimate.mean, 4) for x in m.levels] == [0.501, 0.502, 0.503]
    # the ends in order, not the best and the worst
    assert v.change.mean == pytest.approx(0.1) and v.found
    assert m.change.mean == pytest.approx(0.002) and not m.found
    assert v.importance > 0.8 and v.importance + m.importance == pytest.approx(1)


def test_the_region_is_one_standard_error_of_the_best_and_above_the_reference(tmp_path: Path):
    values = {1: 0.6, 2: 0.595, 3: 0.5, 4: 0.3}
    trials = [{"drawn": {"v": v}, "seeds": table(a)} for v, a in values.items()]
    loaded = reading.load(sweep(tmp_path, {"v": list(values)}, trials))
    area = sensitivity.region(loaded)
    # by hand: problems' spread 0.02 * sqrt(6) around the mean, so SE^2 = 0.0004 * 6 / 8; seeds 0.01 apart from the
    # mean add 0.0002 / 2 and no interaction
    assert area.best.drawn == {"v": 1}
    assert area.best.estimate.se == pytest.approx((0.0004 * 6 / 8 + 0.0002 / 2) ** 0.5)
    assert area.bound == pytest.approx(0.6 - 0.02)
    assert [t.drawn["v"] for t in area.inside] == [1, 2]  # 0.5 is above GRPO's 0.385, but not near the best
    assert area.reference.mean == pytest.approx(0.385)
    assert [t.drawn["v"] for t in area.surely] == [1, 2]
    low = reading.load(sweep(tmp_path / "low", {"v": [1]}, [{"drawn": {"v": 1}, "seeds": table(0.3)}]))
    assert sensitivity.region(low).inside == ()  # the best itself is below the reference


def test_many_values_of_a_number_are_three_levels_of_like_size(tmp_path: Path):
    values = [1.0, 2.0, 3.5, 4.0, 7.0, 9.0, 12.0, 20.0, 29.0]
    trials = [{"drawn": {"v": v}, "seeds": table(0.4 + 0.01 * i)} for i, v in enumerate(values)]
    loaded = reading.load(sweep(tmp_path, {"v": None}, trials))
    (v,) = sensitivity.sensitivities(loaded, sensitivity.region(loaded))
    assert [x.title for x in v.levels] == ["1 to 3.5", "4 to 9", "12 to 29"]
    assert v.change.mean == pytest.approx(0.06)
    assert v.importance is None  # of one parameter there is none


def test_a_choice_without_an_order_is_compared_with_what_is_furthest_from_the_first(tmp_path: Path):
    accuracy = {"adaptive": 0.5, "fixed low": 0.52, "fixed high": 0.44}
    trials = [{"drawn": {"c": c}, "seeds": table(a)} for c, a in accuracy.items()]
    loaded = reading.load(sweep(tmp_path, {"c": list(accuracy)}, trials))
    (c,) = sensitivity.sensitivities(loaded, sensitivity.region(loaded))
    assert (c.ends[0].title, c.ends[1].title) == ("adaptive", "fixed high")
    assert c.p == pytest.approx(2 * c.change.p) and 0 < c.change.p < 0.5  # the furthest of two was picked
    words = page.sentence(c, sensitivity.region(loaded))
    assert words.startswith("the c: from adaptive to fixed high accuracy changes by -6.0 points (95% ")
    assert words.endswith("The region holds adaptive, fixed low of adaptive, fixed low, fixed high.")


def test_the_files_say_it_in_words_numbers_and_a_figure(plane: Path, tmp_path: Path):
    out = tmp_path / "out"
    assert main(["robustness", "--trials", str(plane), "--out", str(out)]) == 0
    text = (out / "robustness.md").read_text()
    assert text.startswith(
        "# Robustness of BAPO: Small at smoke scale (Model M)\n\n- The best of 9 complete trials has 60.3 "
    )
    assert "- the v: from 1 to 10 accuracy changes by +10.0 points" in text and "a significant difference" in text
    assert "- the m: from 1 to 3 accuracy changes by +0.2 points" in text and "no difference was found" in text
    assert "The region holds 5 of 1 to 10." in text and "The region holds every value tried (1 to 3)." in text
    assert text.count("\n| the v |") == 3  # beside every value: the report's readers sort the table
    assert "Its numbers mean nothing." in text and "no test problem is used" in text
    frame = pd.read_csv(out / "robustness.csv")
    assert list(frame["kind"]) == ["trial"] * 9 + ["level"] * 6
    assert frame.loc[frame["trial"] == 3, "accuracy"].item() == pytest.approx(60.1)
    assert (out / "robustness.png").read_bytes()[:4] == b"\x89PNG"
    svg = (out / "robustness.svg").read_text()
    assert "Small" in svg and "minus one standard error" in svg
    assert provenance.main(str(out / "robustness.svg")) == 0
    first = (out / "robustness.pdf").read_bytes()
    main(["robustness", "--trials", str(plane), "--out", str(out)])
    assert (out / "robustness.pdf").read_bytes() == first


def test_failed_trials_are_shown_and_count_in_no_level(tmp_path: Path):
    trials = [
        {"drawn": {"v": 1.5, "w": 2.0}, "seeds": table(0.5)},
        {"drawn": {"v": 3.0, "w": 9.0}, "seeds": table(0.52)},
        {"drawn": {"v": 4.0, "w": 3.0}, "seeds": table(0.54)},
        {"drawn": {"v": 4.5, "w": 5.0}, "seeds": table(0.51)},
        {"drawn": {"v": 20.0, "w": 1.0}, "seeds": [], "state": "fail", "reason": "c2 exceeds c3"},
    ]
    path = sweep(tmp_path, {"v": None, "w": None}, trials, sampler="tpe")
    assert main(["robustness", "--trials", str(path), "--out", str(tmp_path / "out")]) == 0
    text = (tmp_path / "out" / "robustness.md").read_text()
    assert "Trial 4 failed: c2 exceeds c3." in text
    v = sensitivity.sensitivities(reading.load(path), None)[0]
    assert [x.title for x in v.levels] == ["1.5", "3", "4", "4.5"]
    assert "importance" not in json.dumps(sensitivity.importances(reading.load(path)))  # four trials: {}


def test_runs_that_changed_or_are_about_other_problems_are_named(plane: Path, tmp_path: Path, capsys: Any):
    content = json.loads(plane.read_text())
    place = Path(content["trials"][0]["seeds"]["1"]["run"])
    run(place, [0.9] * PROBLEMS)
    with pytest.raises(UserError, match=r"trial 0 was told 0\.401000, but its runs say"):
        reading.load(plane)
    run(place, [0.9] * (PROBLEMS - 1))
    with pytest.raises(UserError, match="other validation problems than the first run"):
        reading.load(plane)
    (place / SUMMARY).unlink()
    assert main(["robustness", "--trials", str(plane), "--out", str(tmp_path / "out")]) == 2
    assert f"error: {place}: not finished" in capsys.readouterr().err


def test_an_interval_wider_than_all_accuracies_is_left_out():
    # two seeds that differ by the same amount on every problem: hardly a degree of freedom
    found = reading.estimate(np.array([[0.0, 0.0, 0.0, 0.0], [0.5, 0.5, 0.5, 0.4999]]))
    assert found.mean == pytest.approx(0.25, abs=1e-4) and found.se > 0 and np.isnan(found.half_width)
    assert text.percent(found) == "25.0 ± \N{EN DASH}"
    assert reading.estimate(np.array(table(0.5))).half_width < 0.1
