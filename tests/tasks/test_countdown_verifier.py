"""Countdown's verifiers against cases worked out by hand, real rows and responses made to fool a grader."""

import json

import pytest
from support.paths import needs_shared

from bapo import tasks
from bapo.errors import UserError
from bapo.tasks.countdown import grammar

countdown = tasks.get("countdown")
NUMBERS = (12, 3, 7, 4)  #: (12 / 3) * 7 - 4 is 24
RIGHT = (True, True, "")


def refused(reason: str) -> tuple[bool, bool, str]:
    """Return the verdict of a reason: an answer was read or not."""
    return (not reason, not reason or reason in grammar.WRONG, reason)


@pytest.mark.parametrize(
    ("text", "numbers", "target"),
    [
        ("((12)/((3)))*7-(4)", NUMBERS, 24),
        ("(" * 16 + "12/3*7-4" + ")" * 16, NUMBERS, 24),
        ("8/(3-8/3)", (8, 3, 8, 3), 24),  # 3 - 8/3 = 1/3: exact only with fractions
        ("10 - 4 - 3", (3, 4, 10), 3),  # from the left: (10 - 4) - 3
        ("24 / 4 / 3", (24, 4, 3), 2),
        ("2 + 3 * 4", (2, 3, 4), 14),
        ("1 - 1 / 3 - 1 / 3 - 1 / 3", (1, 1, 1, 1, 3, 3, 3), 0),  # 0, not 5.6e-17
    ],
)
def test_expressions_that_are_right(text, numbers, target):
    assert grammar.verify_expression(text, numbers, target) == RIGHT


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("12 / 3 * 7 - 3", "wrong-numbers"),
        ("12 * 7 - 3", "wrong-numbers"),  # 4 is left over
        ("123 - 7 * 4", "wrong-numbers"),  # 12 and 3 glued together
        ("12 - 3 + 7 + 4", "wrong-value"),
        ("12 / (7 - 4 - 3)", "division-by-zero"),
        ("12 / (7 - 4 - 3", "syntax"),
        ("", "no-answer"),
        ("12 / 3 * 7 - 4 = 24", "equals-sign"),
        ("12 // 3 * 7 - 4", "syntax"),
        ("-4 + 12 / 3 * 7", "syntax"),
        ("012 / 3 * 7 - 4", "syntax"),
        ("(12)(3) + 7 * 4", "syntax"),
        ("１２ / 3 * 7 - 4", "bad-character"),  # noqa: RUF001
        ("12 / 3 * 7 - 4\0", "bad-character"),
        ("1000000 - 1 * 3", "too-many-digits"),
        ("(" * 17 + "24" + ")" * 17, "too-deep"),
    ],
)
def test_expressions_that_are_not(text, reason):
    assert grammar.verify_expression(text, NUMBERS, 24) == refused(reason)


def test_values_stay_exact_where_floats_are_not():
    # off by 1/999999: within the 1e-5 that graders with floats forgive
    text, numbers = "999999 * 999999 / 999999 + 1 / 999999", (999999, 999999, 999999, 1, 999999)
    assert grammar.verify_expression(text, numbers, 999999).reason == "wrong-value"


@pytest.mark.parametrize(
    "text",
    [
        "(" * 100_000 + "1" + ")" * 100_000,
        "1+" * 500_000,
        "9**" * 300_000 + "9",
        "1" + "/3" * 400_000,
        "x" * 1_000_000,
        "<answer>" * 60_000 + "</answer>" * 60_000,
        "<think>" * 100_000 + "</think>" * 50_000,
        "12 / 3 = 4 , " * 80_000,
        " " * 1_000_000,
    ],
    ids=lambda text: text[:12],
)
@pytest.mark.parametrize("form", grammar.VERIFIERS)
def test_large_hostile_texts_are_refused_by_their_length(text, form):
    """No expression or chain of more than the limit is read; searching for the tags passes over the text once."""
    for response in (text, f"<answer>{text}</answer>"):
        verdict = grammar.VERIFIERS[form](response, NUMBERS, 24)
        assert verdict in [refused(reason) for reason in ("too-long", "no-answer", "unfinished-thinking")]


@pytest.mark.parametrize(
    ("response", "reason"),
    [
        ("<think>12 / 3 is 4</think><answer>12 / 3 * 7 - 4</answer>", ""),
        ("12/3 = 4 ...</think> <answer>12 / 3 * 7 - 4</answer>", ""),  # <think> stands in the prompt
        ("<answer>1 + 1</answer> no: <answer>12 / 3 * 7 - 4</answer>", ""),
        ("<answer>12 / 3 * 7 - 4</answer> no: <answer>1 + 1</answer>", "wrong-numbers"),
        ("<think><answer>1 + 1</answer></think><answer>12 / 3 * 7 - 4</answer>", ""),
        ("<think>a</think><answer>12 / 3 * 7 - 4</answer><think>or <answer>1</answer>", ""),
        ("<answer>12 / 3 * 7 - 4</answer> or <answer>12 +", ""),  # cut off: the last complete one counts
        ("the form <answer> <answer>12 / 3 * 7 - 4</answer>", ""),
        ("<answer>12 / 3 * 7 - 4</answer></think>", "no-answer"),
        ("<answer>12 / 3 * 7 - 4</answer> Checking: 12 / 3 * 7 - 4 = 24", ""),
        ("<think><answer>12 / 3 * 7 - 4</answer>", "unfinished-thinking"),
        ("12 / 3 * 7 - 4", "no-answer"),
        ("<answer>$12 / 3 * 7 - 4$</answer>", "bad-character"),
    ],
)
def test_last_answer_outside_the_thinking_counts(response, reason):
    assert grammar.verify_answer(response, NUMBERS, 24) == refused(reason)


@pytest.mark.parametrize(
    ("text", "numbers", "target", "reason"),
    [
        ("12/3=4,4*7=28,28-4=24", (3, 4, 7, 12), 24, ""),
        ("  12/3 =4\n,4 *7= 28\t, 28 - 4 = 24 \n", NUMBERS, 24, ""),
        ("5 - 5 = 0 , 0 * 7 = 0 , 0 + 12 = 12", (5, 5, 7, 12), 12, ""),
        ("6 + 6 = 12 , 12 + 12 = 24", (6, 6, 12), 24, ""),  # one 12 is given, one is made
        ("12 / 3 = 4 , 4 * 7 = 28", NUMBERS, 28, "unused-numbers"),
        ("12 / 3 = 4 , 4 * 7 = 27 , 27 - 3 = 24", NUMBERS, 24, "wrong-step"),
        ("12 + 3 = 15 , 15 + 7 = 22 , 22 + 4 = 26", NUMBERS, 24, "wrong-value"),
        ("12 + 12 = 24", (12, 3), 24, "unavailable-number"),  # there is one 12
        ("12 / 3 = 4 , 12 + 7 = 19 , 19 + 4 = 23", NUMBERS, 23, "unavailable-number"),
        ("3 - 3 = 0 , 7 / 0 = 0", (3, 3, 7), 0, "division-by-zero"),
        ("7 / 2 = 3 , 3 + 9 = 12", (7, 2, 9), 12, "wrong-step"),
        ("  ", NUMBERS, 24, "no-answer"),
        ("12 / 3 = 4 , 4 * 7 = 28 , 28 - 4 =", NUMBERS, 24, "syntax"),
        ("3 - 7 = -4 , -4 + 12 = 8", NUMBERS, 24, "syntax"),
        ("12 / 3 = 4<eos>", NUMBERS, 24, "syntax"),
        ("1000000 - 1 = 999999", NUMBERS, 24, "syntax"),
    ],
)
def test_a_chain_is_right_where_every_step_is(text, numbers, target, reason):
    assert grammar.verify_chain(text, numbers, target) == refused(reason)


def test_stated_solutions_of_real_rows_are_right_for_their_target_alone():
    path = needs_shared("data", "countdown", "countdown_3to4_first4000.jsonl")
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(rows) == 4000
    for row in rows:
        truth = grammar.to_ground_truth(row["nums"], row["target"], "answer")
        assert countdown.verify(f"<think></think><answer>{row['answer']}</answer>", truth) == RIGHT, row
        assert not countdown.verify(f"<answer>{row['answer']} + 0</answer>", truth).correct
        off = grammar.verify_expression(row["answer"], row["nums"], row["target"] + 1)
        assert off == refused("wrong-value")


GOOD = {"numbers": [12, 3, 7, 4], "target": 24, "response": "<answer> 12 / 3 * 7 - 4 </answer>"}


def test_lines_to_grade():
    assert countdown.grade_line({**GOOD, "note": "fields that nobody asked for are ignored"}) == RIGHT
    assert countdown.grade_line({**GOOD, "response": "12 / 3 * 7 - 4"}) == refused("no-answer")
    assert countdown.grade_line({**GOOD, "response": "12 / 3 * 7 - 4", "format": "expression"}) == RIGHT


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("numbers", ([], [1, 2.0], [1, True], [1] * 17, "1 2", None)),
        ("target", ("3", -1, 10**6, None)),
        ("response", (None, 5)),
        ("format", ("latex", None)),
    ],
)
def test_malformed_lines_name_the_field(field, values):
    for value in values:
        with pytest.raises(UserError, match=field):
            countdown.grade_line({**GOOD, field: value})
