"""The grader of geometry: choices and units; and ``python -m bapo grade``."""

from __future__ import annotations

import gzip
import io
import json
from pathlib import Path

import pytest
from support.paths import needs_shared

from bapo.__main__ import main
from bapo.errors import UserError
from bapo.evaluation.grade import grade_file
from bapo.graders import geometry, pool

CHOICES = ("6", r"\sqrt { 253 }", "17", r"5 \sqrt { 13 }")


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the limit of CPU time counts here, so that a busy machine changes no verdict."""
    monkeypatch.setattr(pool.shared(), "wall_seconds", 60.0)


@pytest.mark.parametrize(
    ("answer", "correct"),
    [
        (r"5\sqrt{13}", True),
        (r"\sqrt{325}", True),
        (r"x = 5 \sqrt { 13 }", True),
        ("D", True),
        ("(D)", True),
        ("D.", True),
        ("d", True),
        ("(d)", True),
        ("c", False),
        ("h", False),
        (r"5\sqrt{13}}, \boxed{D", True),
        (r"17}, \boxed{D", False),
        (r"\text{D}", True),
        (r"\textbf{(D)}", True),
        (r"D. 5\sqrt{13}", True),
        (r"(D) 5\sqrt{13}", True),
        (r"\text{(D) }5\sqrt{13}", True),
        (r"5\sqrt{13}\text{ cm}", True),
        ("A", False),
        ("17", False),
        ("C", False),
        (r"A. 5\sqrt{13}", False),
        ("D. 17", False),
        ("E", False),
        ("18.0", False),
        ("A, D", False),
        (r"A \text{ or } D", False),
        (r"13\sqrt{5}", False),
    ],
)
def test_choices(answer: str, correct: bool) -> None:
    assert geometry.grade(f"\\boxed{{{answer}}}", [r"5 \sqrt { 13 }"], CHOICES).correct == correct
    assert geometry.grade(f"\\boxed{{{answer}}}", ["D"], CHOICES).correct == correct


@pytest.mark.parametrize(
    ("gold", "answer", "correct"),
    [
        ("103", r"103^\circ", True),
        ("103", r"m\angle A = 103^\circ", True),
        ("103", r"103 \text{ degrees}", True),
        ("6.4", "6.40", True),
        ("6.4", r"\sqrt{41}", False),
        ("10 \\pi", "10π", True),
        ("10 \\pi", "31.4", False),
        ("10 \\pi", "10", False),
        (r"\frac { 21 \sqrt 2 } { 2 }", r"10.5\sqrt{2}", True),
        (r"9 \sqrt 2 \pi", r"9\pi\sqrt{2}", True),
        ("2:3", r"\frac{2}{3}", True),
        ("2:3", "3:2", False),
        ("x < 60", "60 > x", True),
        ("x < 60", "60", False),
        ("- 1", "-1", True),
        ("20 y^2 - 10 y", "10y(2y-1)", True),
        (r"\angle 2 and \angle 6", r"\angle 2 \text{ and } \angle 6", True),
        (r"\angle 2 and \angle 6", r"\angle 2", False),
        (r"\angle 1 \cong \angle 4", r"\angle 1 \cong \angle 4", True),
        ("not enough information", r"\text{Not enough information}", True),
        ("a + b = 90", "a+b=90", True),
        ("a + b = 90", "a+b", False),
        ("40 / 3", r"13\frac{1}{3}", True),
    ],
)
def test_values(gold: str, answer: str, correct: bool) -> None:
    assert geometry.grade(f"so \\boxed{{{answer}}}", [gold]).correct == correct


def test_without_choices_a_letter_is_a_letter() -> None:
    assert geometry.grade(r"\boxed{D}", ["D"]).correct and not geometry.grade(r"\boxed{D}", ["17"]).correct
    assert geometry.grade("17", ["17"], CHOICES) == (False, False, "no_answer")


def test_a_small_letter_may_be_a_value() -> None:
    assert geometry.grade(r"\boxed{b}", ["b"], ["a + b", "2 b", "b", "a"]).correct
    assert geometry.grade(r"\boxed{b}", ["2 b"], ["a + b", "2 b", "3 b", "a"]).correct


@pytest.mark.parametrize("choices", [[], ["1"], "ABCD", ["1", ""], ["1", 2], [str(k) for k in range(9)], 7])
def test_unusable_choices(choices: object) -> None:
    with pytest.raises(UserError, match="choices: "):
        geometry.grade(r"\boxed{D}", ["17"], choices)


def test_a_gold_letter_without_its_choice() -> None:
    with pytest.raises(UserError, match="'E' is the letter of a choice, and there are only 4"):
        geometry.grade(r"\boxed{D}", ["E"], CHOICES)
    with pytest.raises(UserError, match="golds"):
        geometry.grade(r"\boxed{D}", [""], CHOICES)


def test_the_choices_of_geometry3k() -> None:
    """Every choice as an answer, by value and by letter: right exactly where it is the gold's."""
    path = needs_shared("data", "geometry3k", "geometry3k_train.jsonl.gz")
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for _, line in zip(range(250), lines, strict=False)]
    missed = []
    for row in rows:
        choices, gold = row["choices"], row["answer"]
        for index, value in enumerate(choices):
            expected = value == choices["ABCD".index(row["answer_letter"])]
            for answer in (value, "ABCD"[index]):
                response = f"\\boxed{{{answer}}}"
                if geometry.grade(response, [gold], choices).correct != expected:
                    missed.append((row["id"], answer))
    assert missed == []


# ------------------------------------------------------------------------------------------------ the command


def _write(path: Path, lines: list[dict]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


def test_grade_geometry(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = _write(
        tmp_path / "g.jsonl",
        [
            {"gold": "17", "response": r"\boxed{17^\circ}"},
            {"gold": "x < 60", "response": r"\boxed{60 > x}"},
            {"gold": ["2:3"], "response": "none"},
            {"gold": "17", "choices": ["1", "17"], "response": r"\boxed{B}"},
            {"gold": "17", "response": r"\boxed{18}"},
        ],
    )
    assert main(["grade", "--task", "geometry", str(path)]) == 0
    out, err = capsys.readouterr()
    right = {"correct": True, "parsed": True, "reason": ""}
    assert [json.loads(line) for line in out.splitlines()] == [
        right,
        right,
        {"correct": False, "parsed": False, "reason": "no_answer"},
        right,
        {"correct": False, "parsed": True, "reason": "wrong"},
    ]
    assert err == "5 graded, 3 correct, 1 without a readable answer\n"


def test_grade_mathematics(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [
        {"gold": "4.5e33", "response": r"\boxed{4.5 \times 10^{33}}"},
        {"gold": ["1", "2"], "response": r"\boxed{3}"},
    ]
    out = io.StringIO()
    assert grade_file("mathematics", _write(tmp_path / "m.jsonl", lines), out) == 2
    assert [json.loads(line)["correct"] for line in out.getvalue().splitlines()] == [True, False]
    assert capsys.readouterr().err == "2 graded, 1 correct, 0 without a readable answer\n"


@pytest.mark.parametrize(
    ("task", "line", "message"),
    [
        ("mathematics", {"gold": "", "response": "x"}, "line 1: field 'gold': the gold '' is empty"),
        ("mathematics", {"gold": 5, "response": "x"}, "line 1: field 'gold': must be text, got the number 5"),
        ("mathematics", {"response": "x"}, "line 1: field 'gold' is missing; a line needs gold, response"),
        ("geometry", {"gold": "5"}, "line 1: field 'response' is missing"),
        (
            "geometry",
            {"gold": "5", "response": "x", "choices": ["5"]},
            "line 1: field 'choices': must be a list of two",
        ),
        ("math", {"gold": "5", "response": "x"}, "task=math: unknown task; allowed: countdown, geometry, mathematics"),
    ],
)
def test_wrong_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str], task: str, line: dict, message: str) -> None:
    assert main(["grade", "--task", task, str(_write(tmp_path / "x.jsonl", [line]))]) == 2
    assert message in capsys.readouterr().err
