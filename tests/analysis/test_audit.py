"""The audit finds what is known to be wrong in the paper and what is planted in a table, and nothing in a clean one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from analysis.audit import Finding, attainable, audit, luck
from analysis.paper import load, parse


@pytest.fixture(scope="module")
def findings() -> list[Finding]:
    return audit(load())


def of(findings: Sequence[Finding], check: str, *words: str) -> list[Finding]:
    return [f for f in findings if f.check == check and all(w in f"{f.where} {f.text}" for w in words)]


def test_cells_of_the_paper(findings: list[Finding]) -> None:
    means = [(f.numbers["printed"], round(f.numbers["mean"], 2)) for f in of(findings, "average")]
    assert means == [(48.90, 49.08), (51.57, 51.33)]
    impossible = {(f.numbers["problems"], f.numbers["printed"]) for f in of(findings, "granularity", "is no mean of")}
    assert impossible == {(30, 28.80), (30, 30.49), (83, 62.90), (83, 70.08)}
    for column in ("CD-34", "CD-4"):
        (found,) = of(findings, "granularity", column, "grid of 200 problems x 8 runs = 1/1600")
        assert found.numbers["luck"] < 1e-4 and found.numbers["stated"] == 32
    for words in (("Minerva", "DAPO", "30.70"), ("MATH500", "86.05"), ("Qwen2.5 VL 3B, Geo-3K(val)", "40.11")):
        assert of(findings, "mark", *words)
    assert of(findings, "not the best", "Qwen2.5 Math 7B, CD-4", "57.13", "57.43")
    # BAPO's 29.55 is second of Minerva, and GRPO's 36.44 comes next after a tie: both lines are right
    assert not of(findings, "mark", "29.55 is underlined") and not of(findings, "mark", "36.44 is underlined")


def test_statements_of_the_paper(findings: list[Finding]) -> None:
    (found,) = of(findings, "gain")
    gains = {k: round(v, 2) for k, v in found.numbers.items()}
    models = {"DeepSeek R1 Distill Qwen 1.5B": 8.59, "Qwen2.5 Math 1.5B": 21.94, "Qwen2.5 VL 3B": 8.65}
    assert {"stated": 12.5, "mean of the relative gains": 10.98, **models}.items() <= gains.items()
    (budget,) = of(findings, "budget")
    assert round(budget.numbers["implied_steps"]) == 331 and budget.numbers["steps"] == 471
    assert "965k" in budget.text
    assert {round(f.numbers["ratio"], 2) for f in of(findings, "ratio")} == {2.84}  # 2.62 is about 2.5
    assert len(of(findings, "same quantity")) == 3
    assert not of(findings, "same quantity", "test problems")  # 901 = 300 + 601
    (constants,) = of(findings, "theorem", "K1 = ")
    assert round(constants.numbers["K1"], 3) == round(constants.numbers["K2"], 3) == 2.024
    (premise,) = of(findings, "theorem", "eq. 30")
    assert premise.numbers["means"] == [0.875]
    (empty,) = of(findings, "theorem", "never positive")
    assert empty.numbers["largest"] == pytest.approx(0) and empty.numbers["largest_with_factor_1"] == pytest.approx(1)


@pytest.mark.parametrize(
    ("outcomes", "possible", "impossible"),
    [
        (3, ("33.33", "33.3", "66.67", "66.66"), ("33.34", "66.65")),  # 66.66 is cut off
        (7, ("0", "100", "14.3"), ("14.4",)),
        (960, ("28.75",), ("28.80",)),
    ],
)
def test_which_values_counts_give(outcomes: int, possible: tuple[str, ...], impossible: tuple[str, ...]) -> None:
    assert all(attainable(parse(printed), outcomes) for printed in possible)
    assert not any(attainable(parse(printed), outcomes) for printed in impossible)
    for printed in impossible:  # by brute force, for rounding
        assert printed not in {f"{100 * c / outcomes:.{parse(printed).digits}f}" for c in range(outcomes + 1)}


def test_luck_is_the_share_of_values_that_the_grid_reaches() -> None:
    cells = [parse("12.34")]
    share = sum(attainable(parse(f"{v / 100:.2f}"), 1600) for v in range(10_001)) / 10_001
    assert luck(cells, 1600) == pytest.approx(share, abs=0.01)
    assert luck(cells * 2, 1600) == pytest.approx(share**2, abs=0.01) and luck(cells, 10**6) == 1


def test_printed_numbers() -> None:
    assert (parse("677k").value, parse("677k").half_unit) == (677_000, 500)
    assert (parse("73.00").digits, parse("73").half_unit) == (2, 0.5)
    assert parse("-") is None and parse("on") is None


def write(folder: Path, rows: Sequence[dict[str, Any]], **setup: object) -> Path:
    columns = {"x": "X", "y": "Y", "avg": "Mean"}
    model = {"key": "m", "title": "M", "task": "t", "columns": columns, "rows": list(rows)}
    folder.mkdir()
    (folder / "table1.yaml").write_text(yaml.safe_dump({"models": [model]}), encoding="utf-8")
    content = {"runs": 4, "problems": {"x": 10, "y": 20}, **setup}
    (folder / "setup.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")
    return folder


def rows(
    ours: str | None = "52.5",
    mean: str = "46.88",
    y: str = "41.25",
    underlined: tuple[str, ...] = ("x", "y", "avg"),
    methods: tuple[str, str] = ("old", "bapo"),
) -> list[dict[str, Any]]:
    cells = {"x": "50.0", "y": "41.25", "avg": "45.63"}
    return [
        {"method": methods[0], "title": "Old", **cells, "underlined": list(underlined)},
        {"method": methods[1], "title": "New", "x": ours, "y": y, "avg": mean, "underlined": []},
    ]


def test_a_clean_table_has_no_findings_and_planted_errors_are_found(tmp_path: Path) -> None:
    clean = {"of": "bapo", "over": "old", "where": "p. 1", "stated": 4.1}
    assert audit(load(write(tmp_path / "clean", rows(y="42.5", mean="47.5"), gains=[clean]))) == []
    wrong = {"of": "new", "over": "bapo", "where": "p. 1", "stated": 20}
    planted = rows("51.0", "47.00", underlined=("x",), methods=("bapo", "new"))
    same = {"problems": {"p. 2": 31, "p. 3": 30}}
    found = audit(load(write(tmp_path / "planted", planted, gains=[wrong], same=same)))
    assert [f.numbers["mean"] for f in of(found, "average")] == [pytest.approx(46.125)]
    assert of(found, "granularity", "51.0 is no mean of 10 problems x 4 runs")
    assert of(found, "mark", "Mean", "45.63 is second and is not underlined")
    assert of(found, "not the best", "Old 50.0 is below New 51.0")
    assert of(found, "gain", "20% is stated") and of(found, "same quantity", "p. 2 31, p. 3 30")
