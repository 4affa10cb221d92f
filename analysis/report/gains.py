"""What each method of a study gained, and what it cost: the numbers of the page's findings, from the finished tables.

Differences are of the average over a task's benchmarks, in points: those of ``table1_differences.csv``, or of another
study's ``comparison_STUDY.csv``. One counts as significant where it is so after that table's
correction and every trained side has two seeds or more.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from analysis import text
from analysis.products import MAIN, compared_file
from analysis.results import AVERAGE, BASE, LEVEL
from analysis.study import StudyFile, plain
from bapo.errors import UserError

#: totals of a run that are compared -> their words
COSTS = {"rollouts": "rollouts", "seconds": "time"}


@dataclass(frozen=True)
class Gain:
    """A difference in points with its 95% interval.

    significant: see above; seeds: whether each trained side has several.
    """

    points: float
    low: float
    high: float
    significant: bool
    seeds: bool

    @property
    def side(self) -> str:
        return "open" if not self.significant else "above" if self.points > 0 else "below"

    def __str__(self) -> str:
        if not (math.isfinite(self.low) and math.isfinite(self.high)):
            return f"{text.signed(self.points)} (no interval)"
        return f"{text.signed(self.points)} ({text.signed(self.low)} to {text.signed(self.high)})"


@dataclass(frozen=True)
class Row:
    """One method. accuracy: percent; costs: of a run relative to the reference's, by key of COSTS; NaN: not known."""

    method: str
    title: str
    seeds: int
    accuracy: float
    over_base: Gain | None
    over_reference: Gain | None
    costs: Mapping[str, float]


@dataclass(frozen=True)
class Panel:
    """One task and model. reference: title of the method that the others are compared with; "" where it was not run."""

    title: str
    rows: tuple[Row, ...]
    reference: str


Line = Mapping[str, str]
Key = tuple[str, str, str]  # task, model, method


def table_of(study: StudyFile, tables: Path) -> Path | None:
    """Return the table of a study's averages; None where it has not been made."""
    path = tables / f"{MAIN if study.name == MAIN else compared_file(study.name)}.csv"
    return path if path.is_file() else None


def panels(study: StudyFile, table: Path) -> list[Panel]:
    """Return the tasks and models of a study's table. Raises UserError where it is not such a table."""
    try:
        averages = [line for line in _read(table) if line["benchmark"] == AVERAGE]
        lines = [line for line in averages if line["mean"]]  # rows that pool several base models have none
        by_key = {_key(line): line for line in lines}
        differences = table.with_name(f"{table.stem}_differences.csv")
        if differences.is_file():
            pairs = {(*_key(line, "a"), line["b"]): line for line in _read(differences) if line["benchmark"] == AVERAGE}
            over = _of_pairs(by_key, pairs, study.reference)
        else:
            over = _of_comparison(by_key, study.reference)
        return [_panel(study, place, by_key, over) for place in dict.fromkeys(key[:2] for key in by_key)]
    except (KeyError, ValueError) as error:
        raise UserError(f"{table}: cannot be read ({error!r}); delete it and make it again") from None


def _read(path: Path) -> list[Line]:
    try:
        return list(csv.DictReader(io.StringIO(path.read_text(encoding="utf-8"))))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{path} is damaged ({error}); delete it and make it again") from None


def _key(line: Line, method: str = "method") -> Key:
    return line["task"], line["model"], line[method]


def _number(value: str | None) -> float:
    return float(value) if value else math.nan


#: (over the base, over the reference) of a method
Differences = Mapping[Key, tuple[Gain | None, Gain | None]]


def _of_pairs(lines: Mapping[Key, Line], pairs: Mapping[tuple[str, ...], Line], reference: str) -> Differences:
    """Read the differences of Table 1, which holds each pair of rows once, whichever comes first."""

    def gain(key: Key, other: str) -> Gain | None:
        task, model, method = key
        for first, second, sign in ((method, other, 1), (other, method, -1)):
            line = pairs.get((task, model, first, second))
            if line is not None:
                seeds = math.isfinite(_number(line["se_problems_and_seeds"]))
                suffix = "problems_and_seeds" if seeds else "problems"
                ends = sorted(sign * _number(line[f"{end}_{suffix}"]) for end in ("low", "high"))
                return Gain(sign * _number(line["difference"]), *ends, line["real"] == "True", seeds)
        return None

    return {key: (gain(key, BASE), gain(key, reference)) for key in lines}


def _of_comparison(lines: Mapping[Key, Line], reference: str) -> Differences:
    """Read the differences of a comparison, which stand in the rows themselves."""

    def gain(line: Line, name: str, seeds: int) -> Gain | None:
        if not math.isfinite(_number(line.get(name))):
            return None
        p = _number(line[f"{name}_p_holm" if name != "difference" else "p_holm"])
        ends = (_number(line[f"{name}_{end}"]) for end in ("low", "high"))
        return Gain(_number(line[name]), *ends, seeds > 1 and p < LEVEL, seeds > 1)

    found = {}
    for key, line in lines.items():
        own = int(_number(line["seeds"]))
        first = lines.get((*key[:2], reference))
        paired = _number(line.get("paired_seeds"))
        both = paired if paired > 0 else min(own, int(_number(first["seeds"])) if first else 0)
        found[key] = (gain(line, "over_base", own), gain(line, "difference", int(both)))
    return found


def _panel(study: StudyFile, place: tuple[str, str], lines: Mapping[Key, Line], over: Differences) -> Panel:
    own = {key: line for key, line in lines.items() if key[:2] == place and key[2] != BASE}
    cells = [c for c in study.cells if (c.task, c.model) == place]
    task = next((c.task_title for c in cells if c.task_title), place[0])
    model = next((c.model_title for c in cells if c.model_title), place[1])
    several = len({key[1] for key in lines if key[0] == place[0]}) > 1
    first = own.get((*place, study.reference))
    rows = tuple(
        Row(
            key[2],
            _title(line),
            int(_number(line["seeds"])),
            _number(line["mean"]),
            *over[key],
            {cost: _ratio(line, first, cost) for cost in COSTS},
        )
        for key, line in own.items()
    )
    return Panel(f"{task}, {model}" if several else task, rows, _title(first) if first else "")


def _title(line: Line) -> str:
    """Return the plain title of a line's method."""
    return plain(line.get("method_title") or line.get("title") or line["method"])


def _ratio(line: Line, reference: Line | None, key: str) -> float:
    own, other = _number(line.get(key)), _number(reference.get(key)) if reference else math.nan
    return own / other if own > 0 and other > 0 else math.nan
