"""``bapo compare``: differences by hand, Holm's correction over all lines, and what cannot be compared."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from support.paths import ROOT
from support.runs import USUAL, accuracy, bits, place, rewrite, write_results, write_run, write_study

from analysis import statistics
from analysis.__main__ import main
from analysis.exchange import evidence
from analysis.exchange.compare import AGREES, DIFFERS, IDENTICAL, ONLY, OTHER, compare
from bapo.errors import UserError
from bapo.store.files import read_table, write_text


@pytest.fixture
def a(tmp_path: Path) -> Path:
    return write_results(tmp_path / "a" / "laptop")


def rows(found: pd.DataFrame) -> dict[tuple[str, str], Any]:
    return {(row.method, row.benchmark): row for row in found.itertuples()}


def mean(row: Any, side: str) -> float:
    return 100 * getattr(row, side).mean(row.benchmark).mean


def test_the_same_results_are_identical(a: Path, tmp_path: Path) -> None:
    found = compare(a, shutil.copytree(a, tmp_path / "elsewhere" / "renamed"))
    assert {*found.state} == {IDENTICAL}
    assert set(rows(found)) == {(m, c) for m in USUAL for c in ("cd", "avg")}


@pytest.mark.parametrize("within", ["laptop", "results/laptop", "deep/er/laptop"])
def test_a_folder_is_searched_where_results_lie(a: Path, tmp_path: Path, capsys: Any, within: str) -> None:
    """They lie in it, in its children and in results/, as in an unpacked study, an archive and a project."""
    place = tmp_path / "place"
    shutil.copytree(a, place / within)
    if within.startswith("deep"):
        assert main(["compare", str(a), str(place)]) == 2
        assert f"{place}: holds no studies/*.json" in capsys.readouterr().err
        return
    assert {*compare(a, place).state} == {IDENTICAL}
    shutil.copytree(a, place / within.replace("laptop", "other"))
    assert main(["compare", str(a), str(place)]) == 2
    assert (
        f"{place}: {place / within} and " in (said := capsys.readouterr().err) and "both hold table1; name one" in said
    )


def test_each_side_is_read_from_its_own_folder(a: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both study files say results/laptop/..., which also exists where the command is given."""
    b = write_results(tmp_path / "b" / "laptop", {**USUAL, "bapo": 7})
    write_results(tmp_path / "results" / "laptop", {**USUAL, "bapo": 1})
    monkeypatch.chdir(tmp_path)
    row = rows(compare(a, b))["bapo", "cd"]
    assert mean(row, "a") == pytest.approx(accuracy(5)) and mean(row, "b") == pytest.approx(accuracy(7))
    assert row.state == DIFFERS


def test_differences_are_paired_on_the_problems_and_corrected(a: Path, tmp_path: Path) -> None:
    b = write_results(tmp_path / "b", {**USUAL, "bapo": 7}, seeds=(3, 4), shift=5)
    found = rows(compare(a, b))
    assert found["grpo", "cd"].state == AGREES and found["bapo", "cd"].state == DIFFERS
    sides = [
        statistics.Side([np.mean([bits(3, s, shift) for s in seeds], axis=2)], seeds)
        for seeds, shift in (((1, 2), 0), ((3, 4), 5))
    ]
    expected, difference = statistics.difference(*sides).both, found["grpo", "cd"].comparison.difference.tested
    assert (difference.mean, difference.half_width) == pytest.approx((expected.mean, expected.half_width))
    compared = [row.comparison for row in found.values()]
    raw = [c.difference.tested.p for c in compared]
    assert [c.adjusted for c in compared] == pytest.approx(statistics.holm(raw))


def test_other_problems_are_not_compared(tmp_path: Path, capsys: Any) -> None:
    for side in "ab":
        run = write_run(place(tmp_path / side, "grpo", 1), {name: bits(3, 1) for name in ("one", "two")})
        study = write_study(tmp_path / side, [("tiny", "grpo", 1)], ("one", "two"))
        write_text(run.parents[3] / "studies" / "small.json", study.read_text())
    sides = [str(tmp_path / side / "results") for side in "ab"]
    for name, status in (("two", 0), ("one", 2)):
        path = run / "eval" / f"{name}.parquet"
        frame = read_table(path)
        rewrite(path.parent, **{name: frame.assign(problem_id="other" + frame["problem_id"])})
        assert main(["compare", *sides]) == status
        if status == 0:
            states = compare(*map(Path, sides)).set_index("benchmark").state.to_dict()
            assert states == {"one": IDENTICAL, "two": OTHER, "avg": OTHER}
    assert "no task, model and method is evaluated on the same problems in both" in capsys.readouterr().err


def test_only_studies_that_both_hold_count_and_tuned_runs_are_no_plain_ones(tmp_path: Path) -> None:
    """Table 1's bapo is tuned, and the one of another study, which comes first, is not."""
    whole = write_results(tmp_path / "whole", {"base": 1, "grpo": 3, "bapo": 7, "bapo+fast": 5})
    table1, plain = (whole / "studies" / f"{name}.json" for name in ("table1", "plain"))
    content = json.loads(table1.read_text())
    of = {cell["method"]: [c for c in content["cells"] if c["method"] == cell["method"]] for cell in content["cells"]}
    tuned = [cell | {"method": "bapo", "tuned": ["fast"]} for cell in of["bapo+fast"]]
    write_text(plain, json.dumps(content | {"name": "plain", "cells": of["grpo"] + of["bapo"]}))
    write_text(table1, json.dumps(content | {"cells": of["grpo"] + tuned}))
    part, rest = (shutil.copytree(whole, tmp_path / name) for name in ("part", "rest"))
    (part / "studies" / "plain.json").unlink()
    (rest / "studies" / "table1.json").unlink()
    for other, methods in ((whole, {*USUAL, "bapo+fast"}), (part, {"base", "grpo", "bapo+fast"})):
        found = compare(other, whole)
        assert {*found.state} == {IDENTICAL} and {*found.method} == methods
    with pytest.raises(UserError, match=r"no study is in both: .*part has table1; .*rest has plain; name two"):
        compare(part, rest)


def test_what_one_side_alone_has_is_listed_and_does_not_count(a: Path, tmp_path: Path) -> None:
    b = write_results(tmp_path / "b", {"base": 1, "grpo": 3, "dapo": 4})
    (b / "countdown/tiny/grpo/seed1/eval/summary.json").unlink()
    found = compare(a, b)
    assert dict.fromkeys(zip(found.method, found.state, strict=True)).keys() == {
        *((method, IDENTICAL if method == "base" else AGREES) for method in ("base", "grpo")),
        *zip(("bapo", "dapo"), ONLY, strict=True),
    }
    assert len(rows(found)["grpo", "cd"].b.seeds) == 1


def test_the_page_names_what_differs(a: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    b = write_results(tmp_path / "b", {**USUAL, "bapo": 7})
    assert main(["compare", str(a), str(b)]) == 1
    shown = capsys.readouterr().out
    assert "| countdown | tiny | bapo | cd |" in shown and "| grpo |" not in shown


def test_nothing_in_common_and_wrong_places_are_errors(a: Path, tmp_path: Path, capsys: Any) -> None:
    with pytest.raises(UserError, match="no number in common"):
        compare(a, write_results(tmp_path / "b", {"dapo": 3}))
    (tmp_path / "empty").mkdir()
    for name in ("nowhere", "empty"):
        assert main(["compare", str(a), str(tmp_path / name)]) == 2 and name in capsys.readouterr().err


def test_evidence_is_compared_with_results_of_its_study_alone(tmp_path: Path, capsys: Any) -> None:
    """A portion is compared as its study: with all of its runs that the other side has."""
    reuse, rates, portion = (ROOT / "evidence" / "laptop" / f"{name}.zip" for name in ("reuse", "ceiling", "rates_1"))
    assert main(["compare", str(reuse), str(rates)]) == 2
    assert f"no study is in both: {reuse} has reuse; {rates} has {rates.stem}" in capsys.readouterr().err
    for part in ("1", "2"):
        evidence.unpack(portion.with_stem(f"rates_{part}"), tmp_path)
    found = compare(portion, tmp_path / "laptop")
    assert {*found.state} == {IDENTICAL, ONLY[1]}
