"""Countdown's verifiers against cases worked out by hand, real rows and responses made to fool a grader."""

import json
from pathlib import Path

import pytest
import yaml
from support.paths import needs_shared

from bapo import tasks
from bapo.errors import UserError
from bapo.tasks.countdown import grammar

countdown = tasks.get("countdown")
NUMBERS = (12, 3, 7, 4)  #: (12 / 3) * 7 - 4 is 24
CASES = yaml.safe_load(Path(__file__).with_name("countdown_verdicts.yaml").read_text(encoding="utf-8"))
RIGHT = (True, True, "")


def refused(reason: str) -> tuple[bool, bool, str]:
    """Return the verdict of a reason: an answer was read or not."""
    return (not reason, not reason or reason in grammar.WRONG, reason)


@pytest.mark.parametrize(
    ("form", "text", "reason", "problem"), [(form, *case[:2], case[2:]) for form in CASES for case in CASES[form]]
)
def test_a_verdict_is_the_one_worked_out_by_hand(form, text, reason, problem):
    numbers, target = problem or (NUMBERS, 24)
    assert grammar.VERIFIERS[form](text, numbers, target) == refused(reason)


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
