"""What SmolLM2-135M-Instruct wrote at temperature 1, with verdicts worked out by hand.

real_text.jsonl holds responses with their verdicts: for Countdown with the reasons of the strict and
of the lenient grading ("" is right), for the other tasks with whether the answer is right, and whether there is one.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from bapo import tasks
from bapo.graders.verdict import NO_ANSWER
from bapo.tasks.countdown import grammar

ROWS = [json.loads(line) for line in Path(__file__).with_name("real_text.jsonl").read_text("utf-8").splitlines()]
COUNTDOWN = [row for row in ROWS if row["task"] == "countdown"]
BOXED = [row for row in ROWS if row["task"] != "countdown"]


def shown(row: dict) -> str:
    return row["response"][-40:]


@pytest.mark.parametrize("row", COUNTDOWN, ids=shown)
@pytest.mark.parametrize("grading", grammar.GRADINGS)
def test_countdown(row: dict, grading: str) -> None:
    truth = grammar.from_ground_truth(row["ground_truth"])._replace(grading=grading)
    verdict = truth.verify(row["response"])
    assert verdict.reason == row[grading]
    assert verdict.correct == (not row[grading]) and verdict.parsed == (row[grading] not in grammar.UNPARSED)


@pytest.mark.parametrize("row", BOXED, ids=shown)
def test_boxed_answers(row: dict) -> None:
    task = tasks.get(row["task"])
    verdict = task.verify(row["response"], row["ground_truth"])
    assert verdict.correct == row["right"]
    assert (verdict.reason != NO_ANSWER) == row["answered"]


def test_the_rows_are_of_many_kinds() -> None:
    assert {row["lenient"] for row in COUNTDOWN} >= {"", "wrong-equation", "wrong-value", "wrong-numbers", "no-answer"}
    newly = Counter(row["lenient"] in grammar.WRONG for row in COUNTDOWN if row["strict"] in grammar.UNPARSED)
    assert newly[True] > 10 and newly[False] > 10
