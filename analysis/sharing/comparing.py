"""Two results side by side: every number that both have, and whether they agree within their intervals.

Accuracies are paired by task, model, method and benchmark, on the same problems where both were evaluated on these.
Seeds of the two sides are independent: the same seed on another machine is another run. With two or more seeds on each
side the interval of the difference covers new problems and new training seeds; else it compares these trained models.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from analysis import reading, results, statistics
from analysis.claims.view import finished, pruned
from analysis.report.provenance import flatten
from analysis.results import AVERAGE, Result
from analysis.sharing import checking
from analysis.sharing.crate import SUMS
from analysis.sharing.places import METADATA, homes, study_of
from analysis.statistics import Estimate
from analysis.study import Study
from bapo.errors import UserError
from bapo.store.files import read_json

IDENTICAL, AGREES, DIFFERS, NO_INTERVAL = "identical", "agrees", "differs", "no interval"
ONLY = ("only in A", "only in B")
STATES = (IDENTICAL, AGREES, DIFFERS, NO_INTERVAL, *ONLY)
#: totals of a run that are numbers of the method and not of the machine
COSTS = ("rollouts", "updates")
#: keys of a configuration that do not say what a run means
PLACES = ("seed", "paths.", "tracking.", "device", "hardware.")


@dataclass(frozen=True)
class Number:
    """One number of one side. values: what two sides are paired by, [S, n] of each benchmark or [S]; problems: ids."""

    estimate: Estimate
    seeds: int
    fixed: bool
    values: tuple[np.ndarray, ...]
    problems: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True)
class Line:
    """One number of both. difference: A minus B; paired: on the same problems; p: that it is 0; adjusted: Holm's.

    configuration: what differs between the two sides' configurations, as dotted keys.
    """

    task: str
    model: str
    method: str
    column: str
    a: Number | None
    b: Number | None
    state: str
    difference: Estimate | None = None
    paired: bool = False
    p: float = float("nan")
    adjusted: float = float("nan")
    configuration: tuple[str, ...] = ()

    @property
    def is_cost(self) -> bool:
        return self.column in COSTS

    @property
    def several_seeds(self) -> bool:
        return all(n is None or n.fixed or n.seeds > 1 for n in (self.a, self.b))


@dataclass(frozen=True)
class Comparison:
    """verdicts: claims whose verdict is not the same, (claim, task, model) -> (A's, B's).

    faults: of each side that is a crate, what is not as it was packed.
    """

    lines: list[Line]
    scales: tuple[str, str]
    verdicts: dict[tuple[str, str, str], tuple[str, str]] = field(default_factory=dict)
    faults: tuple[list[str], list[str]] = ([], [])

    @property
    def agree(self) -> bool:
        return not any(line.state == DIFFERS for line in self.lines)


def compare(a: Path, b: Path, strict: bool = False) -> Comparison:
    """Compare two opened results. strict: each number at 5%, without Holm's correction for their number.

    Raises UserError where they have no number in common.
    """
    sides = [_numbers(folder) for folder in (a, b)]
    settings = [_configurations(folder) for folder in (a, b)]
    keys = list(dict.fromkeys([*sides[0], *sides[1]]))
    if not set(sides[0]) & set(sides[1]):
        shown = [", ".join(sorted({"/".join(k[:3]) for k in side})[:4]) or "nothing finished" for side in sides]
        raise UserError(f"no number in common: {a} has {shown[0]}; {b} has {shown[1]}")
    lines = [_line(key, sides[0].get(key), sides[1].get(key), settings) for key in keys]
    tested = [i for i, line in enumerate(lines) if np.isfinite(line.p)]
    for i, adjusted in zip(tested, statistics.holm([lines[i].p for i in tested]), strict=True):
        line = replace(lines[i], adjusted=float(adjusted))
        if line.state == AGREES and (line.p if strict else line.adjusted) < results.LEVEL:
            line = replace(line, state=DIFFERS)
        lines[i] = line
    scales = tuple(", ".join(dict.fromkeys(study_of(h).scale for h in homes(f))) for f in (a, b))
    return Comparison(lines, scales, _verdicts(a, b), (_faults(a), _faults(b)))


def _faults(folder: Path) -> list[str]:
    is_crate = any((folder / name).is_file() for name in (METADATA, SUMS))
    try:
        return checking.problems(folder) if is_crate else []
    except UserError as error:
        return [str(error)]


def _line(key: tuple[str, str, str, str], a: Number | None, b: Number | None, settings: list[dict]) -> Line:
    differ = _differing(*(side.get(key[:3]) for side in settings))
    if a is None or b is None:
        return Line(*key, a, b, ONLY[a is None], configuration=differ)
    same = [x.shape == y.shape and np.array_equal(x, y) for x, y in zip(a.values, b.values, strict=False)]
    paired = bool(a.problems) and a.problems == b.problems
    if all(same) and len(a.values) == len(b.values) and a.problems == b.problems:
        zero = Estimate(0.0, 0.0, a.estimate.df)
        return Line(*key, a, b, IDENTICAL, zero, paired, configuration=differ)
    if paired:
        difference = statistics.difference_over_seeds(a.values, b.values, (a.fixed, b.fixed)).tested
    else:
        difference = statistics.independent_difference(a.estimate, b.estimate)
    p = difference.p
    state = AGREES if np.isfinite(p) else NO_INTERVAL
    return Line(*key, a, b, state, difference, paired, p, configuration=differ)


# ------------------------------------------------------------------------------------------------ one side


def _numbers(folder: Path) -> dict[tuple[str, str, str, str], Number]:
    """Return every number of the finished and evaluated runs, by (task, model, method, column)."""
    found: dict[tuple[str, str, str, str], Number] = {}
    for home in homes(folder):
        study = study_of(home)
        for block in study.blocks:
            kept = pruned(block, evaluated=True)
            kept = replace(kept, base=kept.base if kept.base and finished(kept.base, True) else None)
            if not (kept.base or kept.methods):
                continue
            for row in results.collect(kept, study):
                place = (block.task, block.model, row.method)
                for name, _ in results.columns(kept):
                    found[(*place, name)] = _accuracy(row, name)
                for name, number in () if row.is_base else _costs(kept.methods[row.method], study):
                    found[(*place, name)] = number
    return found


def _accuracy(row: Result, column: str) -> Number:
    outcomes = [o.problems for name, o in row.outcomes.items() if column in (name, AVERAGE)]
    values = tuple(row.column(column))
    mean = row.mean(column)
    return Number(mean.problems if row.is_base else mean.tested, len(row.seeds), row.is_base, values, tuple(outcomes))


def _costs(cells: tuple[Any, ...], study: Study) -> Iterator[tuple[str, Number]]:
    totals = [reading.summary(c.run, study).get("totals", {}) for c in cells]
    for name in COSTS:
        if all(isinstance(t.get(name), (int, float)) for t in totals):
            values = np.array([float(t[name]) for t in totals])
            yield name, Number(statistics.clustered(values), len(values), False, (values,))


def _configurations(folder: Path) -> dict[tuple[str, str, str], dict[str, str]]:
    """Return the flat configuration of the first run of every (task, model, method), without what names a place."""
    found = {}
    for home in homes(folder):
        study = study_of(home)
        for block in study.blocks:
            for method, cells in block.methods.items():
                content = reading.config(cells[0], study)
                flat = flatten(content) if isinstance(content, Mapping) else {}
                found[(block.task, block.model, method)] = {k: v for k, v in flat.items() if not k.startswith(PLACES)}
    return found


def _differing(a: Mapping[str, str] | None, b: Mapping[str, str] | None) -> tuple[str, ...]:
    if a is None or b is None:
        return ()
    return tuple(sorted(k for k in {*a, *b} if a.get(k) != b.get(k)))


def _verdicts(a: Path, b: Path) -> dict[tuple[str, str, str], tuple[str, str]]:
    """Return the claims of the ledgers of both whose verdicts differ."""
    sides = []
    for folder in (a, b):
        files = [home / "claims.json" for home in homes(folder)]
        lines = [line for f in files if f.exists() for line in read_json(f).get("claims", [])]
        sides.append({(c["id"], c.get("task", ""), c.get("model", "")): c.get("verdict", "") for c in lines})
    both = [key for key in sides[0] if key in sides[1]]
    return {key: (sides[0][key], sides[1][key]) for key in both if sides[0][key] != sides[1][key]}
