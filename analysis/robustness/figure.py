"""Slices through a sweep, one panel a parameter; the plane of the two that matter most; importances."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from analysis import style
from analysis.robustness.reading import COMPLETE, Parameter, Sweep
from analysis.robustness.sensitivity import MOST_LEVELS, Region, Sensitivity, shown

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLUMNS = 3
PANEL = 1.75  # inches
CAPTION = (
    "Every point is a trial: mean validation accuracy over its training seeds. Red: in the region, at least the best "
    "minus one standard error (dotted) and above the reference (blue, with its 95% interval); grey: outside. Black: "
    "mean of the complete trials with this value or range, with 95% intervals."
)


def draw(sweep: Sweep, area: Region | None, rows: Sequence[Sensitivity]) -> Figure:
    ranked = sorted(rows, key=lambda r: -(r.importance or 0.0))[:2]
    plane = len(rows) > 1 and area is not None
    panels = len(rows) + plane + any(r.importance is not None for r in rows)
    columns = min(COLUMNS, panels)
    lines = -(-panels // columns)
    note = f"{CAPTION} {sweep.content['note']}".strip()
    bottom = style.caption_height(note) + 0.5
    height = 0.45 + bottom + lines * PANEL + (lines - 1) * 0.75
    fig = style.figure(height)
    grid = fig.subplots(lines, columns, squeeze=False)
    style.margins(fig, 0.55, 0.2, 0.45, bottom, wspace=0.5, hspace=0.75 / PANEL)
    axes = iter(grid.flat)
    for row in rows:
        _slice(next(axes), row, sweep, area)
    if plane:
        chosen = sorted(ranked, key=lambda r: [x.parameter.name for x in rows].index(r.parameter.name))
        _plane(fig, next(axes), chosen[0].parameter, chosen[1].parameter, sweep)
    if any(r.importance is not None for r in rows):
        _importances(next(axes), rows)
    for left in axes:
        left.set_visible(False)
    title = f"{sweep.content['title']}: {sweep.content['model_title']}, {sweep.content['scale']} scale"
    fig.text(0.08 / style.WIDTH, 1 - 0.08 / height, title, fontsize=9.5, fontweight="bold", va="top")
    style.caption(fig, note)
    return fig


def _places(parameter: Parameter, sweep: Sweep) -> tuple[dict[Any, float], bool]:
    """Value -> place on an axis, and whether the axis is one of names: choices stand side by side."""
    if parameter.choices is not None:
        return {c: float(i) for i, c in enumerate(parameter.choices)}, True
    return {t.drawn[parameter.name]: float(t.drawn[parameter.name]) for t in sweep.trials if t.drawn}, False


def _dress(axes: Axes, parameter: Parameter, places: dict[Any, float], names: bool, which: str = "x") -> None:
    axis = getattr(axes, f"{which}axis")
    getattr(axes, f"set_{which}label")(parameter.title)
    if names:
        axis.set_ticks(list(places.values()), [shown(c).replace(" and ", "\nand ") for c in places])
        getattr(axes, f"set_{which}lim")(-0.5, len(places) - 0.5)
    elif parameter.log:
        from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

        getattr(axes, f"set_{which}scale")("log")
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.set_major_formatter(FuncFormatter(lambda value, _: shown(value)))
        axis.set_minor_formatter(NullFormatter())


def _slice(axes: Axes, row: Sensitivity, sweep: Sweep, area: Region | None) -> None:
    places, names = _places(row.parameter, sweep)
    inside = set() if area is None else {t.number for t in area.inside}
    for t in sweep.trials:
        if t.state != COMPLETE:
            continue
        colour = style.VERMILLION if t.number in inside else style.GREY
        look = {"markersize": 3.5, "color": colour, "markeredgewidth": 0.8, "alpha": 0.85}
        axes.plot(places[t.drawn[row.parameter.name]], 100 * t.estimate.mean, "o", **look)
    if area is not None:
        mean = 100 * area.reference.mean
        half = 100 * area.reference.half_width
        axes.axhline(mean, color=style.BLUE, linewidth=1)
        if np.isfinite(half):
            axes.axhspan(mean - half, mean + half, color=style.BLUE, alpha=0.08, linewidth=0)
        axes.axhline(100 * area.bound, color=style.VERMILLION, linewidth=0.9, linestyle=":")
    centres = [_centre(level.values, places, row.parameter) for level in row.levels]
    means = [100 * level.estimate.mean for level in row.levels]
    errors = [100 * level.estimate.half_width for level in row.levels]
    shift = 0.18 if names else 0.0
    look = {"color": style.BLACK, "marker": "_", "markersize": 7, "linewidth": 1, "elinewidth": 1, "capsize": 2}
    axes.errorbar([c + shift for c in centres], means, errors, **look)
    _dress(axes, row.parameter, places, names)
    low, high = axes.get_ylim()
    axes.set_ylim(max(low, -2.0), min(high, 102.0))  # an interval may be wider than what an accuracy can be
    axes.set_ylabel("accuracy (%)")


def _centre(values: Sequence[Any], places: dict[Any, float], parameter: Parameter) -> float:
    axis = [places[v] for v in values]
    return float(np.exp(np.mean(np.log(axis)))) if parameter.log else float(np.mean(axis))


def _plane(fig: Figure, axes: Axes, first: Parameter, second: Parameter, sweep: Sweep) -> None:
    """Draw a heat map of the means where both have a few values, else contours between the trials."""
    trials = sweep.complete
    (x_places, x_names), (y_places, y_names) = _places(first, sweep), _places(second, sweep)
    x = np.array([x_places[t.drawn[first.name]] for t in trials])
    y = np.array([y_places[t.drawn[second.name]] for t in trials])
    z = np.array([100 * t.estimate.mean for t in trials])
    if x_names and y_names and max(len(x_places), len(y_places)) <= 2 * MOST_LEVELS:
        _heat(axes, x, y, z, (len(x_places), len(y_places)))
    else:
        _contours(fig, axes, x, y, z, (first.log, second.log))
    _dress(axes, first, x_places, x_names)
    _dress(axes, second, y_places, y_names, "y")
    axes.grid(False)


def _heat(axes: Axes, x: np.ndarray, y: np.ndarray, z: np.ndarray, shape: tuple[int, int]) -> None:
    table = np.full((shape[1], shape[0]), np.nan)
    for i in range(shape[0]):
        for j in range(shape[1]):
            cell = (x == i) & (y == j)
            table[j, i] = z[cell].mean() if cell.any() else np.nan
    axes.imshow(table, origin="lower", aspect="auto", cmap="cividis")
    low, high = np.nanmin(table), np.nanmax(table)
    for (j, i), value in np.ndenumerate(table):
        if np.isfinite(value):
            dark = value < (low + high) / 2
            axes.text(i, j, f"{value:.1f}", ha="center", va="center", fontsize=7.5, color="white" if dark else "black")


def _contours(fig: Figure, axes: Axes, x: Any, y: Any, z: Any, logs: tuple[bool, bool]) -> None:
    from matplotlib.tri import Triangulation

    u, v = (np.log(a) if log else a for a, log in zip((x, y), logs, strict=True))
    places = {(a, b): i for i, (a, b) in enumerate(zip(u, v, strict=True))}  # one point a place
    keep = sorted(places.values())
    if len(keep) >= 4 and np.ptp(z) > 0:
        try:
            triangles = Triangulation(u[keep], v[keep]).triangles
            means = [z[(u == u[i]) & (v == v[i])].mean() for i in keep]
            drawn = axes.tricontourf(Triangulation(x[keep], y[keep], triangles), means, levels=7, cmap="cividis")
            fig.colorbar(drawn, ax=axes, pad=0.03).ax.tick_params(labelsize=6.5)
        except (RuntimeError, ValueError):  # all points on one line: no plane
            pass
    axes.plot(x, y, "o", markersize=3, color="white", markeredgecolor=style.BLACK, markeredgewidth=0.6)


def _importances(axes: Axes, rows: Sequence[Sensitivity]) -> None:
    known = sorted((r for r in rows if r.importance is not None), key=lambda r: r.importance or 0.0)
    axes.barh(range(len(known)), [100 * (r.importance or 0.0) for r in known], color=style.SKY, height=0.65)
    axes.set_yticks(range(len(known)), [r.parameter.name for r in known], fontsize=6.5)
    axes.set_xlabel("importance (%)")
    axes.grid(axis="y", visible=False)
