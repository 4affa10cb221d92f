"""Checks of the cells of a table: averages, which values counts can give, and which are marked as second."""

from __future__ import annotations

import math
from collections.abc import Iterator

from analysis.audit.published import Block, Cell, Finding, Published, Row

#: numbers of runs a problem that are tried for each column
RUNS = range(1, 65)
#: a grid that all cells would lie on by luck that often says nothing (over all numbers of runs that are tried)
LUCK = 0.01 / len(RUNS)


def averages(published: Published) -> Iterator[Finding]:
    """Find a printed average that its own cells do not give, whatever was rounded, and one that lacks some of them."""
    column = published.setup.average
    for block in published.blocks if column else ():
        for row in block.rows:
            parts = [cell for name, cell in row.cells.items() if published.is_averaged(name)]
            printed = row.cells.get(column)
            if not parts or printed is None:
                continue
            averaged = filter(published.is_averaged, block.declared)
            missing = [block.columns.get(name, name) for name in averaged if name not in row.cells]
            if missing:
                yield Finding(
                    "not checked",
                    f"{block.title}, {row.title}",
                    f"whether {printed.text} is the mean cannot be told: the row has no number in {', '.join(missing)}",
                    {"printed": printed.value, "missing": missing},
                )
                continue
            mean = math.fsum(c.value for c in parts) / len(parts)
            allowed = printed.half_unit + math.fsum(c.half_unit for c in parts) / len(parts) + 1e-9
            if abs(mean - printed.value) > allowed:
                yield Finding(
                    "average",
                    f"{block.title}, {row.title}",
                    f"prints {printed.text}; the mean of {', '.join(c.text for c in parts)} is {mean:.2f}",
                    {"printed": printed.value, "mean": mean},
                )


def attainable(cell: Cell, outcomes: int) -> bool:
    """Return whether some count of ``outcomes`` 0/1 outcomes, in percent, is printed like that, rounded or cut off.

    The GRIM test of Brown and Heathers 2017, for means of n * k outcomes.
    """
    nearest = round(cell.value / 100 * outcomes)
    values = (100 * c / outcomes for c in range(max(0, nearest - 1), min(outcomes, nearest + 1) + 1))
    # printed = value rounded: within half a unit; cut off: up to a whole unit below it
    return any(-cell.half_unit - 1e-9 <= v - cell.value < 2 * cell.half_unit - 1e-9 for v in values)


def luck(cells: list[Cell], outcomes: int) -> float:
    """Return the chance that so many random values would all be attainable."""
    return math.prod(min(1.0, outcomes * 3 * c.half_unit / 100) for c in cells)


def granularity(published: Published) -> Iterator[Finding]:
    """Values that no count can give with the stated number of runs, and the number of runs that a column does fit."""
    for column, title, rows in _columns(published):
        n, runs = published.problems(column), published.setup.runs_of(column)
        if not runs or not n:
            continue
        for where, row in rows:
            cell = row.cells[column]
            if not attainable(cell, n * runs):
                count = cell.value / 100 * n * runs
                near = ", ".join(
                    f"{100 * c / (n * runs):.{cell.digits + 1}f}" for c in (math.floor(count), math.ceil(count))
                )
                yield Finding(
                    "granularity",
                    f"{where}, {row.title}, {title}",
                    f"{cell.text} is no mean of {n} problems x {runs} runs, rounded or cut off: the nearest give "
                    + near
                    + (" (a row from another paper)" if row.borrowed else ""),
                    {"printed": cell.value, "problems": n, "runs": runs, "count": count},
                )
        cells = [row.cells[column] for _, row in rows if not row.borrowed]
        fits = [k for k in RUNS if luck(cells, n * k) < LUCK and all(attainable(c, n * k) for c in cells)]
        if fits and fits[0] != runs:
            k = fits[0]
            yield Finding(
                "granularity",
                title,
                f"all {len(cells)} values lie on the grid of {n} problems x {k} runs = 1/{n * k} (by luck: "
                f"{luck(cells, n * k):.1g}), not only on that of the stated {runs} runs",
                {"problems": n, "runs": k, "stated": runs, "luck": luck(cells, n * k), "cells": len(cells)},
            )
        elif not fits and luck(cells, n * runs) < LUCK and not all(attainable(c, n * runs) for c in cells):
            yield Finding(
                "granularity",
                title,
                f"no number of runs from {RUNS.start} to {RUNS.stop - 1} that could be told from luck fits all "
                f"{len(cells)} values",
                {"problems": n, "stated": runs, "cells": len(cells)},
            )


def _columns(published: Published) -> Iterator[tuple[str, str, list[tuple[str, Row]]]]:
    """(column, title, [(block title, row)]) over all blocks that have the column."""
    titles: dict[str, str] = {}
    for block in published.blocks:
        titles |= block.columns
    for column, title in titles.items():
        rows = [(b.title, r) for b in published.blocks for r in b.rows if column in r.cells]
        yield column, title, rows


def marks(published: Published) -> Iterator[Finding]:
    """Underlined values that are not the second best of their column, second-best ones without a line, and ties."""
    low = set(published.setup.lower_is_better)
    for block in published.blocks:
        if not any(row.underlined for row in block.rows):
            continue
        for column, title in block.columns.items():
            yield from _marks_of(block, column, title, column in low)


def _marks_of(block: Block, column: str, title: str, lower: bool) -> Iterator[Finding]:
    rows = [r for r in block.rows if column in r.cells]
    values = sorted({r.cells[column].value for r in rows}, reverse=not lower)
    if len(values) < 2:
        return
    where = f"{block.title}, {title}"
    shown = ", ".join(
        f"{r.title} {r.cells[column].text}"
        for r in sorted(rows, key=lambda r: r.cells[column].value, reverse=not lower)[:3]
    )
    for row in rows:
        place = values.index(row.cells[column].value) + 1
        if column in row.underlined:
            wrong = "" if place == 2 else f"is underlined and is number {place}"
        else:
            wrong = "is second and is not underlined" if place == 2 and not lower else ""
        if wrong:
            cell = row.cells[column]
            yield Finding(
                "mark", where, f"{row.title} {cell.text} {wrong}: {shown}", {"value": cell.value, "place": place}
            )
    best = [r for r in rows if r.cells[column].value == values[0]]
    if len(best) > 1 and not lower:
        yield Finding(
            "mark",
            where,
            f"{' and '.join(r.title for r in best)} tie at the top with {best[0].cells[column].text}",
            {"value": values[0], "tied": len(best)},
        )


def best(published: Published) -> Iterator[Finding]:
    """Find columns in which the proposed method is not the best row."""
    low, proposed = set(published.setup.lower_is_better), published.setup.proposed
    for block in published.blocks:
        ours = block.row(proposed) if proposed else None
        for column, cell in ours.cells.items() if ours else ():
            if column in low:  # costs: nobody says that they are the lowest
                continue
            above = [r for r in block.rows if column in r.cells and r.cells[column].value > cell.value]
            if above:
                shown = ", ".join(f"{r.title} {r.cells[column].text}" for r in above)
                yield Finding(
                    "not the best",
                    f"{block.title}, {block.columns[column]}",
                    f"{ours.title} {cell.text} is below {shown}",
                    {"value": cell.value, "above": len(above)},
                )
