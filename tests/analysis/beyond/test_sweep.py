"""The report of a sweep, on small run directories whose accuracies are written down here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from support.runs import PROBLEMS, run, sweep, table

from analysis.__main__ import main
from analysis.beyond.sweep import changes, ends, load
from bapo.errors import UserError
from bapo.store import provenance
from bapo.store.files import SUMMARY


@pytest.fixture
def plane(tmp_path: Path) -> Path:
    """v matters (0.4, 0.6, 0.5); m spreads the two seeds, the other way round for m = 3, and does not."""
    accuracy, shift = {1: 0.4, 5: 0.6, 10: 0.5}, {1: 0.01, 2: 0.01, 3: -0.01}
    cells = [(v, m) for v in accuracy for m in shift]
    trials = [{"drawn": {"v": v, "m": m}, "seeds": table(accuracy[v] + 0.001 * m, shift[m])} for v, m in cells]
    return sweep(tmp_path, {"v": [1, 5, 10], "m": [1, 2, 3]}, trials)


def test_the_ends_of_a_parameter_are_means_over_the_other_ones(plane: Path) -> None:
    v, m = changes(load(plane))  # the ends in order, not the best and the worst
    assert [(row["from"], row["to"]) for row in (v, m)] == [("1", "10"), ("1", "3")]
    assert (v["change"], m["change"]) == pytest.approx((10, 0.2)) and v["p_holm"] < 0.05 < m["p_holm"]


def test_of_many_values_the_lowest_and_the_highest_third_and_choices_in_their_order(tmp_path: Path) -> None:
    values = [1.0, 2.0, 3.5, 4.0, 7.0, 9.0, 12.0, 20.0, 29.0]
    trials = [{"drawn": {"v": v}, "seeds": table(0.4 + 0.01 * i)} for i, v in enumerate(values)]
    many = load(sweep(tmp_path, {"v": None}, trials))
    assert [title for title, _ in ends(many, many.file.parameters[0])] == ["1 to 3.5", "12 to 29"]
    assert changes(many)[0]["change"] == pytest.approx(6)
    accuracy = {"adaptive": 0.5, "fixed low": 0.52, "fixed high": 0.44}
    trials = [{"drawn": {"c": c}, "seeds": table(a)} for c, a in reversed(accuracy.items())]
    (c,) = changes(load(sweep(tmp_path / "choices", {"c": list(accuracy)}, trials)))
    assert (c["from"], c["to"]) == ("adaptive", "fixed high") and c["change"] == pytest.approx(-6)


def test_the_region_is_one_standard_error_of_the_best_and_above_the_reference(tmp_path: Path) -> None:
    values = {1: 0.6, 2: 0.595, 3: 0.5, 4: 0.3}
    trials = [{"drawn": {"v": v}, "seeds": table(a)} for v, a in values.items()]
    loaded = load(sweep(tmp_path, {"v": list(values)}, trials))
    # by hand: problems' spread 0.02 * sqrt(6) around the mean, so SE^2 = 0.0004 * 6 / 8; seeds 0.01 apart from the
    # mean add 0.0002 / 2 and no interaction
    assert loaded.complete[0].estimate.se == pytest.approx((0.0004 * 6 / 8 + 0.0002 / 2) ** 0.5)
    # 0.5 is above GRPO's 0.385, but not near the best
    assert [t.trial.drawn["v"] for t in loaded.complete if loaded.in_region(t)] == [1, 2]
    assert loaded.reference.mean() == pytest.approx(0.385)
    low = load(sweep(tmp_path / "low", {"v": [1]}, [{"drawn": {"v": 1}, "seeds": table(0.3)}]))
    assert not low.in_region(low.complete[0])  # the best itself is below the reference


def test_the_files_hold_the_numbers(plane: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert main(["robustness", "--trials", str(plane), "--out", str(out)]) == 0
    frame = pd.read_csv(out / "robustness.csv")
    assert list(frame["kind"]) == ["trial"] * 9 + ["parameter"] * 2
    assert frame.loc[frame["trial"] == 3, "accuracy"].item() == pytest.approx(60.1)
    page = (out / "robustness.md").read_text()
    assert "| the v | 1 | 10 | +10.0" in page and "Its numbers mean nothing." in page
    assert (out / "robustness.png").read_bytes()[:4] == b"\x89PNG"
    assert (out / provenance.FOLDER / "robustness.json").is_file()


def test_failed_trials_are_shown_and_count_in_no_change(tmp_path: Path) -> None:
    trials: list[dict[str, Any]] = [
        {"drawn": {"v": v, "w": w}, "seeds": table(a)}
        for v, w, a in ((1.5, 2.0, 0.5), (3.0, 9.0, 0.52), (4.0, 3.0, 0.54))
    ]
    trials.append({"drawn": {"v": 20.0, "w": 1.0}, "seeds": [], "state": "fail", "reason": "c2 exceeds c3"})
    path = sweep(tmp_path, {"v": None, "w": None}, trials, sampler="tpe")
    assert main(["robustness", "--trials", str(path), "--out", str(tmp_path / "out")]) == 0
    assert "fail: c2 exceeds c3" in (tmp_path / "out" / "robustness.md").read_text()
    assert (changes(load(path))[0]["from"], changes(load(path))[0]["to"]) == ("1.5", "4")


def test_runs_that_changed_or_are_about_other_problems_are_named(plane: Path, tmp_path: Path, capsys: Any) -> None:
    place = Path(json.loads(plane.read_text())["trials"][0]["seeds"]["1"]["run"])
    run(place, [0.9] * PROBLEMS)
    with pytest.raises(UserError, match=r"trial 0 records 0\.401000"):
        load(plane)
    run(place, [0.9] * (PROBLEMS - 1))
    with pytest.raises(UserError, match=str(place)):
        load(plane)
    (place / SUMMARY).unlink()
    assert main(["robustness", "--trials", str(plane), "--out", str(tmp_path / "out")]) == 2
    assert str(place) in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "named"),
    [
        *(({key: 5}, key) for key in ("trials", "seeds", "reference", "parameters", "validation", "title")),
        ({"seeds": []}, "seeds"),
        ({"seeds": [1, 2, 3]}, "reference.runs: has no run of seed 3"),
        ({"trials": [{"state": "complete"}]}, "trials.0.number: has no value"),
        ({"trials": [{"number": 0, "state": "complete", "drawn": {}, "seeds": {}}]}, "trials.0.seeds: has no run of"),
        ({"reference": {"title": "+GRPO", "runs": {"1": 5}}}, "reference.runs.1=5: must be"),
    ],
)
def test_what_is_no_file_of_trials_is_named(change: Any, named: str, plane: Path, tmp_path: Path, capsys: Any) -> None:
    plane.write_text(json.dumps(json.loads(plane.read_text()) | change))
    assert main(["robustness", "--trials", str(plane), "--out", str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err.startswith(f"error: {plane}: {named}")
    plane.write_text(json.dumps({"trials": 5}))
    assert main(["robustness", "--trials", str(plane), "--out", str(tmp_path / "out")]) == 2
