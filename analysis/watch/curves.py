"""What a run has recorded so far: its progress from the log, its curves from the tables of its last checkpoint."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analysis.watch.folder import content_of, modified
from bapo.errors import UserError
from bapo.store.files import PROBE, STEPS, SUMMARY, read_table

#: bytes of a log that are read, from its end
TAIL = 1 << 16
#: a line of bapo.store.progress.Progress
_LINE = re.compile(r": \w+ (\d+)/(\d+)(.*?), ([\d.]+) \w+/s, ([\d:]+) left")
_REWARD = re.compile(r"\breward (\d*\.?\d+)")


@dataclass(frozen=True)
class Logged:
    """What a job's log says. left: seconds that it gave when it wrote its last line; written: Unix time of that."""

    done: int = 0
    total: int = 0
    left: float | None = None
    written: float = 0.0
    rewards: tuple[float, ...] = ()
    last: str = ""


@dataclass(frozen=True)
class Curves:
    """rewards: mean reward by step; probe: accuracy on the probe prompts at the steps where they were asked;
    accuracy: on the benchmarks, after training."""

    rewards: tuple[float, ...] = ()
    probe: tuple[float, ...] = ()
    accuracy: float | None = None


class Reader:
    """Reads logs and tables again only where they have changed."""

    def __init__(self) -> None:
        self.kept: dict[tuple[str, Path], tuple[Any, Any]] = {}

    def logged(self, log: Path) -> Logged:
        return self._once("log", [log], lambda: _logged(log), Logged())

    def curves(self, run: Path) -> Curves:
        """Return the curves of a run; of a table that is damaged or half written, none."""
        files = [run / STEPS, run / PROBE, run / "eval" / SUMMARY]
        return self._once("run", files, lambda: _curves(*files), Curves())

    def _once(self, kind: str, files: Sequence[Path], read: Any, nothing: Any) -> Any:
        state = tuple((modified(path), path.stat().st_size if path.exists() else 0) for path in files)
        key = (kind, files[0])
        if key not in self.kept or self.kept[key][0] != state:
            try:
                found = read()
            except OSError:  # gone between two looks
                return nothing
            self.kept[key] = (state, found)
        return self.kept[key][1]


def _logged(log: Path) -> Logged:
    if not log.exists():
        return Logged()
    with open(log, "rb") as handle:
        handle.seek(max(0, log.stat().st_size - TAIL))
        text = handle.read().decode("utf-8", "replace")
    lines = [line.strip() for line in re.split(r"[\r\n]", text) if line.strip()]
    found = [match for match in map(_LINE.search, lines) if match]
    last = lines[-1] if lines else ""
    if not found:
        return Logged(last=last, written=modified(log))
    rewards = [float(match[1]) for match in (_REWARD.search(m[3]) for m in found) if match]
    seconds = sum(int(part) * 60**i for i, part in enumerate(reversed(found[-1][5].split(":"))) if part)
    done, total = int(found[-1][1]), int(found[-1][2])
    return Logged(done, total, float(seconds), modified(log), tuple(rewards), last)


def _curves(steps: Path, probe: Path, evaluated: Path) -> Curves:
    rewards: tuple[float, ...] = ()
    probed: tuple[float, ...] = ()
    frame = _table(steps, ["step", "reward_mean"])
    if frame is not None:
        rewards = tuple(v for v in frame["reward_mean"].astype(float) if math.isfinite(v))
    frame = _table(probe, ["step", "mean"])
    if frame is not None:
        probed = tuple(map(float, frame.groupby("step")["mean"].mean()))
    benchmarks = content_of(evaluated).get("benchmarks")
    values = [b.get("accuracy") for b in benchmarks.values()] if isinstance(benchmarks, dict) else []
    known = [float(v) for v in values if isinstance(v, (int, float))]
    return Curves(rewards, probed, sum(known) / len(known) if known else None)


def _table(path: Path, columns: list[str]) -> Any:
    """Return columns of a table; None where it cannot be read, or not yet."""
    try:
        return read_table(path, columns).dropna()
    except UserError:
        return None


def mean_curve(series: Sequence[Sequence[float]], bins: int) -> list[float]:
    """Return the mean of several series, each cut into ``bins`` parts; fewer where the longest has fewer values."""
    known = [s for s in series if s]
    if not known:
        return []
    width = min(bins, max(map(len, known)))
    parts: list[list[float]] = [[] for _ in range(width)]
    for s in known:
        for i in range(width):
            part = s[i * len(s) // width : max(i * len(s) // width + 1, (i + 1) * len(s) // width)]
            parts[i] += [sum(part) / len(part)]
    return [sum(p) / len(p) for p in parts]
