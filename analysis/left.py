"""The time that jobs still take, from what finished jobs like them took."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from analysis import text


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
    at_once: int
    unknown: int


def left(running: Sequence[float | None], waiting: Mapping[tuple[str, tuple[str, ...]], int], times: Times) -> Left:
    """Return the time that is left. running: seconds of each job that runs; waiting: (kind, group) -> jobs."""
    each = [*running]
    for (kind, group), jobs in waiting.items():
        each += [times.usual(kind, group)] * jobs
    known = [seconds for seconds in each if seconds is not None]
    at_once = max(1, len(running))
    if not each:
        return Left(0.0, at_once, 0)
    longest = max((s for s in running if s is not None), default=0.0)
    seconds = max(longest, sum(known) / at_once) if known else None
    return Left(seconds, at_once, len(each) - len(known))


def duration(seconds: float) -> str:
    """95 -> "1 min 35 s", 7500 -> "2 h 05 min", 200000 -> "2 d 7 h"."""
    whole = round(max(0.0, seconds))
    if whole < 60:
        return f"{whole} s"
    hours = whole // 3600
    return text.minutes(whole) if hours < 48 else f"{hours // 24} d {hours % 24} h"
