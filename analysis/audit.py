"""What a paper's published numbers say about themselves, by arithmetic alone: ``python -m bapo audit``.

Nothing is known beforehand: each check computes from a table as it is printed (``analysis/paper/table1.yaml``) and from
the paper's statements about it (``analysis/paper/setup.yaml``).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

from analysis.paper import FOLDER, Block, Cell, Published, Row, load
from bapo.algorithm import theory
from bapo.store.files import write_text

__all__ = ["SETUP", "Finding", "audit", "load", "markdown", "write"]

SETUP = FOLDER / "setup.yaml"
#: numbers of runs a problem that are tried for each column
RUNS = range(1, 65)
#: a grid that all cells would lie on by luck that often says nothing (over all numbers of runs that are tried)
LUCK = 0.01 / len(RUNS)
#: "about": how far a stated number may lie from the computed one, as a share of it
ABOUT = 0.05


@dataclass(frozen=True)
class Finding:
    """One thing that does not follow. numbers: what it was computed from, by name."""

    check: str
    where: str
    text: str
    numbers: Mapping[str, Any] = field(default_factory=dict)


def audit(published: Published) -> list[Finding]:
    """Return every finding, check by check, in the order of the table."""
    cells = (averages, granularity, marks, best)
    statements = (gains, gain_ranges, ratios, budgets, same, sums, constants)
    return [finding for check in (*cells, *statements) for finding in check(published)]


def markdown(findings: Sequence[Finding], title: str = "", source: str = "") -> str:
    """Return the findings by check."""
    parts = [f"# Audit{f' of {title}' if title else ''}: {len(findings)} findings", ""]
    parts += [f"{source}.", ""] if source else []
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


# ------------------------------------------------------------------------------------------------ cells


def averages(published: Published) -> Iterator[Finding]:
    """Find a printed average that its own cells do not give, whatever was rounded, and one that lacks some of them."""
    setup = published.setup
    for block in published.blocks:
        wanted = [name for name in block.columns if setup.is_averaged(name)]
        for row in block.rows:
            parts = [row.cells[name] for name in wanted if name in row.cells]
            printed, where = row.cells.get(setup.average), f"{block.title}, {row.title}"
            if not parts or printed is None:
                continue
            if len(parts) < len(wanted):
                missing = [block.columns[name] for name in wanted if name not in row.cells]
                text = f"{printed.text} cannot be checked: no number in {', '.join(missing)}"
                yield Finding("not checked", where, text, {"printed": printed.value, "missing": missing})
                continue
            mean = math.fsum(c.value for c in parts) / len(parts)
            allowed = printed.half_unit + math.fsum(c.half_unit for c in parts) / len(parts) + 1e-9
            if abs(mean - printed.value) > allowed:
                text = f"prints {printed.text}; the mean of {', '.join(c.text for c in parts)} is {mean:.2f}"
                yield Finding("average", where, text, {"printed": printed.value, "mean": mean})


def attainable(cell: Cell, outcomes: int) -> bool:
    """Return whether some count of ``outcomes`` 0/1 outcomes, in percent, is printed like that, rounded or cut off.

    The GRIM test of Brown and Heathers 2017, for means of n * k outcomes.
    """
    nearest = round(cell.value / 100 * outcomes)
    values = (100 * c / outcomes for c in range(max(0, nearest - 1), min(outcomes, nearest + 1) + 1))
    # printed = value rounded: within half a unit; cut off: up to a whole unit below it
    return any(-cell.half_unit - 1e-9 <= v - cell.value < 2 * cell.half_unit - 1e-9 for v in values)


def luck(cells: Sequence[Cell], outcomes: int) -> float:
    """Return the chance that so many random values would all be attainable."""
    return math.prod(min(1.0, outcomes * 3 * c.half_unit / 100) for c in cells)


def granularity(published: Published) -> Iterator[Finding]:
    """Values that no count can give with the stated number of runs, and the number of runs that a column does fit."""
    setup = published.setup
    titles = {name: title for block in published.blocks for name, title in block.numbered.items()}
    for column, title in titles.items():
        n, runs = setup.problems.get(column), setup.runs_of(column)
        if not runs or not n:
            continue
        rows = [(b.title, r, r.cells[column]) for b in published.blocks for r in b.rows if column in r.cells]
        for where, row, cell in rows:
            if not attainable(cell, n * runs):
                count = cell.value / 100 * n * runs
                near = [f"{100 * c / (n * runs):.{cell.digits + 1}f}" for c in (math.floor(count), math.ceil(count))]
                text = f"{cell.text} is no mean of {n} problems x {runs} runs, rounded or cut off: the nearest give "
                text += ", ".join(near)
                text += " (a row from another paper)" if _borrowed(row, setup.borrowed) else ""
                numbers = {"printed": cell.value, "problems": n, "runs": runs, "count": count}
                yield Finding("granularity", f"{where}, {row.title}, {title}", text, numbers)
        cells = [cell for _, row, cell in rows if not _borrowed(row, setup.borrowed)]
        fits = [k for k in RUNS if luck(cells, n * k) < LUCK and all(attainable(c, n * k) for c in cells)]
        if fits and fits[0] != runs:
            k = fits[0]
            text = f"all {len(cells)} values lie on the grid of {n} problems x {k} runs = 1/{n * k} (by luck: "
            text += f"{luck(cells, n * k):.1g}), not only on that of the stated {runs} runs"
            numbers = {"problems": n, "runs": k, "stated": runs, "luck": luck(cells, n * k), "cells": len(cells)}
            yield Finding("granularity", title, text, numbers)
        elif not fits and luck(cells, n * runs) < LUCK and not all(attainable(c, n * runs) for c in cells):
            text = (
                f"no number of runs from 1 to {RUNS.stop - 1} that could be told from luck fits all {len(cells)} values"
            )
            yield Finding("granularity", title, text, {"problems": n, "stated": runs, "cells": len(cells)})


def _borrowed(row: Row, mark: str) -> bool:
    """Return whether a row is taken from another paper."""
    return bool(mark) and mark in row.title


def marks(published: Published) -> Iterator[Finding]:
    """Underlined values that are not the second best of their column, second-best ones without a line, and ties."""
    for block in published.blocks:
        if any(row.underlined for row in block.rows):
            for column in block.numbered:
                yield from _marks_of(block, column, column in published.setup.lower_is_better)


def _ranked(block: Block, column: str, lower: bool = False) -> list[tuple[Row, Cell]]:
    rows = [(row, row.cells[column]) for row in block.rows if column in row.cells]
    return sorted(rows, key=lambda item: item[1].value, reverse=not lower)


def _marks_of(block: Block, column: str, lower: bool) -> Iterator[Finding]:
    ranked = _ranked(block, column, lower)
    values, where = list(dict.fromkeys(cell.value for _, cell in ranked)), f"{block.title}, {block.columns[column]}"
    if len(values) < 2:
        return
    shown = ", ".join(f"{row.title} {cell.text}" for row, cell in ranked[:3])
    for row in (r for r in block.rows if column in r.cells):
        cell = row.cells[column]
        place = values.index(cell.value) + 1
        if column in row.underlined:
            wrong = "" if place == 2 else f"is underlined and is number {place}"
        else:
            wrong = "is second and is not underlined" if place == 2 and not lower else ""
        if wrong:
            text = f"{row.title} {cell.text} {wrong}: {shown}"
            yield Finding("mark", where, text, {"value": cell.value, "place": place})
    top = [row for row, cell in ranked if cell.value == values[0]]
    if len(top) > 1 and not lower:
        names = " and ".join(r.title for r in block.rows if r in top)
        text = f"{names} tie at the top with {ranked[0][1].text}"
        yield Finding("mark", where, text, {"value": values[0], "tied": len(top)})


def best(published: Published) -> Iterator[Finding]:
    """Find columns in which the proposed method is not the best row."""
    for block in published.blocks:
        ours = block.row(published.setup.proposed)
        for column, cell in ours.cells.items() if ours else ():
            above = [
                (r, r.cells[column]) for r in block.rows if column in r.cells and r.cells[column].value > cell.value
            ]
            if ours and above and column not in published.setup.lower_is_better:
                text = f"{ours.title} {cell.text} is below {', '.join(f'{r.title} {c.text}' for r, c in above)}"
                where = f"{block.title}, {block.columns[column]}"
                yield Finding("not the best", where, text, {"value": cell.value, "above": len(above)})


# ------------------------------------------------------------------------------------------------ statements


def gains(published: Published) -> Iterator[Finding]:
    """Find a stated average relative gain that no usual way to average gives; name the subsets that would."""
    setup = published.setup
    for entry in setup.gains:
        pairs = list(published.pairs(entry.of, entry.over, setup.average))
        if not pairs:
            continue
        each = {block.title: 100 * (a.value - b.value) / b.value for block, a, b in pairs}
        cells = [
            100 * (a.value - b.value) / b.value
            for block, *_ in pairs
            for name in block.numbered
            if setup.is_averaged(name)
            for other, a, b in published.pairs(entry.of, entry.over, name)
            if other is block
        ]
        ways = {
            "mean of the relative gains": math.fsum(each.values()) / len(each),
            "gain of the mean": 100
            * (math.fsum(a.value for _, a, _ in pairs) / math.fsum(b.value for _, _, b in pairs) - 1),
            "mean gain in points": math.fsum(a.value - b.value for _, a, b in pairs) / len(pairs),
            "mean of the relative gains of all cells": math.fsum(cells) / len(cells) if cells else math.nan,
        }
        unit = 0.5 * 10.0 ** -len(f"{entry.stated:g}".partition(".")[2])  # half of the last digit that is stated
        if any(abs(value - entry.stated) <= unit for value in ways.values()):
            continue
        subsets = [
            " and ".join(names)
            for size in range(1, len(each))
            for names in combinations(each, size)
            if abs(math.fsum(each[n] for n in names) / size - entry.stated) <= unit
        ]
        text = f"{entry.stated:g}% is stated; block by block it is {_listed(each)}; {_listed(ways)}"
        text += f"; it is the mean over {' or '.join(subsets)} alone" if subsets else ""
        yield Finding("gain", entry.where, text, {"stated": entry.stated, **each, **ways})


def gain_ranges(published: Published) -> Iterator[Finding]:
    """Find a stated range of gains in points that the blocks' smallest or largest gain does not reach."""
    for entry in published.setup.gain_ranges:
        pairs = list(published.pairs(entry.of, entry.over, entry.column or published.setup.average))
        found = {block.title: a.value - b.value for block, a, b in pairs}
        allowed = max((a.half_unit + b.half_unit for _, a, b in pairs), default=0.0) + 1e-9
        for stated, pick, side in zip(entry.stated, (min, max), ("smallest", "largest"), strict=True):
            title = pick(found, key=lambda name: found[name], default="")
            if title and found[title] < stated - allowed:
                text = f"gains from {entry.stated[0]:g} to {entry.stated[1]:g} points are stated; the {side} is "
                text += f"{found[title]:.2f} ({title}), of {_listed(found)}"
                yield Finding("gain", entry.where, text, {"stated": stated, side: found[title], **found})


def ratios(published: Published) -> Iterator[Finding]:
    """Find a stated ratio of two rows in one column that the column does not give."""
    for entry in published.setup.ratios:
        for block, a, b in published.pairs(entry.of, entry.over, entry.column):
            ratio = a.value / b.value
            if abs(ratio - entry.stated) > ABOUT * entry.stated / 2:
                text = f"{entry.stated:g} is stated; {a.text} / {b.text} = {ratio:.2f} ({block.title})"
                yield Finding("ratio", entry.where, text, {"stated": entry.stated, "ratio": ratio})


def budgets(published: Published) -> Iterator[Finding]:
    """Find printed rollouts that the stated steps, epochs and sizes do not give."""
    for entry in published.setup.budgets:
        per_step = entry.batch * entry.group
        expected, by_epochs = entry.steps * per_step, entry.epochs * entry.train / entry.batch
        for block in (b for b in published.blocks if b.key == entry.model):
            rows = [r for r in block.rows if r.method in entry.rows and entry.column in r.cells]
            for cell in dict.fromkeys(r.cells[entry.column] for r in rows):
                if abs(expected - cell.value) <= max(cell.half_unit, ABOUT * expected):
                    continue
                titles = ", ".join(r.title for r in rows if r.cells[entry.column] == cell)
                implied = cell.value / per_step
                text = f"{cell.text} rollouts are {implied:.0f} steps of {entry.batch} x {entry.group}, but "
                text += f"{entry.steps} steps are printed ({entry.epochs:g} epochs of {entry.train:,} problems are "
                text += f"{by_epochs:.0f}), which are {expected / 1000:.0f}k; {entry.where}"
                numbers = {"printed": cell.value, "implied_steps": implied, "steps": entry.steps, "expected": expected}
                yield Finding("budget", f"{block.title}: {titles}", text, numbers)


def same(published: Published) -> Iterator[Finding]:
    """Find one quantity with different numbers."""
    for entry in published.setup.same:
        if len(set(entry.places.values())) > 1:
            yield Finding("same quantity", entry.quantity, _listed(entry.places, "{:g}"), dict(entry.places))


def sums(published: Published) -> Iterator[Finding]:
    """Find a total that is not the sum of its parts."""
    for entry in published.setup.sums:
        total = sum(entry.parts)
        if total != entry.stated:
            text = f"{entry.stated:g} is stated; {' + '.join(f'{p:g}' for p in entry.parts)} = {total:g}"
            yield Finding("sum", entry.where, text, {"stated": entry.stated, "sum": total})


def _listed(values: Mapping[str, float], form: str = "{:.2f}") -> str:
    return ", ".join(f"{name} {form.format(value)}" for name, value in values.items())


# ------------------------------------------------------------------------------------------------ the theorem


def best_case(mu: float, factor: float) -> float:
    """Return the largest value of the bound, as a share of TV, over all policies: eq. 20 with J(pi) - J(alpha) = TV.

    A new policy cannot gain more than TV(pi, alpha) over alpha with rewards in [0, 1], so the bound is at most
    (1 / sigma - factor * K) TV, K = (1 - sigma) / sigma, even where alpha is the current policy itself. ``factor`` is
    2 as printed; the duality gives 1 for rewards in [0, 1].
    """
    sigma = math.sqrt(mu * (1 - mu))
    return 1 / sigma - factor * (1 - sigma) / sigma


def constants(published: Published) -> Iterator[Finding]:
    """K1 to K3 for the stated thresholds; premises that do not hold; how often the bound can be positive."""
    entry = published.setup.theorem
    if not entry:
        return
    group, c1, where = entry.group, entry.c1, entry.where
    k1, k2 = theory.k1(group), theory.k2(c1)
    ends = list(zip(entry.c2, entry.c3, strict=True))
    k3 = [theory.k3(*pair) for pair in ends]
    text = f"G = {group}, c1 = {c1:g}: K1 = {k1:.3f}, K2 = {k2:.3f}{' (equal)' if math.isclose(k1, k2) else ''}; "
    text += f"K3 = {k3[0]:.3f} at c2, c3 = {ends[0]} and {k3[1]:.3f} at {ends[1]} (epsilon -> 0)"
    yield Finding("theorem", where, text, {"K1": k1, "K2": k2, "K3_low": k3[0], "K3_high": k3[1]})
    floor = c1 * (1 - c1)
    broken = [k / group for k in range(1, group) if k / group > c1 and k / group * (1 - k / group) <= floor + 1e-12]
    if broken:
        text = f"c1 (1 - c1) = {floor:.4f} is no strict lower bound of the variance of what X2 admits, c1 < mu < 1: at "
        text += f"mu = {', '.join(f'{m:g}' for m in broken)} it is {min(m * (1 - m) for m in broken):.4f}, and as mu "
        text += f"tends to 1 it tends to 0, where K2 is {theory.k2_worst(c1)}"
        yield Finding("theorem", f"{where}, eq. 30", text, {"floor": floor, "means": broken})
    widths = [c3 - c2 for c2, c3 in ends]
    if math.isclose(*widths):
        text = f"both ranges shift together: c3 - c2 is always {widths[0]:g}, {group * widths[0]:g} step of 1/{group}, "
        text += "so X3 takes one or two values of the group mean"
        yield Finding("theorem", f"{where}, eq. 8", text, {"width": widths[0]})
    printed, corrected = (max(best_case(k / 1000, factor) for k in range(1, 1000)) for factor in (2.0, 1.0))
    one = best_case(1 / group, 2.0)
    text = (
        "with the printed factor 2 the bound is never positive for 0/1 rewards: a policy gains at most TV, and (1 - 2 "
    )
    text += (
        f"(1 - sigma)) / sigma is at most {printed:.3g} since sigma <= 1/2; at mu = 1/{group} it is {one:.2f} TV. With "
    )
    text += f"the factor 1 that rewards in [0, 1] allow it is at most {corrected:.3g} TV for every mu"
    yield Finding("theorem", where, text, {"largest": printed, "at_one_of_g": one, "largest_with_factor_1": corrected})
