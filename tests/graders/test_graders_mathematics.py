"""The grader of mathematics: extraction, hand-made cases in both directions, golds, counts, bounds."""

from __future__ import annotations

import importlib
import inspect
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from support.paths import BENCHMARKS, ROOT, needs_shared

from bapo.__main__ import main
from bapo.errors import UserError
from bapo.graders import mathematics
from bapo.graders.extract import boxed, last_box
from bapo.graders.verdict import DIFFERENT, EQUAL, OVERLOADED
from bapo.tasks.geometry.task import Geometry
from bapo.tasks.mathematics.task import Mathematics

TASKS = {"mathematics": Mathematics(), "geometry": Geometry()}


def _pairs(name: str) -> list[tuple[str, str]]:
    """Cases made to fool a grader: ``gold || answer``, one a line, under headings."""
    lines = Path(__file__).with_name(name).read_text(encoding="utf-8").splitlines()
    pairs = [line.split(" || ") for line in lines if line and not line.startswith("# ")]
    assert all(len(pair) == 2 for pair in pairs) and len(set(map(tuple, pairs))) == len(pairs) > 150
    return [(gold, answer) for gold, answer in pairs]


RIGHT, WRONG = _pairs("equal.txt"), _pairs("different.txt")


def _missed(pairs: list[tuple[str, str]], expected: bool) -> list[tuple[str, str]]:
    return [(g, a) for g, a in pairs if mathematics.judge(a, (g,)).correct != expected]


def test_equal_answers_are_right() -> None:
    assert _missed(RIGHT, True) == []


def test_different_answers_are_wrong() -> None:
    assert _missed(WRONG, False) == []


def test_every_gold_of_the_cases_equals_itself_boxed() -> None:
    golds = {gold for gold, _ in RIGHT + WRONG if "boxed" not in gold}
    assert [g for g in golds if not mathematics.grade(f"It is ${boxed(g)}$.", [g]).correct] == []
    dressed = {g: rf"\displaystyle\, {g} \quad." for g in golds}  # not the same text, so that it has to be read
    assert [g for g in golds if not mathematics.judge(dressed[g], (g,)).correct] == []


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        (r"\boxed{ \frac{1}{2} }", r"\frac{1}{2}"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{\boxed{5}}", r"\boxed{5}"),
        (r"{ stray \boxed{5}", "5"),
        (r"\boxed {5}", "5"),
        (r"\\boxed{840}.\n", "840"),
        (r"\boxed{5} and then \boxed{12", None),  # the last is cut off
        (r"\boxed{5}, or rather $\boxed{\text{No", None),
        (r"\boxed{5}. The answer is \box", None),
        (r"\boxed{a \boxed{5}", "5"),
        ("\\boxed{42}" + " so it is" * 5000, "42"),
        ("\\boxed{42" + "0" * 50_000 + "}", None),
        (r"m=\boxed{4}, n=\boxed{5}, m+n=\boxed{9}", "9"),  # the first two are steps
        (r"$\boxed{3}^2 + \boxed{1} = \boxed{10}$", "10"),
        (r"$a+b=\boxed{7}$ or $a+b=\boxed{8}$", "7, 8"),
        (r"so \boxed{12", None),
        (r"\boxed{12 \}", None),
        (r"<think>maybe \boxed{5}", None),
        (r"maybe \boxed{5}</think> \boxed{6}", "6"),  # the template opened the thinking
        (r"<think>a</think> \boxed{6} <think> \boxed{7}", "6"),
        (r"<think>a</think> \boxed{6} <think> \boxed{7} </think>", None),
        (r"$\boxed{7}$ or $\boxed{8}$", "7, 8"),
        (r"$x = \boxed{7}$ or $x = \boxed{8}$", "7, 8"),
        (r"$\boxed{7}$" + "\n\n" + r"$\boxed{8}$", "8"),
        ("\\boxed{7},\n\\boxed{8}", "7, 8"),
        (r"\boxed{7} \boxed{8}", "7, 8"),
        (r"We get \boxed{7}. The second part asks for twice that, which is \boxed{14}.", "14"),
    ],
)
def test_the_last_box_is_the_answer(response: str, answer: str | None) -> None:
    assert last_box(response) == answer


@pytest.mark.parametrize(
    ("response", "parsed", "reason"),
    [
        ("no box, 8", False, "no_answer"),
        (r"There are 8 apples. $\boxed{}$", False, "no_answer"),
        (r"\boxed{\ \ }", False, "no_answer"),
        (r"\boxed{9}", True, "wrong"),
        (r"\boxed{7 \text{ or } 8}", True, "wrong"),
        (r"\boxed{\frac{8}{}+\sqrt}", False, "unreadable"),
        (r"\boxed{8)}", False, "unreadable"),
        (rf"\boxed{{{'1+' * 2000}1}}", False, "too_long"),
        (rf"\boxed{{{'8' * 5000}}}", False, "too_long"),
        (r"\boxed{9^{9^{9^9}}}", False, "unreadable"),
        (r"\boxed{8}", True, ""),
    ],
)
def test_unparsable_is_not_wrong(response: str, parsed: bool, reason: str) -> None:
    assert mathematics.grade(response, ["8"]) == (reason == "", parsed, reason)


@pytest.mark.parametrize(
    ("response", "gold", "correct"),
    [
        ("\\boxed{\\frac12}\n\n\\boxed{0.5}", "1/2", True),
        (r"$\boxed{x=4}$, $\boxed{4}$", "4", True),
        (r"$\boxed{\sqrt{8}}$ or $\boxed{2\sqrt{2}}$", r"\sqrt{8}", True),
        (r"\boxed{5}. $y=\boxed{4}$", "4", True),
        (r"\boxed{5}, \boxed{4}", "4", False),
        (r"\boxed{5} \boxed{4}", "4", False),
        (r"\boxed{4}, \boxed{5}", "4,5", True),
        (r"\boxed{1}" * 2 + r"\boxed{2}", "2", False),
        (r"\boxed{6} (or \boxed{5})", "5, 6", True),
        (r"\boxed{\frac12} or 0.5", "1/2", True),
    ],
)
def test_neighbouring_boxes_are_one_answer(response: str, gold: str, correct: bool) -> None:
    """One answer written twice counts; several guesses do not."""
    assert mathematics.grade(response, [gold]).correct == correct
    assert not mathematics.grade(r"\boxed{6630}, \boxed{6630.65}", ["6630.65", "6630"]).correct


def test_what_touches_a_box_counts_and_what_stands_near_it_does_not() -> None:
    text = Path(__file__).with_name("boxes.txt").read_text(encoding="utf-8")
    wrong, right = (part.splitlines()[1:] for part in text.split("# right for 5"))
    lines = ["-", "2.", "*", "+"]
    right += [f"\\boxed{{5}}\n{sign} 3 apples" for sign in lines] + [f"1. a\n{sign} \\boxed{{5}}" for sign in lines]
    right += ["**Final Answer**\n\\boxed{5}", "so\n\n$$\n\\boxed{5}\n$$\n\nWrong choices: 4", "\\boxed{5}\nWrong: 4"]
    right += ["It costs $10.\n10/2 = 5\n\\boxed{5}", "\\[x=5\n\\boxed{5}\\]", "1\n\\boxed{5}"]
    right += ["A = 5\\pi\n\\boxed{5}", "So statement \\boxed{5} is false."]  # which one is false was asked
    assert len(wrong) > 50 and len(right) > 150
    assert [response for response in right if not mathematics.grade(response, ["5"]).correct] == []
    assert [response for response in wrong if mathematics.grade(response, ["5"]).correct] == []


def test_what_is_nested_too_deep_is_unreadable() -> None:
    limit, depth = sys.getrecursionlimit(), len(inspect.stack())
    sys.setrecursionlimit(depth + 150)
    try:
        verdict = mathematics.grade(boxed("|" * 440 + "=1"), ["8"])
        many = mathematics.grade(boxed("6" + "%" * 490), ["6"])
    finally:
        sys.setrecursionlimit(limit)
    assert (verdict.correct, verdict.parsed, many.correct) == (False, False, True)


def test_several_golds_are_alternatives() -> None:
    golds = ["6630.65", "6630"]
    assert all(mathematics.grade(boxed(a), golds).correct for a in ("6630", "6630.65", "6,630"))
    assert not mathematics.grade(boxed("6631"), golds).correct
    assert not mathematics.grade(boxed("6630, 6630.65"), golds).correct  # not a list of all of them
    assert mathematics.grade(boxed("x"), ["2", r"\sqrt{x^4} - x^2 + x"]).correct


BROKEN = ["", "  ", "$$", r"\boxed{}", ".", r"\text{}", "{}", "((((1", "%", 5, None]


@pytest.mark.parametrize("golds", [[], None, 5, {}, *([gold] for gold in BROKEN)])
def test_unusable_golds_are_errors(golds: object) -> None:
    with pytest.raises(UserError, match=r"test\.parquet, row 3: "):
        mathematics.check_golds(golds, "test.parquet, row 3")
    for task in TASKS.values():
        with pytest.raises(UserError, match="ground truth: 'answers'"):
            task.gold_responses(json.dumps({"answers": golds, "format": "boxed"}))


def test_golds_as_they_come() -> None:
    assert mathematics.check_golds("5", "row 3") == ("5",)
    assert mathematics.check_golds([r"\emptyset", r"\{\}", "N/A", "-"][:3], "row 3") == (r"\emptyset", r"\{\}", "N/A")
    long = "1, " * 1000 + "2"
    assert mathematics.grade(boxed(long[:600]), [long[:600]]).correct
    assert mathematics.grade(boxed(long), [long]).correct
    assert mathematics.grade(boxed("7"), [long]) == (False, True, "wrong")


def test_the_cheap_path_does_not_import_sympy() -> None:
    program = (
        "import sys\nfrom bapo.graders import mathematics\n"
        r"texts = ['8', '0.5', r'\frac{1}{2}', '50\\%', '1,2', '(1,2)', r'\text{even}', '8 \\text{ cm}', 'x=8']"
        "\nfor gold in texts:\n    for answer in texts:\n        mathematics.judge(answer, (gold,))\n"
        "print([m for m in ('sympy', 'math_verify', 'torch', 'pandas') if m in sys.modules])\n"
        "from bapo.graders import pool\nprint(pool.shared().idle)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["[]", "[]"]


def grade_lines(task: str, lines: list[dict], folder: Path) -> int:
    path = folder / "lines.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return main(["grade", "--task", task, str(path)])


@pytest.mark.parametrize("task", TASKS)
def test_the_command_grades_lines(task: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [
        {"gold": "4.5e33", "response": r"\boxed{4.5 \times 10^{33}}"},
        {"gold": ["2:3"], "response": "none"},
        {"gold": ["1", "2"], "response": r"\boxed{3}"},
    ]
    assert grade_lines(task, lines, tmp_path) == 0
    verdicts = [tuple(json.loads(line).values()) for line in capsys.readouterr().out.splitlines()]
    assert verdicts == [(True, True, ""), (False, False, "no_answer"), (False, True, "wrong")]


@pytest.mark.parametrize(
    ("task", "line", "named"),
    [
        ("mathematics", {"gold": "", "response": "x"}, "line 1: field 'gold'"),
        ("geometry", {"gold": "5", "response": 5}, "line 1: field 'response'"),
    ],
)
def test_wrong_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str], task: str, line: dict, named: str) -> None:
    assert grade_lines(task, [line], tmp_path) == 2
    assert named in capsys.readouterr().err


def test_a_line_has_each_field_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.jsonl").write_text(r'{"gold": "5", "gold": "6", "response": "\boxed{6}"}', encoding="utf-8")
    assert main(["grade", "--task", "mathematics", str(tmp_path / "a.jsonl")]) == 2
    assert "line 1: not valid JSON in UTF-8 (gold is given twice; leave one out)" in capsys.readouterr().err


def _rows(name: str) -> list[dict]:
    text = needs_shared("data", "graders", f"{name}.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.split("\n") if line]


@pytest.fixture
def graders(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return benchmarks/graders.py."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("graders")


def test_responses_of_others(graders: ModuleType) -> None:
    wrong = graders.grade_responses(_rows("adversarial_cases"))
    assert [row["label"] for row in wrong if not row["expected"]] == [] and len(wrong) <= 1
    wrong = graders.grade_responses(_rows("model_outputs_math"))
    assert [row["id"] for row in wrong] == ["qwen_math100/72/7"]  # 10{,}000 against 10000: the label is mistaken


def test_answer_pairs_of_others_are_graded_as_labelled(graders: ModuleType) -> None:
    rules, wrong, graded = graders.grade_pairs(_rows("answer_pairs"))
    if slow := {row["id"] for row in wrong if row["reason"] == "time_limit"}:  # near the limit of CPU time: once more
        mathematics.outcome_of.cache_clear()
        wrong = [row for row in wrong if row["id"] not in slow]
        wrong += graders.grade_pairs([row for row in _rows("answer_pairs") if row["id"] in slow])[1]
    assert graded >= 280 and sum(rules.values()) + graded == 382
    assert len(wrong) <= 0.03 * graded
    listed = (ROOT / "docs" / "grader_disagreements.md").read_text(encoding="utf-8")
    assert [row["id"] for row in wrong if f"| {row['id']} |" not in listed] == []


def test_reported_cases() -> None:
    """Cases made from public reports of wrong grades: no wrong answer is right, and nine of ten right ones are."""
    rows = _rows("turn4_cases")
    verdicts = [mathematics.grade(row["response"], [row["ground_truth"]]).correct for row in rows]
    assert [row["response"] for row, right in zip(rows, verdicts, strict=True) if right and not row["right"]] == []
    assert sum(verdicts) >= 0.9 * sum(row["right"] for row in rows) > 0


def test_one_gold_that_was_not_checked_leaves_the_answer_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    outcomes = {"a": OVERLOADED, "b": DIFFERENT, "c": EQUAL}
    monkeypatch.setattr(mathematics, "compare_texts", lambda gold, answer: outcomes[gold])
    assert mathematics.judge("x", ("b", "a")).reason == OVERLOADED
    assert mathematics.judge("x", ("a", "c")).correct
    assert mathematics.judge("x", ("b",)).reason == "wrong"
