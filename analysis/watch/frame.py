"""A moment of a results folder: counts, what runs, every method's curve, and the time left."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from analysis import text
from analysis.left import Left, Times, duration, left
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
    times = _times(jobs)
    running = {job.log: _left(job, logs[job.log], times, now) for job in jobs if job.state == RUNNING}
    waiting = Counter((job.kind, job.group) for job in jobs if job.state in (WAITING, STOPPED))
    active = [_active(job, logs[job.log], running.get(job.log), reader) for job in jobs if job.log in logs]
    active.sort(key=lambda a: a.state != RUNNING)
    counted = {kind: counts[kind] for kind in KINDS if kind in counts}
    return Frame(
        place.resolve().name,
        now,
        counted,
        tuple(active),
        _groups(jobs, reader),
        left([*running.values()], waiting, times),
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


def _times(jobs: Sequence[Job]) -> Times:
    times = Times()
    for job in jobs:
        if job.state == DONE and job.seconds is not None:
            times.add(job.kind, job.group, job.seconds)
    return times


def _left(job: Job, logged: Logged, times: Times, now: float) -> float | None:
    """Return the seconds that a running job still takes: by its own log, else by what jobs like it took."""
    if logged.left is not None and logged.written >= (job.begun or 0.0) - 1.0:
        return max(0.0, logged.left - (now - logged.written))
    expected = times.usual(job.kind, job.group)
    return None if expected is None else max(0.0, expected - (now - (job.begun or now)))


# ------------------------------------------------------------------------------------------------ in words


def time_left(frame: Frame) -> str:
    """Say how long it will take, and what that rests on."""
    rest, running = frame.left, frame.having(RUNNING)
    if frame.finished:
        return "all jobs of its studies are done"
    if not frame.jobs:
        return "no study has been asked for yet"
    if rest.seconds is None:
        return "time left: not known before the first job of a kind is done"
    how = f"with {rest.at_once} at a time" if running else "of work, one job at a time; nothing runs now"
    jobs = f"{rest.unknown} job{'s' * (rest.unknown > 1)}"
    more = f", not counting {jobs} whose kind has not finished once" if rest.unknown else ""
    return f"about {duration(rest.seconds)} left {how}{more}" if running else f"{duration(rest.seconds)} {how}{more}"


def plain(words: str) -> str:
    """Return text of a file without what a terminal would obey."""
    return re.sub(r"[\x00-\x1f\x7f-\x9f]", " ", words)


def percent(share: float | None) -> str:
    return text.MISSING if share is None or not math.isfinite(share) else f"{100 * share:.1f}"
