"""The paper's Tables 2 to 4, as data (``analysis/paper/table2.yaml`` to ``table4.yaml``)."""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path
from typing import Any

from analysis import paper

#: minutes of a printed day, hour and minute
UNITS = {"d": 24 * 60, "h": 60, "m": 1}


@lru_cache
def read(name: str) -> dict[str, Any]:
    """The content of ``analysis/paper/<name>.yaml``."""
    import yaml

    return yaml.safe_load((Path(paper.__file__).parent / f"{name}.yaml").read_text(encoding="utf-8"))


def minutes(printed: str) -> int:
    """ "1d 16h 58m" -> 2458. Raises ValueError for anything else."""
    if not re.fullmatch(r"(\d+[dhm] ?)+", printed):
        raise ValueError(f"not a time as the paper prints it: {printed!r}")
    return sum(int(number) * UNITS[unit] for number, unit in re.findall(r"(\d+)([dhm])", printed))


def times(task: str) -> dict[str, tuple[str, str, float | None]]:
    """Table 2 of a task: method -> (title, time as printed, its ratio to GRPO's); {} where the paper has none."""
    for entry in read("table2")["tasks"]:
        if entry["task"] == task:
            found = {row["method"]: minutes(row["time"]) for row in entry["rows"]}
            grpo = found.get("grpo")
            return {
                row["method"]: (row["title"], row["time"], found[row["method"]] / grpo if grpo else None)
                for row in entry["rows"]
            }
    return {}
