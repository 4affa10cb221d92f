"""The picture of the findings: a panel a task, each method's gain with its interval, laid out for an inline drawing."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from analysis import text
from analysis.report.findings import Opening
from analysis.report.gains import Gain, Panel, Row

#: units of the drawing: a panel's width, where its plot begins and ends, the height of a row and of the axis
WIDTH, LEFT, RIGHT, ROW, AXIS = 350, 112, 296, 22, 44


@dataclass(frozen=True)
class Mark:
    """One row of a drawn panel, in units of the drawing. side: above, below or open."""

    label: str
    words: str
    side: str
    y: float
    x: float
    low: float
    high: float


@dataclass(frozen=True)
class Drawing:
    """A panel ready to be drawn. ticks: (x, words); zero: where no difference is; spoken: all of it in words."""

    title: str
    axis: str
    height: float
    zero: float
    ticks: tuple[tuple[float, str], ...]
    marks: tuple[Mark, ...]
    spoken: str


def drawings(opening: Opening) -> list[Drawing]:
    """Lay out one panel a task, all on one axis: gains over the reference, or over the base where there is none."""
    over = "over_reference" if any(r.over_reference for p in opening.panels for r in p.rows) else "over_base"
    shown = [(p, [(r, getattr(r, over)) for r in p.rows if getattr(r, over)]) for p in opening.panels]
    shown = [(p, cases) for p, cases in shown if cases]
    ends = [v for _, cases in shown for _, g in cases for v in (g.points, g.low, g.high) if math.isfinite(v)]
    if not ends:
        return []
    low, high = min(0.0, *ends), max(0.0, *ends)
    step = _step(high - low)
    low, high = math.floor(low / step) * step, math.ceil(high / step) * step
    high += step if high == low else 0.0

    def place(value: float) -> float:
        return round(LEFT + (RIGHT - LEFT) * (value - low) / (high - low), 1)

    count = round((high - low) / step)
    values = [round(low + i * step, 9) for i in range(count + 1)]
    digits = max(0, math.ceil(-math.log10(step) - 1e-9))
    ticks = tuple((place(v), text.signed(v, digits) if v else "0") for v in values)
    reference = opening.reference if over == "over_reference" else ""
    return [_drawing(p, cases, place, ticks, reference) for p, cases in shown]


def _drawing(
    p: Panel,
    cases: Sequence[tuple[Row, Gain]],
    place: Callable[[float], float],
    ticks: tuple[tuple[float, str], ...],
    reference: str,
) -> Drawing:
    marks = tuple(
        Mark(
            row.title,
            text.signed(gain.points),
            gain.side,
            (i + 0.5) * ROW,
            place(gain.points),
            place(gain.low if math.isfinite(gain.low) else gain.points),
            place(gain.high if math.isfinite(gain.high) else gain.points),
        )
        for i, (row, gain) in enumerate(cases)
    )
    against = f"points over {reference}" if reference else "points over the base model"
    spoken = f"{p.title}, {against}: " + "; ".join(f"{row.title} {gain}" for row, gain in cases)
    return Drawing(p.title, against, len(cases) * ROW + AXIS, place(0.0), ticks, marks, spoken)


def _step(span: float) -> float:
    """Return a round distance of ticks, so that four to eight of them cover a span."""
    unit = 10.0 ** math.floor(math.log10(span)) if span > 0 else 1.0
    return next((unit * f for f in (0.2, 0.5, 1.0, 2.0) if span / (unit * f) <= 5), 2 * unit)
