"""The table of ``gpu-check``."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

FINE, WRONG, SKIPPED = "fine", "NOT", "-"


@dataclass(frozen=True)
class Row:
    """What was looked at, FINE, WRONG or SKIPPED, what was found, and the cure where it is wrong."""

    name: str
    state: str
    found: str
    cure: str = ""


def judged(name: str, ok: bool, found: str, cure: str) -> Row:
    return Row(name, FINE if ok else WRONG, found, "" if ok else cure)


def table(rows: Sequence[Row]) -> str:
    """Write the rows for people, the cures behind them."""
    width = max(len(row.name) for row in rows)
    lines = [f"{row.state:<5}{row.name:<{width}}  {row.found}" for row in rows]
    wrong = [row for row in rows if row.state == WRONG]
    for row in wrong:
        lines += ["", *textwrap.wrap(f"{row.name}: {row.cure}", 110)]
    told = f"{len(wrong)} of {len(rows)} are not fine" if wrong else "nothing that was looked at stands in a run's way"
    return "\n".join([*lines, "", f"gpu-check: {told}"]) + "\n"


def status(rows: Iterable[Row]) -> int:
    """Return the exit status: 0 where nothing is wrong."""
    return int(any(row.state == WRONG for row in rows))
