"""A moment of a results folder: counts, what runs, every method's curve, and the time left."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from analysis import text
from analysis.watch import folder
from analysis.watch.curves import Curves, Logged, Reader, mean_curve
from analysis.watch.folder import DONE, KINDS, RUNNING, STOPPED, WAITING, Job

#: points of a curve as it is shown
BINS = 24


@dataclass(frozen=True)
class Active:
    """A job that runs, or has stopped before its end. share: of its steps; left: seconds; said: its log's last line."""

    title: str
    kind: str
    state: str
    done: int
    total: int
    left: float | None
    curve: tuple[float, ...]
    said: str

    @property
    def share(self) -> float | None:
        return min(1.0, self.done / self.total) if self.total else None


@dataclass(frozen=True)
class Group:
    """All seeds of a method on one task and model.

    asked: how many are to be evaluated; curve: mean reward so far; probe: first and last accuracy on the probe; top:
    the largest reward of any curve of the task, for a common scale.
    """

    task: str
    method: str
    runs: int
    done: int
    running: int
    evaluated: int
    asked: int
    curve: tuple[float, ...]
    probe: tuple[float, float] | None
    accuracy: float | None
    top: float = 1.0


@dataclass(frozen=True)
class Left:
    """seconds: until all is done with as many jobs at a time as run now; None: not known. unknown: jobs of a kind
    of which none is done yet, which are not in it."""

    seconds: float | None
    at_once: int
    unknown: int


@dataclass(frozen=True)
class Frame:
    """counts: kind -> state -> jobs."""

    name: str
    time: float
    counts: dict[str, dict[str, int]]
    active: tuple[Active, ...]
    groups: tuple[Group, ...]
    left: Left
    problems: tuple[str, ...]
    sweeps: tuple[str, ...] = ()

    @property
    def jobs(self) -> int:
        return sum(sum(states.values()) for states in self.counts.values())

    def having(self, state: str) -> int:
        return sum(states.get(state, 0) for states in self.counts.values())

    @property
    def finished(self) -> bool:
        return self.jobs > 0 and self.having(DONE) == self.jobs


def look(place: Path, reader: Reader, now: float) -> Frame:
    """Read the folder once. now: Unix time. Raises UserError where it is no scale's results."""
    found, problems = folder.studies(place)
    jobs = folder.jobs(place, found, now)
    counts: dict[str, dict[str, int]] = {}
    for job in jobs:
        states = counts.setdefault(job.kind, dict.fromkeys((DONE, RUNNING, STOPPED, WAITING), 0))
        states[job.state] += 1
    logs = {job.log: reader.logged(job.log) for job in jobs if job.state in (RUNNING, STOPPED)}
    left = {job.log: _left(job, logs[job.log], jobs, now) for job in jobs if job.state == RUNNING}
    active = [_active(job, logs[job.log], left.get(job.log), reader) for job in jobs if job.log in logs]
    active.sort(key=lambda a: a.state != RUNNING)
    counted = {kind: counts[kind] for kind in KINDS if kind in counts}
    return Frame(
        place.resolve().name,
        now,
        counted,
        tuple(active),
        _groups(jobs, reader),
        _all_left(jobs, left),
        tuple(problems),
        tuple(map(plain, folder.sweeps(place))),
    )


def _active(job: Job, logged: Logged, left: float | None, reader: Reader) -> Active:
    curve = reader.curves(job.folder).rewards if job.kind == "train" else ()
    if logged.total and len(curve) * 10 < logged.done:  # the tables are those of the last checkpoint
        curve = logged.rewards
    seed = f", seed {job.seed}" if job.kind in ("train", "evaluate", "curve") and job.method != "base" else ""
    said = plain(logged.last) if job.state == STOPPED else ""
    points = tuple(mean_curve([curve], BINS))
    return Active(plain(job.title + seed), job.kind, job.state, logged.done, logged.total, left, points, said)


def _groups(jobs: Sequence[Job], reader: Reader) -> tuple[Group, ...]:
    trained: dict[tuple[str, str, str], list[Job]] = {}
    for job in jobs:
        if job.kind == "train":
            trained.setdefault(job.group, []).append(job)
    evaluations = {job.folder.parent: job.state for job in jobs if job.kind == "evaluate"}
    groups = []
    for runs in trained.values():
        curves = [reader.curves(job.folder) for job in runs if job.state != WAITING]
        task, model, method = map(plain, runs[0].titles)
        groups.append(
            Group(
                f"{task}, {model}",
                method,
                len(runs),
                sum(job.state == DONE for job in runs),
                sum(job.state == RUNNING for job in runs),
                sum(evaluations.get(job.folder) == DONE for job in runs),
                sum(job.folder in evaluations for job in runs),
                tuple(mean_curve([c.rewards for c in curves], BINS)),
                _probe(curves),
                _mean([c.accuracy for c in curves if c.accuracy is not None]),
            )
        )
    tops = {g.task: max((max(o.curve) for o in groups if o.task == g.task and o.curve), default=1.0) for g in groups}
    return tuple(replace(g, top=tops[g.task] or 1.0) for g in groups)


def _probe(curves: Sequence[Curves]) -> tuple[float, float] | None:
    ends = [(c.probe[0], c.probe[-1]) for c in curves if c.probe]
    return (sum(a for a, _ in ends) / len(ends), sum(b for _, b in ends) / len(ends)) if ends else None


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


# ------------------------------------------------------------------------------------------------ time


def usual(job: Job, jobs: Sequence[Job]) -> float | None:
    """Return what jobs like this one took: of its method, else of its model, else of its task, else of its kind."""
    done = [j for j in jobs if j.kind == job.kind and j.seconds is not None and j.state == DONE]
    for length in (3, 2, 1, 0):
        alike = [j.seconds for j in done if j.group[:length] == job.group[:length]]
        if alike:
            return sum(alike) / len(alike)
    return None


def _left(job: Job, logged: Logged, jobs: Sequence[Job], now: float) -> float | None:
    """Return the seconds that a running job still takes: by its own log, else by what jobs like it took."""
    if logged.left is not None and logged.written >= (job.begun or 0.0) - 1.0:
        return max(0.0, logged.left - (now - logged.written))
    expected = usual(job, jobs)
    return None if expected is None else max(0.0, expected - (now - (job.begun or now)))


def _all_left(jobs: Sequence[Job], running: dict[Path, float | None]) -> Left:
    waiting = [job for job in jobs if job.state in (WAITING, STOPPED)]
    kept: dict[tuple[str, tuple[str, str, str]], float | None] = {}
    for job in waiting:
        if (job.kind, job.group) not in kept:
            kept[job.kind, job.group] = usual(job, jobs)
    each = [*running.values(), *(kept[job.kind, job.group] for job in waiting)]
    known = [seconds for seconds in each if seconds is not None]
    at_once = max(1, len(running))
    if not each:
        return Left(0.0, at_once, 0)
    longest = max((s for s in running.values() if s is not None), default=0.0)
    seconds = max(longest, sum(known) / at_once) if known else None
    return Left(seconds, at_once, len(each) - len(known))


# ------------------------------------------------------------------------------------------------ in words


def duration(seconds: float) -> str:
    """95 -> "1 min 35 s", 7500 -> "2 h 05 min", 200000 -> "2 d 7 h"."""
    whole = round(max(0.0, seconds))
    if whole < 60:
        return f"{whole} s"
    hours = whole // 3600
    return text.minutes(whole) if hours < 48 else f"{hours // 24} d {hours % 24} h"


def time_left(frame: Frame) -> str:
    """Say how long it will take, and what that rests on."""
    left, running = frame.left, frame.having(RUNNING)
    if frame.finished:
        return "all jobs of its studies are done"
    if not frame.jobs:
        return "no study has been asked for yet"
    if left.seconds is None:
        return "time left: not known before the first job of a kind is done"
    how = f"with {left.at_once} at a time" if running else "of work, one job at a time; nothing runs now"
    jobs = f"{left.unknown} job{'s' * (left.unknown > 1)}"
    more = f", not counting {jobs} whose kind has not finished once" if left.unknown else ""
    return f"about {duration(left.seconds)} left {how}{more}" if running else f"{duration(left.seconds)} {how}{more}"


def plain(words: str) -> str:
    """Return text of a file without what a terminal would obey."""
    return re.sub(r"[\x00-\x1f\x7f-\x9f]", " ", words)


def percent(share: float | None) -> str:
    return text.MISSING if share is None or not math.isfinite(share) else f"{100 * share:.1f}"
