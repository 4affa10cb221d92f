"""Countdown's verifiers against cases worked out by hand, real rows and responses made to fool a grader."""

import json

import pytest
from support.paths import SHARED

from bapo import tasks
from bapo.errors import UserError
from bapo.tasks.countdown import grammar

REAL = SHARED / "data" / "countdown"
countdown = tasks.get("countdown")


def real_rows(name: str) -> list[dict]:
    path = REAL / name
    if not path.exists():
        pytest.skip(f"real rows are not beside the checkout: {path}")
    return [json.loads(line) for line in path.read_text().splitlines()]


def expression(text, numbers=(12, 3, 7, 4), target=24):
    return grammar.verify_expression(text, numbers, target)


def chain(text, numbers=(12, 3, 7, 4), target=24):
    return grammar.verify_chain(text, numbers, target)


# ------------------------------------------------------------------------------------------------ expressions


@pytest.mark.parametrize(
    ("text", "numbers", "target"),
    [
        ("(12 / 3) * 7 - 4", (12, 3, 7, 4), 24),
        ("12/3*7-4", (12, 3, 7, 4), 24),
        ("((12)/((3)))*7-(4)", (12, 3, 7, 4), 24),
        ("\t12 /\n3 * 7\r\n - 4 ", (12, 3, 7, 4), 24),
        ("8/(3-8/3)", (8, 3, 8, 3), 24),  # 3 - 8/3 = 1/3: exact only with fractions
        ("10 - 4 - 3", (3, 4, 10), 3),  # from the left: (10 - 4) - 3
        ("24 / 4 / 3", (24, 4, 3), 2),
        ("2 + 3 * 4", (2, 3, 4), 14),
        ("3 - 7 + 20", (3, 7, 20), 16),  # below zero on the way
        ("0 * 5 + 24", (0, 5, 24), 24),
        ("24", (24,), 24),
    ],
)
def test_expressions_that_are_right(text, numbers, target):
    assert expression(text, numbers, target) == (True, True, "")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("12 / 3 * 7 - 3", "wrong-numbers"),
        ("12 / 3 * 7 - 4 - 4", "wrong-numbers"),
        ("12 * 7 - 3", "wrong-numbers"),  # 4 is left over
        ("24", "wrong-numbers"),
        ("123 - 7 * 4", "wrong-numbers"),  # 12 and 3 glued together
        ("12 - 3 + 7 + 4", "wrong-value"),
        ("12 / (7 - 4 - 3)", "division-by-zero"),
    ],
)
def test_expressions_that_are_wrong(text, reason):
    assert expression(text) == (False, True, reason)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no-answer"),
        (" \n\t ", "no-answer"),
        ("12 / 3 * 7 - 4 = 24", "equals-sign"),
        ("= 12 / 3 * 7 - 4", "equals-sign"),
        ("12 // 3 * 7 - 4", "syntax"),
        ("12 ** 3 - 7 * 4", "syntax"),
        ("-4 + 12 / 3 * 7", "syntax"),
        ("12 / 3 * 7 + -4", "syntax"),
        ("012 / 3 * 7 - 4", "syntax"),
        ("(12)(3) + 7 * 4", "syntax"),
        ("12 3 7 4", "syntax"),
        ("(12 / 3 * 7 - 4", "syntax"),
        ("()", "syntax"),
        ("12.0 / 3 * 7 - 4", "bad-character"),
        ("1_2 / 3 * 7 - 4", "bad-character"),
        ("0xC / 3 * 7 - 4", "bad-character"),
        ("12 / 3 × 7 - 4", "bad-character"),  # noqa: RUF001
        ("12 ÷ 3 * 7 - 4", "bad-character"),
        ("12 / 3 * 7 − 4", "bad-character"),  # noqa: RUF001
        ("１２ / 3 * 7 - 4", "bad-character"),  # noqa: RUF001
        ("12\u00a0/ 3 * 7 - 4", "bad-character"),
        ("12 / 3 * 7 - 4\0", "bad-character"),
        ("inf * 12 * 3 * 7 * 4", "bad-character"),
        ("__import__('os').getpid()", "bad-character"),
        ("12 % 3 + 7 * 4", "bad-character"),
        ("1000000 - 1 * 3", "too-many-digits"),
        ("(" * 17 + "24" + ")" * 17, "too-deep"),
    ],
)
def test_texts_that_are_no_expression(text, reason):
    assert expression(text) == (False, False, reason)


def test_parentheses_up_to_the_limit_are_read():
    assert expression("(" * 16 + "12/3*7-4" + ")" * 16).correct


@pytest.mark.parametrize(
    "text",
    [
        "(" * 100_000 + "1" + ")" * 100_000,
        "(" * 100_000,
        "1+" * 500_000,
        "9**" * 300_000 + "9",
        "1" + "/3" * 400_000,
        "x" * 1_000_000,
        "<answer>" * 100_000,
        "<answer>" * 60_000 + "</answer>" * 60_000,
        "<think>" * 100_000 + "</think>" * 50_000,
        "12 / 3 = 4 , " * 80_000,
        " " * 1_000_000,
    ],
    ids=lambda text: text[:12],
)
@pytest.mark.parametrize("form", ["expression", "answer", "chain"])
def test_large_hostile_texts_are_refused(text, form):
    """What takes quadratic time would not end."""
    plain = grammar.VERIFIERS[form](text, (12, 3, 7, 4), 24)
    wrapped = grammar.VERIFIERS[form](f"<answer>{text}</answer>", (12, 3, 7, 4), 24)
    assert not plain.correct and not plain.parsed
    assert not wrapped.correct and not wrapped.parsed


def test_values_stay_exact_where_floats_are_not():
    # off by 1/999999: within the 1e-5 that graders with floats forgive
    text, numbers = "999999 * 999999 / 999999 + 1 / 999999", (999999, 999999, 999999, 1, 999999)
    assert grammar.verify_expression(text, numbers, 999999).reason == "wrong-value"
    # 1 - 1/3 - 1/3 - 1/3 is 0, not 5.6e-17
    assert grammar.verify_expression("1 - 1 / 3 - 1 / 3 - 1 / 3", (1, 1, 1, 1, 3, 3, 3), 0).correct


# ------------------------------------------------------------------------------------------------ answers


@pytest.mark.parametrize(
    ("response", "correct", "reason"),
    [
        ("<think>12 / 3 is 4</think><answer>12 / 3 * 7 - 4</answer>", True, ""),
        ("no tags for thinking <answer>\n12 / 3 * 7 - 4\n</answer> and on", True, ""),
        ("12/3 = 4 ...</think> <answer>12 / 3 * 7 - 4</answer>", True, ""),  # <think> stands in the prompt
        ("<answer>1 + 1</answer> no: <answer>12 / 3 * 7 - 4</answer>", True, ""),
        ("<answer>12 / 3 * 7 - 4</answer> no: <answer>1 + 1</answer>", False, "wrong-numbers"),
        ("<think><answer>1 + 1</answer></think><answer>12 / 3 * 7 - 4</answer>", True, ""),
        ("<think>a</think><answer>12 / 3 * 7 - 4</answer><think>or <answer>1</answer>", True, ""),
        ("<answer>12 / 3 * 7 - 4</answer> or <answer>12 +", True, ""),  # cut off: the last complete one counts
        ("the form <answer> <answer>12 / 3 * 7 - 4</answer>", True, ""),
        ("<think><answer>12 / 3 * 7 - 4</answer></think>", False, "no-answer"),
        ("<answer>12 / 3 * 7 - 4</answer></think>", False, "no-answer"),
        ("<think><answer>12 / 3 * 7 - 4</answer>", False, "unfinished-thinking"),
        ("12 / 3 * 7 - 4", False, "no-answer"),
        ("", False, "no-answer"),
        ("</answer>12 / 3 * 7 - 4<answer>", False, "no-answer"),
        ("<ANSWER>12 / 3 * 7 - 4</ANSWER>", False, "no-answer"),
        ("<answer></answer>", False, "no-answer"),
        ("<answer>12 / 3 * 7 - 4 = 24</answer>", False, "equals-sign"),
        ("<answer>$12 / 3 * 7 - 4$</answer>", False, "bad-character"),
        ("<answer>__import__('os').system('true')</answer>", False, "bad-character"),
    ],
)
def test_last_answer_outside_the_thinking_counts(response, correct, reason):
    verdict = grammar.verify_answer(response, (12, 3, 7, 4), 24)
    assert (verdict.correct, verdict.reason) == (correct, reason)
    assert verdict.parsed == (correct or reason in grammar.WRONG)


# ------------------------------------------------------------------------------------------------ chains


@pytest.mark.parametrize(
    ("text", "numbers", "target"),
    [
        ("12 / 3 = 4 , 4 * 7 = 28 , 28 - 4 = 24", (12, 3, 7, 4), 24),
        ("12/3=4,4*7=28,28-4=24", (3, 4, 7, 12), 24),
        ("  12/3 =4\n,4 *7= 28\t, 28 - 4 = 24 \n", (12, 3, 7, 4), 24),
        ("5 - 5 = 0 , 0 * 7 = 0 , 0 + 12 = 12", (5, 5, 7, 12), 12),
        ("0 / 5 = 0 , 0 + 12 = 12", (0, 5, 12), 12),
        ("6 + 6 = 12 , 12 + 12 = 24", (6, 6, 12), 24),  # one 12 is given, one is made
    ],
)
def test_chains_that_are_right(text, numbers, target):
    assert chain(text, numbers, target) == (True, True, "")


@pytest.mark.parametrize(
    ("text", "numbers", "target", "reason"),
    [
        ("12 / 3 = 4 , 4 * 7 = 28", (12, 3, 7, 4), 28, "unused-numbers"),
        ("12 / 3 = 4 , 4 * 7 = 27 , 27 - 3 = 24", (12, 3, 7, 4), 24, "wrong-step"),
        ("12 + 3 = 15 , 15 + 7 = 22 , 22 + 4 = 26", (12, 3, 7, 4), 24, "wrong-value"),
        ("12 + 12 = 24", (12, 3), 24, "unavailable-number"),  # there is one 12
        ("12 * 2 = 24 , 24 + 3 = 27", (12, 3, 7), 27, "unavailable-number"),
        ("12 / 3 = 4 , 12 + 7 = 19 , 19 + 4 = 23", (12, 3, 7, 4), 23, "unavailable-number"),
        ("3 - 3 = 0 , 7 / 0 = 0", (3, 3, 7), 0, "division-by-zero"),
        ("7 / 2 = 3 , 3 + 9 = 12", (7, 2, 9), 12, "wrong-step"),
        ("3 - 7 = 4 , 4 + 9 = 13", (3, 7, 9), 13, "wrong-step"),
        ("12 + 3 = 15 , 15 + 7 = 22 , 22 + 4 = 26 , 26 - 2 = 24", (12, 3, 7, 4), 24, "unavailable-number"),
    ],
)
def test_chains_that_are_wrong(text, numbers, target, reason):
    assert chain(text, numbers, target) == (False, True, reason)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no-answer"),
        ("  ", "no-answer"),
        ("24", "syntax"),
        ("12 / 3 = 4 , 4 * 7 = 28 , 28 - 4 =", "syntax"),
        ("12 / 3 = 4 , 4 * 7 = 28 , 28 - 4 = 24 ,", "syntax"),
        ("12 / 3 * 7 - 4 = 24", "syntax"),
        ("3 - 7 = -4 , -4 + 12 = 8", "syntax"),
        ("7 / 2 = 3.5", "syntax"),
        ("1 2 / 3 = 4", "syntax"),
        ("12 / 3 = 4<eos>", "syntax"),
        ("1000000 - 1 = 999999", "syntax"),
    ],
)
def test_texts_that_are_no_chain(text, reason):
    assert chain(text) == (False, False, reason)


# ------------------------------------------------------------------------------------------------ real rows


def test_stated_solutions_of_real_rows_are_right():
    rows = real_rows("countdown_3to4_first4000.jsonl")
    assert len(rows) == 4000
    for row in rows:
        truth = grammar.to_ground_truth(row["nums"], row["target"], "answer")
        assert countdown.verify(f"<think></think><answer>{row['answer']}</answer>", truth) == (True, True, ""), row
        assert not countdown.verify(f"<answer>{row['answer']} + 0</answer>", truth).correct


def test_real_solutions_are_wrong_for_every_other_target():
    for row in real_rows("countdown_3to4_first4000.jsonl")[:500]:
        off = grammar.verify_expression(row["answer"], row["nums"], row["target"] + 1)
        assert off == (False, True, "wrong-value")


# ------------------------------------------------------------------------------------------------ lines and truths


@pytest.mark.parametrize(
    ("response", "extra", "expected"),
    [
        ("12 / 3 * 7 - 4", {}, (True, True, "")),
        ("12 / 3 = 4 , 4 * 7 = 28 , 28 - 4 = 24", {}, (True, True, "")),
        ("Let me see. <answer> 12 / 3 * 7 - 4 </answer>", {}, (True, True, "")),
        ("12 / 3 * 7 - 4", {"format": "answer"}, (False, False, "no-answer")),
        ("12 / 3 * 7 - 4 = 24", {"format": "expression"}, (False, False, "equals-sign")),
        ("12 / 3 * 7 - 3", {"note": "fields that nobody asked for are ignored"}, (False, True, "wrong-numbers")),
    ],
)
def test_lines_to_grade(response, extra, expected):
    assert countdown.grade_line({"numbers": [12, 3, 7, 4], "target": 24, "response": response, **extra}) == expected


GOOD = {"numbers": [1, 2], "target": 3, "response": "1+2"}


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ({**GOOD, "numbers": []}, "'numbers'"),
        ({**GOOD, "numbers": [1, 2.0]}, "'numbers'"),
        ({**GOOD, "numbers": [1, True]}, "'numbers'"),
        ({**GOOD, "numbers": [1] * 17}, "'numbers'"),
        ({**GOOD, "target": "3"}, "'target'"),
        ({**GOOD, "target": float("nan")}, "'target'"),
        ({**GOOD, "response": None}, "'response'"),
        ({**GOOD, "format": "latex"}, "'format'"),
    ],
)
def test_malformed_lines_name_the_field(line, named):
    with pytest.raises(UserError, match=named) as raised:
        countdown.grade_line(line)
    assert len(str(raised.value)) < 300 and "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "truth",
    ["", "24", "{}", "[]", '{"numbers": [1], "target": 1}', '{"numbers": [1], "target": 1, "format": "python"}'],
)
def test_a_broken_ground_truth_is_an_error_and_no_verdict(truth):
    with pytest.raises(UserError, match="ground truth"):
        countdown.verify("1", truth)
