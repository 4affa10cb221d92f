"""Checks of what a paper says about its numbers: gains, ratios, budgets, and places that should agree."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import combinations

from analysis.audit.published import Finding, Published

#: "about": how far a stated number may lie from the computed one, as a share of it
ABOUT = 0.05


def gains(published: Published) -> Iterator[Finding]:
    """Find a stated average relative gain that no usual way to average gives; name the subsets that would."""
    for entry in published.setup.gains:
        of, over, stated = entry.of, entry.over, entry.stated
        pairs = list(published.pairs(of, over, published.setup.average or ""))
        if not pairs:
            continue
        each = {block.title: 100 * (a.value - b.value) / b.value for block, a, b in pairs}
        ways = {"mean of the relative gains": math.fsum(each.values()) / len(each)}
        ways["gain of the mean"] = 100 * (
            math.fsum(a.value for _, a, _ in pairs) / math.fsum(b.value for _, _, b in pairs) - 1
        )
        ways["mean gain in points"] = math.fsum(a.value - b.value for _, a, b in pairs) / len(pairs)
        cells = [
            100 * (block.row(of).cells[c].value - block.row(over).cells[c].value) / block.row(over).cells[c].value
            for block, _, _ in pairs
            for c in block.columns
            if published.is_averaged(c) and c in block.row(of).cells and c in block.row(over).cells
        ]
        ways["mean of the relative gains of all cells"] = math.fsum(cells) / len(cells) if cells else math.nan
        unit = _unit(stated)
        if any(abs(value - stated) <= unit for value in ways.values()):
            continue
        subsets = [
            (names, value)
            for size in range(1, len(each))
            for names in combinations(each, size)
            if abs((value := math.fsum(each[n] for n in names) / size) - stated) <= unit
        ]
        text = f"{stated:g}% is stated; block by block it is {_listed(each)}; " + ", ".join(
            f"{name} {value:.2f}" for name, value in ways.items()
        )
        if subsets:
            text += "; it is the mean over " + " or ".join(" and ".join(names) for names, _ in subsets) + " alone"
        yield Finding("gain", entry.where, text, {"stated": stated, **each, **ways})


def gain_ranges(published: Published) -> Iterator[Finding]:
    """Find a stated range of gains in points that the blocks' smallest or largest gain does not reach."""
    for entry in published.setup.gain_ranges:
        column = entry.column or published.setup.average or ""
        pairs = list(published.pairs(entry.of, entry.over, column))
        gains = {block.title: a.value - b.value for block, a, b in pairs}
        if not gains:
            continue
        allowed = max(a.half_unit + b.half_unit for _, a, b in pairs) + 1e-9
        for stated, pick, side in zip(entry.stated, (min, max), ("smallest", "largest"), strict=True):
            title = pick(gains, key=gains.get)
            if gains[title] < stated - allowed:
                yield Finding(
                    "gain",
                    entry.where,
                    f"gains from {entry.stated[0]:g} to {entry.stated[1]:g} points are stated; the {side} is "
                    f"{gains[title]:.2f} ({title}), of {_listed(gains)}",
                    {"stated": stated, side: gains[title], **gains},
                )


def ratios(published: Published) -> Iterator[Finding]:
    """Find a stated ratio of two rows in one column that the column does not give."""
    for entry in published.setup.ratios:
        for block, a, b in published.pairs(entry.of, entry.over, entry.column):
            ratio = a.value / b.value
            if abs(ratio - entry.stated) > ABOUT * entry.stated / 2:
                yield Finding(
                    "ratio",
                    entry.where,
                    f"{entry.stated:g} is stated; {a.text} / {b.text} = {ratio:.2f} ({block.title})",
                    {"stated": entry.stated, "ratio": ratio},
                )


def budgets(published: Published) -> Iterator[Finding]:
    """Find printed rollouts that the stated steps, epochs and sizes do not give."""
    for entry in published.setup.budgets:
        block = next((b for b in published.blocks if b.key == entry.model), None)
        per_step = entry.batch * entry.group
        by_epochs = entry.epochs * entry.train / entry.batch
        rows = [r for r in (block.rows if block else ()) if r.method in entry.rows and entry.column in r.cells]
        for text in dict.fromkeys(r.cells[entry.column].text for r in rows):
            cell = next(r.cells[entry.column] for r in rows if r.cells[entry.column].text == text)
            implied, expected = cell.value / per_step, entry.steps * per_step
            if abs(expected - cell.value) > max(cell.half_unit, ABOUT * expected):
                titles = ", ".join(r.title for r in rows if r.cells[entry.column].text == text)
                yield Finding(
                    "budget",
                    f"{block.title}: {titles}",
                    f"{cell.text} rollouts are {implied:.0f} steps of {entry.batch} x {entry.group}, but "
                    f"{entry.steps} steps are printed ({entry.epochs:g} epochs of {entry.train:,} problems are "
                    f"{by_epochs:.0f}), which are {expected / 1000:.0f}k; {entry.where}",
                    {"printed": cell.value, "implied_steps": implied, "steps": entry.steps, "expected": expected},
                )


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
            yield Finding(
                "sum",
                entry.where,
                f"{entry.stated:g} is stated; {' + '.join(f'{p:g}' for p in entry.parts)} = {total:g}",
                {"stated": entry.stated, "sum": total},
            )


def _unit(stated: float) -> float:
    """Half a unit of the last digit that is stated."""
    return 0.5 * 10.0 ** -len(f"{stated:g}".partition(".")[2])


def _listed(values: dict[str, float], form: str = "{:.2f}") -> str:
    return ", ".join(f"{name} {form.format(value)}" for name, value in values.items())
