"""The times that the paper prints in Table 2 (``analysis/paper/table2.yaml``)."""

from __future__ import annotations

import re

from analysis import paper

#: minutes of a printed day, hour and minute
UNITS = {"d": 24 * 60, "h": 60, "m": 1}


def minutes(printed: str) -> int:
    """ "1d 16h 58m" -> 2458. Raises ValueError for anything else."""
    if not re.fullmatch(r"(\d+[dhm] ?)+", printed):
        raise ValueError(f"not a time as the paper prints it: {printed!r}")
    return sum(int(number) * UNITS[unit] for number, unit in re.findall(r"(\d+)([dhm])", printed))


def times(task: str) -> dict[str, tuple[str, str, float | None]]:
    """Table 2 of a task: method -> (title, time as printed, its ratio to GRPO's); {} where the paper has none."""
    for entry in paper.read("table2")["tasks"]:
        if entry["task"] == task:
            printed = {row["method"]: minutes(row["time"]) for row in entry["rows"]}
            grpo = printed.get("grpo")
            return {
                row["method"]: (row["title"], row["time"], printed[row["method"]] / grpo if grpo else None)
                for row in entry["rows"]
            }
    return {}
