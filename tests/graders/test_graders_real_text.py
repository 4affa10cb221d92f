"""What SmolLM2-135M-Instruct wrote at temperature 1, with verdicts worked out by hand.

real_text.jsonl holds responses with their verdicts: for Countdown with the reason ("" is right), for the other tasks
with whether the answer is right, and whether there is one.
"""

from __future__ import annotations

import json
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
def test_countdown(row: dict) -> None:
    verdict = tasks.get("countdown").verify(row["response"], row["ground_truth"])
    assert verdict.reason == row["reason"]
    assert verdict.correct == (not row["reason"]) and verdict.parsed == (row["reason"] not in grammar.UNPARSED)


@pytest.mark.parametrize("row", BOXED, ids=shown)
def test_boxed_answers(row: dict) -> None:
    task = tasks.get(row["task"])
    verdict = task.verify(row["response"], row["ground_truth"])
    assert verdict.correct == row["right"]
    assert (verdict.reason != NO_ANSWER) == row["answered"]
