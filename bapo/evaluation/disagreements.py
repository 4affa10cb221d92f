"""Responses on which a task's two graders disagree, listed so that somebody can check who is right.

``<benchmark>_disagreements.jsonl`` holds one line a problem and different response, the first LISTED of them; the
summary says how many responses were compared and on how many the two differ. The first grader's verdict counts.
"""

from __future__ import annotations

import json
from collections import defaultdict
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
    places: dict[tuple[str, str], list[int]] = defaultdict(list)
    for place, pair in enumerate(zip(frame["problem_id"], frame["response"], strict=True)):
        places[pair].append(place)
    correct = frame["correct"].tolist()
    for (problem, response), same in places.items():
        second = task.second_opinion(response, truths[problem])
        if second is None:
            continue
        compared += len(same)
        if second.correct == correct[same[0]]:
            continue
        count += len(same)
        if len(rows) < LISTED:
            row = {"row": same[0], "times": len(same), "ground_truth": truths[problem]}
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
