"""What a paper's published numbers say about themselves, by arithmetic alone: ``bapo audit``.

Nothing is known beforehand: each check computes from a table as it is printed (``analysis/paper/table1.yaml``) and from
the paper's statements about it (``analysis/paper/setup.yaml``).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path
from statistics import fmean
from typing import Any

from analysis.paper import AVERAGE, BORROWED, COSTS, FOLDER, PROPOSED, PrintedCell, Published
from bapo import validate
from bapo.algorithm import theory
from bapo.store.files import write_text

TEXTS = FOLDER.parent / "templates" / "audit.yaml"
#: the numbers of runs a problem that are tried for each column
RUNS = range(1, 65)
#: a grid says nothing if the chance that all cells lie on it by luck is larger than this (over all of RUNS)
LUCK = 0.01 / len(RUNS)
#: "about": how far a stated number may lie from the computed one, as a share of it
ABOUT = 0.05


@dataclass(frozen=True)
class Finding:
    """One thing that does not follow. numbers: what it was computed from, by name."""

    check: str
    where: str
    text: str
    numbers: Mapping[str, Any]


def audit(published: Published) -> list[Finding]:
    """Return every finding, check by check, in the order of the table."""
    checks = (averages, granularity, marks, best, gains, ratios, budgets, same, constants)
    return [finding for check in checks for finding in check(published)]


def markdown(findings: Sequence[Finding]) -> str:
    """Return the findings by check as Markdown."""
    parts = [f"# Audit: {len(findings)} findings", ""]
    for check in dict.fromkeys(f.check for f in findings):
        of_check = [f for f in findings if f.check == check]
        parts += [f"## {check} ({len(of_check)})", "", *(f"- {f.where}: {f.text}." for f in of_check), ""]
    return "\n".join(parts)


def write(out: Path, page: str, findings: Sequence[Finding]) -> list[Path]:
    """Write audit.md and audit.json into ``out``."""
    paths = [out / "audit.md", out / "audit.json"]
    write_text(paths[0], page)
    write_text(paths[1], json.dumps([asdict(f) for f in findings], indent=1) + "\n")
    return paths


def _finding(check: str, where: str, key: str, numbers: Mapping[str, Any], **fields: object) -> Finding:
    """Return a finding in the words that ``analysis/templates/audit.yaml`` has under ``key``."""
    words: str = validate.parse_yaml(TEXTS)[key]
    return Finding(check, where, words.format(**numbers, **fields), numbers)


def _listed(values: Mapping[str, float], form: str = ".2f") -> str:
    return ", ".join(f"{name} {value:{form}}" for name, value in values.items())


# ------------------------------------------------------------------------------------------------ cells


def averages(published: Published) -> Iterator[Finding]:
    """Find a printed average that its own cells do not give, whatever was rounded; all cells must be there."""
    for block, row in published.rows:
        wanted = [name for name in block.numbered if name in published.setup["problems"]]
        parts, printed = [row.cells[n] for n in wanted if n in row.cells], row.cells.get(AVERAGE)
        if len(parts) < len(wanted) or printed is None:
            continue
        mean = fmean(c.value for c in parts)
        if abs(mean - printed.value) > printed.half_unit + fmean(c.half_unit for c in parts) + 1e-9:
            shown, numbers = ", ".join(c.text for c in parts), {"printed": printed.value, "mean": mean}
            yield _finding("average", f"{block.title}, {row.title}", "average", numbers, text=printed.text, parts=shown)


def attainable(cell: PrintedCell, outcomes: int) -> bool:
    """Return whether some count of ``outcomes`` 0/1 outcomes, in percent, is printed like that, rounded or cut off.

    It is the GRIM test of Brown and Heathers 2017, for means of n * k outcomes.
    """
    nearest = round(cell.value / 100 * outcomes)
    values = (100 * c / outcomes for c in range(max(0, nearest - 1), min(outcomes, nearest + 1) + 1))
    # a value lies within half a unit of what it is rounded to, and up to a whole unit above what it is cut off to
    return any(-cell.half_unit - 1e-9 <= v - cell.value < 2 * cell.half_unit - 1e-9 for v in values)


def luck(cells: Sequence[PrintedCell], outcomes: int) -> float:
    """Return the chance that so many random values would all be attainable."""
    return math.prod(min(1.0, outcomes * 3 * c.half_unit / 100) for c in cells)


def granularity(published: Published) -> Iterator[Finding]:
    """Find values that no count can give with the stated number of runs, and the number that a column does fit."""
    setup = published.setup
    titles = {name: title for block in published.blocks for name, title in block.numbered.items()}
    for column, n in setup["problems"].items():
        title, runs = titles[column], setup["runs"]
        cells: list[PrintedCell] = []  # of the paper's own rows
        for block, row in (place for place in published.rows if column in place[1].cells):
            cell, borrowed = row.cells[column], BORROWED in row.title
            cells += [] if borrowed else [cell]
            if not attainable(cell, n * runs):
                count = cell.value / 100 * n * runs
                near = [f"{100 * c / (n * runs):.{cell.digits + 1}f}" for c in (math.floor(count), math.ceil(count))]
                fields = {"text": cell.text, "below": near[0], "above": near[1]}
                fields["borrowed"] = " (a row from another paper)" if borrowed else ""
                numbers = {"printed": cell.value, "problems": n, "runs": runs, "count": count}
                yield _finding("granularity", f"{block.title}, {row.title}, {title}", "impossible", numbers, **fields)
        fits = [k for k in RUNS if luck(cells, n * k) < LUCK and all(attainable(c, n * k) for c in cells)]
        if fits and fits[0] != runs:
            outcomes = n * fits[0]
            numbers = {"problems": n, "runs": fits[0], "stated": runs, "luck": luck(cells, outcomes)}
            yield _finding("granularity", title, "grid", numbers | {"cells": len(cells)}, outcomes=outcomes)
        elif not fits and luck(cells, n * runs) < LUCK and not all(attainable(c, n * runs) for c in cells):
            numbers = {"problems": n, "stated": runs, "cells": len(cells)}
            yield _finding("granularity", title, "no grid", numbers, most=RUNS[-1])


def marks(published: Published) -> Iterator[Finding]:
    """Find underlined values that are not second best in their column, second-best ones without a line, and ties."""
    marked = [block for block in published.blocks if any(row.underlined for row in block.rows)]
    for block, column in ((b, name) for b in marked for name in b.numbered):
        lower, where = column in COSTS, f"{block.title}, {block.columns[column]}"
        rows = [(row, row.cells[column]) for row in block.rows if column in row.cells]
        ranked = sorted(rows, key=lambda item: item[1].value, reverse=not lower)
        values = list(dict.fromkeys(cell.value for _, cell in ranked))
        shown = ", ".join(f"{row.title} {cell.text}" for row, cell in ranked[:3])
        for row, cell in rows if len(values) > 1 else ():
            place, underlined = values.index(cell.value) + 1, column in row.underlined
            if underlined != (place == 2) and (underlined or not lower):
                key, numbers = "underlined" if underlined else "not underlined", {"value": cell.value, "place": place}
                yield _finding("mark", where, key, numbers, text=f"{row.title} {cell.text}", shown=shown)
        top = [row.title for row, cell in rows if cell.value == values[0]]
        if len(top) > 1 and len(values) > 1 and not lower:
            numbers = {"value": values[0], "tied": len(top)}
            yield _finding("mark", where, "tie", numbers, names=" and ".join(top), text=ranked[0][1].text)


def best(published: Published) -> Iterator[Finding]:
    """Find columns in which the proposed method is not the best row."""
    rows = [(block, row) for block, row in published.rows if row.method == PROPOSED]
    for block, ours, (column, cell) in ((b, r, item) for b, r in rows for item in r.cells.items()):
        there = [(r, r.cells[column]) for r in block.rows if column in r.cells]
        above = [f"{r.title} {c.text}" for r, c in there if c.value > cell.value]
        if above and column not in COSTS:
            where, numbers = f"{block.title}, {block.columns[column]}", {"value": cell.value, "above": len(above)}
            text, shown = f"{ours.title} {cell.text}", ", ".join(above)
            yield _finding("not the best", where, "not the best", numbers, text=text, shown=shown)


# ------------------------------------------------------------------------------------------------ statements


def gains(published: Published) -> Iterator[Finding]:
    """Find a stated average relative gain that no usual way to average gives; name the subsets that would."""

    def percent(a: PrintedCell, b: PrintedCell) -> float:
        return 100 * (a.value - b.value) / b.value

    counted = published.setup["problems"]
    for entry in published.setup.get("gains", ()):
        of, over, stated = (entry[key] for key in ("of", "over", "stated"))
        pairs = list(published.pairs(of, over, AVERAGE))
        each = {block.title: percent(a, b) for block, a, b in pairs}
        averaged = [(block, name) for block, *_ in pairs for name in block.numbered if name in counted]
        cells = [p for block, name in averaged for p in published.pairs(of, over, name) if p[0] is block]
        top, bottom = math.fsum(a.value for _, a, _ in pairs), math.fsum(b.value for _, _, b in pairs)
        ways = {
            "mean of the relative gains": fmean(each.values()),
            "gain of the mean": 100 * (top / bottom - 1),
            "mean gain in points": fmean(a.value - b.value for _, a, b in pairs),
            "mean of the relative gains of all cells": fmean(percent(a, b) for _, a, b in cells),
        }
        unit = 0.5 * 10.0 ** -len(f"{stated:g}".partition(".")[2])  # half of the last digit that is stated
        if any(abs(value - stated) <= unit for value in ways.values()):
            continue
        subsets = [names for size in range(1, len(each)) for names in combinations(each, size)]
        alone = [" and ".join(s) for s in subsets if abs(fmean(each[n] for n in s) - stated) <= unit]
        fields = {"blocks": _listed(each), "ways": _listed(ways)}
        fields["subsets"] = f"; it is the mean over {' or '.join(alone)} alone" if alone else ""
        yield _finding("gain", entry["where"], "gain", {"stated": stated, **each, **ways}, **fields)


def ratios(published: Published) -> Iterator[Finding]:
    """Find a stated ratio of two rows in one column that the column does not give."""
    for entry in published.setup.get("ratios", ()):
        for block, a, b in published.pairs(entry["of"], entry["over"], entry["column"]):
            ratio, stated = a.value / b.value, entry["stated"]
            if abs(ratio - stated) > ABOUT * ratio:
                numbers = {"stated": stated, "ratio": ratio}
                yield _finding("ratio", entry["where"], "ratio", numbers, a=a.text, b=b.text, title=block.title)


def budgets(published: Published) -> Iterator[Finding]:
    """Find printed rollouts that the stated steps, epochs and sizes do not give."""
    entries = [(e, b) for e in published.setup.get("budgets", ()) for b in published.blocks if b.key == e["model"]]
    for entry, block in entries:
        steps, per_step, column = entry["steps"], entry["batch"] * entry["group"], entry["column"]
        expected = steps * per_step
        rows = [r for r in block.rows if r.method in entry["rows"] and column in r.cells]
        for cell in dict.fromkeys(r.cells[column] for r in rows):
            if abs(expected - cell.value) <= max(cell.half_unit, ABOUT * expected):
                continue
            titles = ", ".join(r.title for r in rows if r.cells[column] == cell)
            numbers = {"printed": cell.value, "implied_steps": cell.value / per_step, "steps": steps}
            fields = {key: entry[key] for key in ("batch", "group", "epochs", "train")} | {"text": cell.text}
            fields["by_epochs"] = entry["epochs"] * entry["train"] / entry["batch"]
            fields |= {"place": entry["where"], "thousands": expected / 1000}
            yield _finding("budget", f"{block.title}: {titles}", "budget", numbers | {"expected": expected}, **fields)


def same(published: Published) -> Iterator[Finding]:
    """Find one quantity with different numbers."""
    for quantity, places in published.setup.get("same", {}).items():
        if len(set(places.values())) > 1:
            yield Finding("same quantity", quantity, _listed(places, "g"), places)


# ------------------------------------------------------------------------------------------------ the theorem


def best_case(mu: float, factor: float = 2.0) -> float:
    """Return the largest value of the bound at a mean reward ``mu``, as a share of TV."""
    return theory.ceiling(theory.stability(mu), 1.0, factor)


def constants(published: Published) -> Iterator[Finding]:
    """Find K1 to K3 for the stated thresholds, premises that do not hold, and the largest value of the bound."""
    if not (entry := published.setup.get("theorem")):
        return
    group, c1, where = entry["group"], entry["c1"], entry["where"]
    low, high = zip(entry["c2"], entry["c3"], strict=True)
    numbers = {"K1": theory.k1(group), "K2": theory.k2(c1), "K3_low": theory.k3(*low), "K3_high": theory.k3(*high)}
    equal = " (equal)" if math.isclose(numbers["K1"], numbers["K2"]) else ""
    yield _finding("theorem", where, "constants", numbers, group=group, c1=c1, equal=equal, low=low, high=high)
    floor, means = c1 * (1 - c1), [k / group for k in range(1, group)]
    if broken := [m for m in means if m > c1 and m * (1 - m) <= floor + 1e-12]:
        least, shown = min(m * (1 - m) for m in broken), ", ".join(f"{m:g}" for m in broken)
        fields = {"least": least, "shown": shown, "K2_worst": math.inf}  # the mean may come as near to 1 as it likes
        yield _finding("theorem", f"{where}, eq. 30", "premise", {"floor": floor, "means": broken}, **fields)
    if math.isclose(width := low[1] - low[0], high[1] - high[0]):
        yield _finding("theorem", f"{where}, eq. 8", "width", {"width": width}, steps=group * width, group=group)
    printed, corrected = (max(best_case(k / 1000, factor) for k in range(1, 1000)) for factor in (2.0, 1.0))
    numbers = {"largest": printed, "at_one_of_g": best_case(1 / group), "largest_with_factor_1": corrected}
    yield _finding("theorem", where, "empty bound", numbers, group=group)
