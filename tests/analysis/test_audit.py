"""The audit finds what is known to be wrong in the paper and what is planted in a table, and nothing in a clean one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.pages import example

from analysis.__main__ import main
from analysis.audit import SETUP, Finding, attainable, audit, best_case, load, luck
from analysis.paper import find, parse
from bapo import init
from bapo.errors import UserError
from bapo.store import provenance


@pytest.fixture(scope="module")
def findings():
    return audit(load(SETUP))


def of(findings: Sequence[Finding], check: str, *words: str) -> list[Finding]:
    return [f for f in findings if f.check == check and all(w in f"{f.where} {f.text}" for w in words)]


# ------------------------------------------------------------------------------------------------ the paper


def test_the_two_averages_that_do_not_follow(findings):
    assert [(f.numbers["printed"], round(f.numbers["mean"], 2)) for f in of(findings, "average")] == [
        (48.90, 49.08),
        (51.57, 51.33),
    ]


def test_values_that_no_count_gives(findings):
    impossible = {(f.numbers["problems"], f.numbers["printed"]) for f in of(findings, "granularity", "is no mean of")}
    assert impossible == {(30, 28.80), (30, 30.49), (83, 62.90), (83, 70.08)}


def test_countdown_lies_on_the_grid_of_eight_runs(findings):
    for column in ("CD-34", "CD-4"):
        (found,) = of(findings, "granularity", column, "grid of 200 problems x 8 runs = 1/1600")
        assert found.numbers["luck"] < 1e-4 and found.numbers["stated"] == 32


def test_wrong_marks(findings):
    assert of(findings, "mark", "Minerva", "DAPO", "30.70 is underlined and is number 1")
    assert of(findings, "mark", "MATH500", "86.05 is underlined and is number 3")
    assert of(findings, "mark", "Qwen2.5 VL 3B, Geo-3K(val)", "tie at the top with 40.11")
    assert of(findings, "not the best", "Qwen2.5 Math 7B, CD-4", "57.13 is below", "57.43")
    # BAPO's 29.55 is second of Minerva, and GRPO's 36.44 comes next after a tie: both lines are right
    assert not of(findings, "mark", "29.55 is underlined") and not of(findings, "mark", "36.44 is underlined")


def test_the_stated_gain_is_no_average_of_the_gains(findings):
    (found,) = of(findings, "gain")
    gains = {k: round(v, 2) for k, v in found.numbers.items()}
    assert gains["stated"] == 12.5 and gains["mean of the relative gains"] == 10.98
    assert [gains[m] for m in ("DeepSeek R1 Distill Qwen 1.5B", "Qwen2.5 Math 1.5B", "Qwen2.5 VL 3B")] == [
        8.59,
        21.94,
        8.65,
    ]


def test_rollouts_steps_and_sizes(findings):
    (budget,) = of(findings, "budget")
    assert round(budget.numbers["implied_steps"]) == 331 and budget.numbers["steps"] == 471
    assert "965k" in budget.text
    assert {round(f.numbers["ratio"], 2) for f in of(findings, "ratio")} == {2.62, 2.84}
    assert {f.where for f in of(findings, "same quantity")} == {
        "Countdown training problems",
        "Geometry3K training problems",
        "hard problems that BAPO comes to solve, percent",
    }
    assert not of(findings, "sum")  # 901 = 300 + 601


def test_the_constants_and_the_premise_that_fails(findings):
    (constants,) = of(findings, "theorem", "K1 = ")
    assert round(constants.numbers["K1"], 3) == round(constants.numbers["K2"], 3) == 2.024
    (premise,) = of(findings, "theorem", "eq. 30")
    assert premise.numbers["means"] == [0.875]
    (empty,) = of(findings, "theorem", "never positive")
    assert empty.numbers["largest"] == pytest.approx(0) and empty.numbers["largest_with_factor_1"] == pytest.approx(1)


# ------------------------------------------------------------------------------------------------ the arithmetic


@pytest.mark.parametrize(
    ("printed", "outcomes", "possible"),
    [
        ("33.33", 3, True),
        ("33.3", 3, True),
        ("33.34", 3, False),
        ("66.67", 3, True),
        ("66.66", 3, True),  # cut off
        ("66.65", 3, False),
        ("0", 7, True),
        ("100", 7, True),
        ("14.3", 7, True),
        ("14.4", 7, False),
        ("28.75", 960, True),
        ("28.80", 960, False),
    ],
)
def test_which_values_counts_give(printed, outcomes, possible):
    assert attainable(parse(printed), outcomes) is possible
    every = {f"{100 * c / outcomes:.{parse(printed).digits}f}" for c in range(outcomes + 1)}
    assert not (printed in every and not possible)  # by brute force, for rounding


def test_luck_is_the_share_of_values_that_the_grid_reaches():
    cells = [parse("12.34")]
    share = sum(attainable(parse(f"{v / 100:.2f}"), 1600) for v in range(10_001)) / 10_001
    assert luck(cells, 1600) == pytest.approx(share, abs=0.01)
    assert luck(cells * 2, 1600) == pytest.approx(share**2, abs=0.01) and luck(cells, 10**6) == 1


def test_printed_numbers():
    assert (parse("677k").value, parse("677k").half_unit) == (677_000, 500)
    assert (parse("73.00").digits, parse("73").half_unit) == (2, 0.5)
    assert parse("-") is None and parse("on") is None


def test_no_policy_beats_the_best_case():
    # two responses, one right: the new policy moves t of probability to the right one, so TV = J(pi) - J(alpha) = t
    for mu, t in ((0.125, 0.3), (0.5, 0.2), (0.875, 0.1)):
        sigma = (mu * (1 - mu)) ** 0.5
        bound = t / sigma - 2 * (1 - sigma) / sigma * t  # eq. 20 with alpha = pi_t
        assert bound == pytest.approx(best_case(mu, 2.0) * t) and bound <= 1e-12
        assert t / sigma - (1 - sigma) / sigma * t == pytest.approx(t)  # with factor 1 it is tight


# ------------------------------------------------------------------------------------------------ another paper


def write(folder: Path, rows, **setup) -> Path:
    table = {
        "parts": [
            {
                "part": "a",
                "title": "T",
                "task": "t",
                "columns": {"x": "X", "y": "Y", "mean": "Mean"},
                "models": [{"key": "m", "title": "M", "rows": rows}],
            }
        ]
    }
    (folder / "table.yaml").write_text(yaml.safe_dump(table), encoding="utf-8")
    content = {"table": "table.yaml", "runs": 4, "problems": {"x": 10, "y": 20}, "average": "mean", **setup}
    (folder / "setup.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")
    return folder / "setup.yaml"


def rows(ours="52.5", mean="46.88", underlined=("x", "y", "mean")):
    return [
        {"method": "old", "title": "Old", "x": "50.0", "y": "41.25", "mean": "45.63", "underlined": list(underlined)},
        {"method": "new", "title": "New", "x": ours, "y": "41.25", "mean": mean, "underlined": []},
    ]


def test_a_clean_table_has_no_findings(tmp_path):
    clean = rows()
    clean[1]["y"], clean[1]["mean"] = "42.5", "47.5"
    setup = write(tmp_path, clean, proposed="new", gains=[{"stated": 4.1, "of": "new", "over": "old", "where": "p. 1"}])
    assert audit(load(setup)) == []


def test_planted_errors_are_found(tmp_path):
    setup = write(
        tmp_path,
        rows(ours="51.0", mean="47.00", underlined=("x",)),
        proposed="old",
        gains=[{"stated": 20, "of": "new", "over": "old", "where": "p. 1"}],
        sums=[{"stated": 31, "parts": [10, 20], "where": "p. 2"}],
    )
    found = audit(load(setup))
    assert [f.check for f in of(found, "average")] == ["average"] and "46.12" in of(found, "average")[0].text
    assert of(found, "granularity", "51.0 is no mean of 10 problems x 4 runs")
    assert of(found, "mark", "Mean", "45.63 is second and is not underlined")
    assert of(found, "not the best", "Old 50.0 is below New 51.0")
    assert of(found, "gain", "20% is stated") and of(found, "sum", "10 + 20 = 30")


def test_an_average_without_all_of_its_cells_is_not_accused(tmp_path):
    found = audit(load(write(tmp_path, rows(ours="-", mean="47.00"))))
    assert not of(found, "average")
    (said,) = of(found, "not checked", "M, New")
    assert said.numbers == {"printed": 47.0, "missing": ["X"]}
    bare = [{**row, "x": "-"} for row in rows()]  # of no row of the model
    assert len(of(audit(load(write(tmp_path, bare))), "not checked")) == 2


def test_rows_of_other_papers_do_not_decide_the_grid(tmp_path):
    many = [{"method": f"r{i}", "title": f"R{i}", "x": f"{100 * i / 50:.2f}"} for i in range(1, 40)]
    borrowed = {"method": "b", "title": "B*", "x": "33.33"}
    setup = write(tmp_path, [*many, borrowed], borrowed="*")
    assert of(audit(load(setup)), "granularity", "10 problems x 5 runs")
    assert of(audit(load(setup)), "granularity", "B*", "a row from another paper")


def test_the_command_writes_its_findings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", "--out", str(tmp_path)]) == 0
    assert capsys.readouterr().out.strip() == (tmp_path / "audit.md").read_text(encoding="utf-8").strip()
    content = json.loads((tmp_path / "audit.json").read_text(encoding="utf-8"))
    assert len(content) == len(audit(load(SETUP))) and content[0]["check"] == "average"
    assert main(["audit", "nowhere.yaml"]) == 2 and "nowhere.yaml" in capsys.readouterr().err


# ------------------------------------------------------------------------------------------------ the second paper


@pytest.fixture(scope="module")
def zoo():
    return audit(load(find("simplerl_zoo")))


def test_the_second_paper_has_a_cell_that_no_count_gives(zoo):
    (cell,) = of(zoo, "granularity", "is no mean of")
    assert (cell.numbers["printed"], cell.numbers["problems"]) == (57.6, 40) and "Qwen-2.5-14B" in cell.where


def test_the_second_papers_smallest_gain_is_below_the_stated_one(zoo):
    (gain,) = of(zoo, "gain")
    assert gain.numbers["smallest"] == pytest.approx(8.8) and "Qwen-2.5-0.5B" in gain.text
    assert not of(zoo, "average")  # without AIME24 (Avg@32), as its note says, all twenty follow from their cells


def test_a_column_outside_the_average_may_have_problems(tmp_path):
    clean = [{"method": "new", "title": "New", "x": "50.0", "y": "40.0", "mean": "50.0"}]
    assert of(audit(load(write(tmp_path, clean))), "average")
    assert not of(audit(load(write(tmp_path, clean, averaged=["x"]))), "average")


def test_every_column_may_have_runs_of_its_own(tmp_path):
    one = [{"method": "new", "title": "New", "x": "52.5", "y": "40.0"}]
    assert not of(audit(load(write(tmp_path, one, runs={"x": 4}))), "granularity", "is no mean")
    assert of(audit(load(write(tmp_path, one, runs={"x": 1}))), "granularity", "52.5 is no mean of 10 problems x 1")


# ------------------------------------------------------------------------------------------------ mistakes


@pytest.mark.parametrize(
    ("setup", "named"),
    [
        ({"avarage": "mean"}, "avarage"),
        ({"average": "means"}, "average"),
        ({"problems": {"z": 3}}, "problems"),
        ({"runs": "four"}, "runs"),
        ({"table": "tabel.yaml"}, "tabel.yaml"),
        ({"proposed": "ours"}, "ours"),
        ({"gains": [{"stated": 3, "of": "new", "over": "old"}]}, r"gains\.0\.where"),
        ({"budgets": [{"model": "n"}]}, "budgets"),
    ],
)
def test_mistakes_in_a_setup_are_named(tmp_path: Path, setup: dict[str, Any], named: str) -> None:
    with pytest.raises(UserError, match=named):
        load(write(tmp_path, rows(), **setup))


@pytest.mark.parametrize(
    ("row", "named"),
    [
        ({"z": "1"}, "no column 'z'"),
        ({"x": 50.0}, "x=50"),
        ({"x": "57.6 ± 1.2"}, "x=57.6"),
        ({"x": "5O.0"}, "x=5O.0"),
        ({"x": True}, "x=True"),
        ({"title": None}, r"rows\.0\.title"),
    ],
)
def test_mistakes_in_a_table_are_named(tmp_path: Path, row: dict[str, Any], named: str) -> None:
    with pytest.raises(UserError, match=rf"table\.yaml: .*{named}"):
        load(write(tmp_path, [{**rows()[0], **row}, rows()[1]]))


def test_what_stands_for_no_number_is_none(tmp_path: Path) -> None:
    for text in ("-", " \u2013 ", "", None):
        assert "x" not in load(write(tmp_path, rows(ours=text))).blocks[0].rows[1].cells
    for name, content in (("setup", "runs: 3"), ("table", "parts: 3")):
        file = write(tmp_path, rows()).with_name(f"{name}.yaml")
        file.write_text(content, encoding="utf-8")
        with pytest.raises(UserError, match=f"{name}\\.yaml"):
            load(tmp_path / "setup.yaml")


def test_in_a_project_the_paper_goes_without_saying(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "mine"
    init.write(folder)
    (folder / "bapo.yaml").write_text("scale: smoke\npaper: paper.yaml\n")
    for page in ("table", "paper"):
        (folder / f"{page}.yaml").write_text(example("yaml", f"{page}.yaml"))
    monkeypatch.chdir(folder)
    assert main(["audit", "--out", "out"]) == 0 and capsys.readouterr().out.startswith("# Audit of A paper")
    assert Path("out", provenance.FOLDER, "audit.json").is_file()
    assert main(["audit", "simplerl_zoo"]) == 0 and "SimpleRL-Zoo" in capsys.readouterr().out
