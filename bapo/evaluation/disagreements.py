"""Responses on which a task's two graders disagree, listed so that somebody can check who is right.

``<benchmark>_disagreements.jsonl`` holds one line a problem and different response, the first LISTED of them; the
summary says how many responses were compared and on how many the two differ. The first grader's verdict counts.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bapo.store.files import write_text
from bapo.tasks.base import Task

if TYPE_CHECKING:
    import pandas as pd

LISTED = 1000


def file_name(benchmark: str) -> str:
    return f"{benchmark}_disagreements.jsonl"


def find(task: Task, truths: Mapping[str, str], frame: pd.DataFrame) -> dict[str, Any] | None:
    """Return {"compared", "count", "rows"} of a table of responses; None if the task has no second grader.

    truths: problem id -> ground truth. compared and count are responses; rows, at most LISTED, hold the place of the
    first such response in the table, how often it was given, the ground truth and the second verdict.
    """
    if type(task).second_opinion is Task.second_opinion:
        return None
    compared = count = 0
    rows: list[dict[str, Any]] = []
    pairs = list(zip(frame["problem_id"], frame["response"], strict=True))
    first = {pair: place for place, pair in reversed([*enumerate(pairs)])}
    correct = frame["correct"].tolist()
    for (problem, response), times in Counter(pairs).items():
        second = task.second_opinion(response, truths[problem])
        if second is None:
            continue
        compared += times
        place = first[problem, response]
        if second.correct == bool(correct[place]):
            continue
        count += times
        if len(rows) < LISTED:
            row = {"row": place, "times": times, "ground_truth": truths[problem]}
            rows.append({**row, "second": [second.correct, second.parsed, second.reason]})
    return {"compared": compared, "count": count, "rows": rows} if compared else None


def write(folder: Path, benchmark: str, disagreements: Mapping[str, Any], frame: pd.DataFrame) -> None:
    """Write what :func:`find` returned for a table."""
    lines = []
    for entry in disagreements["rows"]:
        row = frame.iloc[entry["row"]]
        line = {
            "problem_id": row["problem_id"],
            "sample": int(row["sample"]),
            "times": entry["times"],
            "ground_truth": entry["ground_truth"],
            "first": [bool(row["correct"]), bool(row["parsed"]), row["reason"]],
            "second": entry["second"],
            "response": row["response"],
        }
        lines.append(json.dumps(line, ensure_ascii=False) + "\n")
    write_text(folder / file_name(benchmark), "".join(lines))
