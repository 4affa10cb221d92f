"""Queries over evaluations: accuracies on the test benchmarks, paired on the same problems."""

from __future__ import annotations

import numpy as np

from analysis import statistics
from analysis.claims.measures import BASE, Answer, Measure, Methods, NotTestable, compare, names, of_two, query
from analysis.claims.view import View, points
from analysis.results import AVERAGE


@query(evaluated=True, beside=(BASE,))
def accuracy_difference(
    view: View, *, of: Methods, over: Methods, column: str = AVERAGE, paired: bool = False
) -> Answer:
    """of minus over, in points of accuracy (column: a benchmark; else the mean of all).

    paired: two runs of one seed are compared with each other, which share their base and the order of the problems;
    else the seeds of the two count as independent, as in Table 1.
    """

    def against(a: str, b: str) -> Measure:
        if paired and b != BASE:
            x, y, seeds = view.paired(a, b, column)
            difference = statistics.paired_over_seeds([i - j for i, j in zip(x, y, strict=True)])
        else:
            x, y, seeds = view.accuracy(a, column), view.accuracy(b, column), view.seeds(a, b)
            difference = statistics.difference_over_seeds(x, y, (False, b == BASE))
        note = f"{view.title(a)} {points(x):.1f}, {view.title(b)} {points(y):.1f}"
        return of_two(difference, seeds, "points", 100, note, one_freedom=paired or b == BASE)

    return compare(view, of, over, against)


@query()
def curve_difference(view: View, *, of: Methods, over: Methods, column: str = AVERAGE) -> Answer:
    """of minus over in points of accuracy, mean over the evaluated checkpoints after the start that both have."""

    def against(a: str, b: str) -> Measure:
        curves = [view.curves(m, column) for m in (a, b)]
        steps = sorted(set.intersection(*(set(c.steps) for side in curves for c in side)) - {0})
        if not steps:
            raise NotTestable("they have no evaluated checkpoint in common")
        x, y = ([c.accuracy[:, [c.steps.index(s) for s in steps]].mean(axis=1) for c in side] for side in curves)
        note = f"{len(steps)} checkpoints: {view.title(a)} {points(x):.1f}, {view.title(b)} {points(y):.1f}"
        return of_two(statistics.difference_over_seeds(x, y), view.seeds(a, b), "points", 100, note)

    return compare(view, of, over, against)


@query(evaluated=True, beside=(BASE,))
def relative_gain(view: View, *, of: Methods, over: Methods, column: str = AVERAGE, pooled: bool = False) -> Answer:
    """100 (of / over - 1): the gain as a percentage of the accuracy of ``over``; pooled: of their mean."""
    first = next((m for m in names(of) if m in view.block.methods), "")
    others = [m for m in names(over) if m != first and (m in view.block.methods or m == BASE)]
    if pooled and first and len(others) > 1:
        seeds, tables = view.seeds(first, *others), [view.accuracy(b, column) for b in others]
        y = [np.mean([t[:seeds] for t in same], axis=0) for same in zip(*tables, strict=True)]
        titles = (view.title(first), f"the mean of {', '.join(view.title(b) for b in others)}")
        gain = _gain(view.accuracy(first, column), y, False, seeds, titles)
        return Answer({f"{titles[0]} against the mean of its baselines": gain})  # one title, whichever were run

    def against(a: str, b: str) -> Measure:
        titles = (view.title(a), view.title(b))
        return _gain(view.accuracy(a, column), view.accuracy(b, column), b == BASE, view.seeds(a, b), titles)

    return compare(view, of, over, against)


def _gain(x: list[np.ndarray], y: list[np.ndarray], given: bool, seeds: int, titles: tuple[str, str]) -> Measure:
    """100 (x / y - 1) of accuracies [S, n] of each benchmark. given: y is one model and no sample of training runs."""
    top, bottom = points(x) / 100, points(y) / 100
    if not bottom > 0:
        raise NotTestable(f"{titles[1]} has no correct answer")
    # delta method: the error of x / y is that of x - (x / y) y, over y
    residual = statistics.difference_over_seeds(x, [top / bottom * t for t in y], (False, given))
    shift = top / bottom - 1
    problems, both = (statistics.Estimate(shift, e.se / bottom, e.df) for e in (residual.problems, residual.both))
    note = f"{titles[0]} {100 * top:.1f}, {titles[1]} {100 * bottom:.1f}"
    gain = statistics.SeedDifference(problems, both, residual.falling / bottom**2)
    return of_two(gain, seeds, "%", 100, note, given)
