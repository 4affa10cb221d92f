"""The findings that the page opens with: sentences right for any results, and a picture of the same numbers."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from support.browser import Browser, needed
from support.table_runs import place, write_evaluation, write_run, write_study

from analysis.__main__ import main
from analysis.report import findings, gains, picture, write
from analysis.report.findings import Opening
from analysis.report.gains import Gain, Panel, Row
from analysis.study import StudyFile, read_file
from bapo.errors import UserError

NAN = math.nan


def gain(points: float, significant: bool = True, seeds: bool = True) -> Gain:
    return Gain(points, points - 1, points + 1, significant, seeds)


def row(method: str, base: Gain | None, reference: Gain | None, cost: float = 1.0, accuracy: float = 20.0) -> Row:
    return Row(method, method.upper(), 3, accuracy, base, reference, {"rollouts": cost, "seconds": 2 * cost})


GRPO = row("grpo", gain(5.0), None)


def panel(*rows: Row, title: str = "Countdown", reference: str = "GRPO") -> Panel:
    return Panel(title, rows, reference)


# ------------------------------------------------------------------------------------------------ one by one


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([row("grpo", None, None)], "cannot be said: the base model has not been evaluated"),
        ([GRPO], "gained on Countdown +5.0 (+4.0 to +6.0) with GRPO: this gain is significant."),
        (
            [GRPO, row("bapo", gain(7.0), None)],
            "Countdown +5.0 (+4.0 to +6.0) with GRPO up to +7.0 (+6.0 to +8.0) with BAPO: every gain is significant.",
        ),
        (
            [GRPO, row("bapo", gain(-3.0), None), row("ppo", gain(0.0, significant=False), None)],
            "1 of these 3 is a significant gain, 1 of these 3 is a significant loss and for 1 of them no "
            "difference is significant.",
        ),
        (
            [row("grpo", gain(5.0, significant=False, seeds=False), None)],
            "with GRPO: with one training seed no difference between methods can be judged.",
        ),
    ],
)
def test_gains_over_the_base(rows: list[Row], words: str) -> None:
    assert words in findings.over_the_base([panel(*rows)])


def test_the_proposed_method_task_by_task() -> None:
    def of(*over: Gain | None) -> str:
        cases = zip(("A", "B", "C"), over, strict=False)
        return findings.of_the_proposed([panel(GRPO, row("bapo", None, g), title=t) for t, g in cases], "GRPO")

    three = of(gain(2.0), gain(-2.0), gain(0.3, significant=False))
    assert three.startswith(
        "BAPO minus GRPO, in points, is +2.0 (+1.0 to +3.0) on A, -2.0 (-3.0 to -1.0) on B and +0.3"
    )
    assert three.endswith(": above it on A, below it on B and no difference is significant on C.")
    assert of(gain(0.3, significant=False), gain(-0.0, significant=False)).endswith(
        ": no difference is significant on any task."
    )
    assert of(gain(3.0, significant=False, seeds=False)).endswith(
        ": with one training seed no difference between methods can be judged."
    )
    assert "is +0.0 (" in of(gain(-0.0, significant=False))
    assert of(None) == ""


def test_without_the_proposed_method_the_best_is_named_and_ties_are_ties() -> None:
    rows = [row("grpo", None, None, accuracy=20.0), row("x", None, gain(4.0), accuracy=24.0)]
    assert "X on Countdown with 24.0% (+4.0 (+3.0 to +5.0) against GRPO)." in findings.of_the_best([panel(*rows)])
    unsure = [rows[0], row("x", None, gain(4.0, significant=False), accuracy=24.0)]
    assert "against GRPO, no difference is significant)" in findings.of_the_best([panel(*unsure)])
    tied = [rows[0], row("x", None, gain(0.0, significant=False), accuracy=20.01)]
    assert "GRPO and X on Countdown with 20.0% (level to a tenth of a point)" in findings.of_the_best([panel(*tied)])
    assert "(the method that the others are compared with)" in findings.of_the_best([panel(rows[0])])
    assert "(with nothing to compare it with)" in findings.of_the_best([panel(rows[0], reference="")])


def test_the_other_methods() -> None:
    def of(*over: Gain | None, reference: str = "GRPO") -> str:
        rows = [row(f"m{i}", None, g) for i, g in enumerate(over)]
        return findings.of_the_others([panel(*rows, reference=reference)], "GRPO", "grpo")

    assert of(gain(1.0, significant=False), gain(1.0, significant=False)) == (
        "In both comparisons of other methods with GRPO, no difference is significant."
    )
    assert of(gain(1.0, significant=False)).startswith("In the one comparison of another method with GRPO, no")
    mixed = of(gain(2.0), gain(3.0), gain(-4.0), gain(0.0, significant=False))
    assert "2 are above it (M1 on Countdown, +3.0 (+2.0 to +4.0); M0 on Countdown" in mixed
    assert "1 is below it (M2 on Countdown, -4.0" in mixed and mixed.endswith("and for 1 no difference is significant.")
    assert "; 2 more)" in of(*[gain(2.0)] * 8)
    assert of() == "No other method has been compared with GRPO."
    assert of(None, reference="") == "Nothing can be said against GRPO: no run of it has been evaluated."


def test_costs() -> None:
    panels = [panel(GRPO, row("bapo", None, None, c), row("x", None, None, 3 * c), title=str(c)) for c in (1.0, 4.0)]
    assert findings.of_costs(panels, "GRPO", "grpo") == (
        "Relative to GRPO, a run took, as the mean over the tasks: BAPO 2.00 times the rollouts and 4.00 times the "
        "time; X 6.00 times the rollouts and 12.00 times the time."
    )
    alone = findings.of_costs([panel(GRPO)], "GRPO", "grpo")
    assert alone.startswith("What a run cost cannot be compared")
    assert "cannot" in findings.of_costs([panel(GRPO, row("x", None, None, NAN))], "GRPO", "grpo")


def test_claims_are_counted_once_each() -> None:
    lines = [
        {"id": "a", "task": "countdown", "verdict": "reproduced", "parts": [1]},
        {"id": "a", "task": "overall", "verdict": "contradicted", "parts": [1]},
        {"id": "b", "task": "", "verdict": "reproduced"},
        {"id": "c", "task": "", "verdict": "not testable at this scale"},
    ]
    assert findings.by_verdict(lines)["contradicted"] == (("a", "claim-2"),)
    assert findings.on_claims(lines) == (
        "Of 3 claims of the paper, 1 holds here, 1 is contradicted, 0 are undecided and 1 cannot be tested at this "
        "scale."
    )
    assert findings.on_claims([]) == "No claim of the paper has been judged yet."


# ------------------------------------------------------------------------------------------------ from tables


def results(tmp_path: Path, accuracy: dict[str, float], seeds: tuple[int, ...], name: str) -> Path:
    """A results folder of made-up runs with the table of a study; the method "base" is the model before training."""
    rng = np.random.default_rng(0)
    difficulty = rng.uniform(-0.1, 0.1, 60)
    home = tmp_path / "results" / "laptop"

    def bits(share: float) -> dict[str, list[list[int]]]:
        return {b: (rng.random((60, 16)) < (share + difficulty)[:, None]).astype(int).tolist() for b in ("a", "b")}

    bases = []
    for method, share in accuracy.items():
        if method == "base":
            folder = home / "countdown" / "tiny" / "base"
            write_evaluation(folder / "eval", bits(share))
            bases = [{"task": "countdown", "model": "tiny", "run": str(folder)}]
            continue
        for seed in seeds:
            totals = {"rollouts": 1000.0 if method == "grpo" else 1500.0, "seconds": 10.0}
            write_run(place(tmp_path, method, seed), bits(share), totals)
    cells = [("tiny", method, seed) for method in accuracy if method != "base" for seed in seeds]
    study = write_study(tmp_path, cells, name=name, bases=bases, reference="grpo", title="A study")
    (home / "studies").mkdir()
    study = study.rename(home / "studies" / f"{name}.json")
    command = "table1" if name == "table1" else "comparison"
    assert main([command, "--study", str(study), "--out", str(home / "tables")]) == 0
    return home


def opening(home: Path) -> Opening:
    return findings.collect(home, [read_file(path) for path in (home / "studies").glob("*.json")], [])


@pytest.mark.parametrize("name", ["table1", "mine"])
def test_the_numbers_are_those_of_the_table(tmp_path: Path, name: str) -> None:
    home = results(tmp_path, {"base": 0.2, "grpo": 0.4, "bapo": 0.6, "dapo": 0.4}, (1, 2, 3), name)
    found = opening(home)
    assert len(found.sentences) == 5 and found.problems == ()
    (only,) = found.panels
    by = {r.method: r for r in only.rows}
    assert only.title == "Countdown" and only.reference == "GRPO" and set(by) == {"grpo", "bapo", "dapo"}
    assert by["bapo"].over_reference.side == "above" and by["bapo"].over_reference.points == pytest.approx(20, abs=3)
    assert by["dapo"].over_reference.side == "open"
    assert by["grpo"].over_reference is None and by["grpo"].over_base.side == "above"
    assert by["grpo"].over_base.low < by["grpo"].over_base.points < by["grpo"].over_base.high
    assert by["bapo"].costs == {"rollouts": pytest.approx(1.5), "seconds": pytest.approx(1.0)}
    assert "every gain is significant" in found.sentences[0] and "above it on Countdown." in found.sentences[1]
    (drawn,) = picture.drawings(found)
    assert [m.label for m in drawn.marks] == ["DAPO", "BAPO"] and drawn.axis == "points over GRPO"
    for mark in drawn.marks:
        assert picture.LEFT <= mark.low <= mark.x <= mark.high <= picture.RIGHT
    assert next(m for m in drawn.marks if m.label == "BAPO").low > drawn.zero


@pytest.mark.parametrize("name", ["table1", "mine"])
def test_one_seed_speaks_of_no_method(tmp_path: Path, name: str) -> None:
    found = opening(results(tmp_path, {"base": 0.2, "grpo": 0.3, "bapo": 0.7}, (1,), name))
    assert all("with one training seed no difference" in s for s in found.sentences[:2])
    assert not any(m.side != "open" for d in picture.drawings(found) for m in d.marks)


@pytest.mark.parametrize("size", [0.004, 0.03, 0.2, 1.0, 7.0, 60.0])
def test_no_two_ticks_of_the_picture_read_alike(size: float) -> None:
    over = Gain(size / 2, size / 4, size, True, True)
    (drawn,) = picture.drawings(Opening((), (panel(GRPO, row("bapo", None, over)),), reference="GRPO"))
    words = [words for _, words in drawn.ticks]
    assert len(set(words)) == len(words) > 2


def test_rows_that_pool_base_models_are_not_a_task_of_their_own(tmp_path: Path) -> None:
    home = results(tmp_path, {"grpo": 0.4, "bapo": 0.6}, (1, 2), "mine")
    table = home / "tables" / "comparison_mine.csv"
    header, *rows = table.read_text().splitlines()
    pooled = {"task": "countdown", "model": "two bases", "method": "bapo", "benchmark": "avg", "difference": "1.0"}
    rows.append(",".join(pooled.get(name, "") for name in header.split(",")))
    table.write_text("\n".join([header, *rows]) + "\n")
    assert [p.title for p in opening(home).panels] == ["Countdown"]


def test_a_method_without_the_reference_and_without_the_base(tmp_path: Path) -> None:
    found = opening(results(tmp_path, {"bapo": 0.4, "dapo": 0.5}, (1, 2), "table1"))
    assert "the base model has not been evaluated" in found.sentences[0]
    assert "The highest average accuracy is that of DAPO" in found.sentences[1]
    assert "no run of it has been evaluated" in found.sentences[2]
    assert picture.drawings(found) == []


def test_a_table_that_is_none_is_said_and_the_rest_shown(tmp_path: Path) -> None:
    home = results(tmp_path, {"grpo": 0.4, "bapo": 0.5}, (1, 2), "table1")
    (home / "tables" / "table1.csv").write_text("benchmark,task\navg,countdown\n")
    found = opening(home)
    assert "table1.csv: cannot be read" in found.problems[0]
    assert found.sentences[0].startswith("No table of accuracies")
    assert "Left out: " in write(home).path.read_text(encoding="utf-8")
    with pytest.raises(UserError, match=r"table1\.csv"):
        gains.panels(StudyFile(()), home / "tables" / "table1.csv")


@needed
def test_the_page_opens_with_them_on_a_laptop_and_a_phone(tmp_path: Path) -> None:
    home = results(tmp_path, {"base": 0.2, "grpo": 0.4, "bapo": 0.6, "dapo": 0.4}, (1, 2, 3), "table1")
    page = write(home).path
    with Browser() as browser:
        for width in (1280, 360):
            browser.open(page, width=width)
            assert browser.run("document.querySelector('main section').id") == "findings"
            assert browser.run("document.querySelectorAll('ol.findings li').length") == 5
            assert browser.run("document.documentElement.scrollWidth <= innerWidth")
            box = "document.querySelector('svg.gains').getBoundingClientRect()"
            left, right, height = browser.run(f"(b => [b.left, b.right, b.height])({box})")
            assert 0 <= left < right <= width and height > 50
            ends = "[...document.querySelectorAll('#tables .scroll')].map(e => e.getBoundingClientRect().right)"
            assert max(browser.run(ends)) <= width
        assert browser.complaints == [] and browser.requests == []
