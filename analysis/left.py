"""The time that jobs still take, from what finished jobs like them took."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from bapo.errors import UserError
from bapo.store.files import MANIFEST, SUMMARY, read_json


class Times:
    """The seconds of finished jobs. A group names a job ever more closely: task, model, method."""

    def __init__(self) -> None:
        self._sums: dict[tuple[str, ...], tuple[float, int]] = {}

    def add(self, kind: str, group: Sequence[str], seconds: float) -> None:
        """Count a finished job."""
        for length in range(len(group) + 1):
            total, jobs = self._sums.get((kind, *group[:length]), (0.0, 0))
            self._sums[kind, *group[:length]] = total + seconds, jobs + 1

    def usual(self, kind: str, group: Sequence[str]) -> float | None:
        """Return the mean of the jobs alike: of the method, else of the model, else of the task, else of the kind."""
        for length in range(len(group), -1, -1):
            if found := self._sums.get((kind, *group[:length])):
                return found[0] / found[1]
        return None


@dataclass(frozen=True)
class Left:
    """seconds: until all is done with as many jobs at a time as run now; None: not known. unknown: jobs of a kind
    of which none is done yet, which are not in it."""

    seconds: float | None
    unknown: int


def left(running: Sequence[float | None], waiting: Mapping[tuple[str, tuple[str, ...]], int], times: Times) -> Left:
    """Return the time that is left. running: seconds of each job that runs; waiting: (kind, group) -> jobs."""
    each = [*running]
    for (kind, group), jobs in waiting.items():
        each += [times.usual(kind, group)] * jobs
    known = [seconds for seconds in each if seconds is not None]
    longest = max((s for s in running if s is not None), default=0.0)
    seconds = max(longest, sum(known) / max(1, len(running))) if known or not each else None
    return Left(seconds, len(each) - len(known))


def took(folder: Path) -> float | None:
    """Return the seconds that a finished job took: from start to end, else, where it was resumed, its own count."""
    manifest = content_of(folder / MANIFEST)
    with contextlib.suppress(TypeError, ValueError, KeyError):
        if not manifest.get("resumed"):
            ends = [datetime.fromisoformat(manifest[key]).timestamp() for key in ("started", "ended")]
            return max(1.0, ends[1] - ends[0])
    summary = content_of(folder / SUMMARY)
    seconds = (summary.get("totals") or summary).get("seconds")
    return float(seconds) if isinstance(seconds, int | float) else None


def content_of(path: Path) -> dict[str, Any]:
    """Return a JSON object; {} where there is none, or none yet."""
    with contextlib.suppress(OSError, UserError):
        content = read_json(path)
        if isinstance(content, dict):
            return content
    return {}
