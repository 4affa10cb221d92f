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


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["response"][-40:])
def test_a_real_response_has_the_verdict_worked_out_by_hand(row: dict) -> None:
    verdict = tasks.get(row["task"]).verify(row["response"], row["ground_truth"])
    if row["task"] == "countdown":
        assert verdict == (not row["reason"], row["reason"] not in grammar.UNPARSED, row["reason"])
    else:
        assert (verdict.correct, verdict.reason != NO_ANSWER) == (row["right"], row["answered"])
