"""One look for every figure: the Okabe-Ito colours (safe for colour-blind readers), one font, files that never change
for the same data."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis import text
from bapo.store.files import atomic

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    Grid = tuple[Figure, Sequence[Axes]]

BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
BLUE, VERMILLION, PURPLE, GREY = "#0072B2", "#D55E00", "#CC79A7", "#8A8A8A"
DARK, WINE = "#444444", "#882255"  # wine is of Tol's muted scheme, which is safe as well

#: method -> (colour, dash pattern); a part of a method has its colour, two never share both, only the base is dotted
METHODS: dict[str, tuple[str, Any]] = {
    "base": (DARK, (0, (1, 1))),
    "grpo": (BLUE, "-"),
    "dapo": (GREEN, "-"),
    "mopps": (WINE, "-"),
    "ppo": (ORANGE, "-"),
    "ba_ppo": (PURPLE, "-"),
    "grpo_v5": (BLUE, (0, (5, 1.5))),
    "repo": (PURPLE, (0, (3, 1.2, 1, 1.2))),
    "remix": (GREY, "-"),
    "bapo_without_x2": (VERMILLION, (0, (4, 1.2))),
    "bapo_without_x3": (VERMILLION, (0, (3, 1.2, 1, 1.2))),
    "bapo": (VERMILLION, "-"),
}
#: colours of methods that METHODS lacks
OTHERS = (BLUE, PURPLE, GREEN, ORANGE, BLACK, SKY, GREY)
#: markers of these methods; five and seven have no common divisor, so 35 methods differ
MARKERS = "os^Dv"
#: dashes of variants of methods in METHODS, also by index
DASHES = ((0, (6, 1.2)), (0, (3, 1.2)), (0, (1.5, 1)), (0, (5, 1.2, 1, 1.2)))
#: the most lines of a panel whose bands are drawn: more bands would cover each other
BANDS = 6
#: the three parts of a training batch, eq. 5
PARTS = {
    "x1": ("$X_1$ filtered fresh", SKY),
    "x2": ("$X_2$ improved hard", VERMILLION),
    "x3": ("$X_3$ replayed", GREEN),
}

WIDTH = 7.2  # inches: a page's text width


def method_line(method: str, index: int = 0) -> dict[str, Any]:
    """Return colour and dash of a method; one that this file does not know gets them by its index, and a marker.

    A variant of a known method has its colour.
    """
    if method in METHODS:
        colour, dash = METHODS[method]
        return {"color": colour, "linestyle": dash}
    again, place = divmod(index, len(OTHERS))
    colour, dash = OTHERS[place], (0, (4, 1.2)) if again % 2 else "-"
    if (plain := method.split("+")[0]) in METHODS:
        colour, dash = METHODS[plain][0], DASHES[index % len(DASHES)]
    marker = {"marker": MARKERS[index % len(MARKERS)], "markersize": 3.5, "markevery": 0.12}  # of the panel's diagonal
    return {"color": colour, "linestyle": dash} | marker


#: settings in the place of those of paper.mplstyle, for pages with a dark background
NIGHT: Any = {"grid.color": "#30363D"}
NIGHT |= dict.fromkeys(("figure.facecolor", "axes.facecolor", "savefig.facecolor"), "#0D1117")
NIGHT |= dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), "#E6EDF3")


def settings(night: bool = False) -> Any:
    """Use as ``with style.settings():`` around drawing and saving. night: for pages with a dark background."""
    import matplotlib

    return matplotlib.rc_context(NIGHT if night else None, Path(__file__).with_name("paper.mplstyle"))


def grid(caption: str, count: int, across: int = 0, height: float = 2.1, left: str = "", **options: Any) -> Grid:
    """Return a figure and its ``count`` panels, ``across`` in a row.

    caption: the figure's label, which pages and files show beside the picture; across: 0: three, or as many as
    there are; height: inches of a row; left: names the axis of each row's first panel; options: of ``Figure.subplots``.
    No pyplot: no global state, no display.
    """
    from matplotlib.figure import Figure

    across = across or min(3, count)
    rows = -(-count // across)
    fig = Figure(figsize=(WIDTH, rows * height + 0.4), layout="constrained", label=" ".join(caption.split()))
    axes = fig.subplots(rows, across, squeeze=False, **options)
    for panel in axes[:, 0]:
        panel.set_ylabel(left)
    return fig, first(list(axes.flat), count)


def nothing(caption: str) -> tuple[Figure, pd.DataFrame]:
    """Return a figure that says in words why it shows nothing, and its data: none."""
    import pandas as pd

    fig, [panel] = grid(caption, 1, 1, 0.3)
    panel.set_title(caption)
    panel.set_axis_off()
    return fig, pd.DataFrame({"nothing": [caption]})


def legend(fig: Figure, axes: Iterable[Axes], columns: int = 5, **options: Any) -> None:
    """Draw one legend for panels above the figure, each label once, in as many ``columns`` as fit with a margin.

    Rows beyond two make the figure higher, so that the panels keep their height.
    """
    handles = {label: handle for a in axes for handle, label in zip(*a.get_legend_handles_labels(), strict=True)}
    for count in range(columns, 0, -1):
        box = fig.legend(list(handles.values()), list(handles), loc="outside upper left", ncols=count, **options)
        if count == 1 or box.get_window_extent().width < 0.98 * fig.bbox.width:
            rows = -(-len(handles) // count)
            fig.set_figheight(fig.get_figheight() + 0.16 * max(0, rows - 2))  # inches: a line of the legend's font
            return
        box.remove()


def band(axes: Axes, x: Any, values: Any, among: int = 1, **look: Any) -> None:
    """Draw a line over x [T] and, where it is one among at most BANDS lines, a band around it.

    values [3, T]: the line, its low and high end; look: options of ``Axes.plot``, with a color.
    """
    if among <= BANDS:
        axes.fill_between(x, values[1], values[2], color=look["color"], alpha=0.15, linewidth=0)
    axes.plot(x, values[0], **look)


def whiskers(axes: Axes, x: Any, y: Any, ends: tuple[Any, Any], along: str = "x", **look: Any) -> None:
    """Draw points (x, y) with their intervals.

    ends: low and high of these; along: the axis of the intervals, "x" or "y"; look: options of ``Axes.errorbar``.
    """
    middle = x if along == "x" else y
    look = {"capsize": 2, "markersize": 4.5, "linewidth": 1.2} | look
    look[f"{along}err"] = [middle - ends[0], ends[1] - middle]
    axes.errorbar(x, y, **look)


def step_axis(axes: Axes, last: int) -> None:
    """Give the step axis its range, its name and few whole-numbered ticks."""
    from matplotlib.ticker import MaxNLocator

    axes.set_xlim(0, last)
    axes.xaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 5, 10], integer=True))
    axes.set_xlabel("training step", labelpad=1)


def first(panels: Sequence[Axes], count: int) -> Sequence[Axes]:
    """Return the first ``count`` panels of a row, and hide the others."""
    for unused in panels[count:]:
        unused.set_visible(False)
    return panels[:count]


def save(fig: Figure, frame: pd.DataFrame, out: Path, name: str, title: str = "") -> list[Path]:
    """Write a figure as NAME.pdf, NAME.png and NAME.svg and its data as NAME.csv, each whole or not at all.

    Each picture holds its title and caption as text, for a page, a screen reader and a search, and no date.

    Args:
        fig: the figure, whose label is the caption.
        frame: the data behind it.
        out: the folder.
        name: of the files.
        title: in the pictures; by default the name.
    """
    title, caption = title or name, str(fig.get_label())
    metadata = {
        "pdf": {"CreationDate": None, "Title": title, "Subject": caption},
        "png": {"Software": None, "Title": title, "Description": caption},
        "svg": {"Date": None, "Title": title, "Description": caption},
    }
    for suffix, content in metadata.items():
        with atomic(out / f"{name}.{suffix}") as temporary:
            fig.savefig(temporary, format=suffix, metadata=content)
    text.write_csv(out / f"{name}.csv", frame)
    return [out / f"{name}.{suffix}" for suffix in (*metadata, "csv")]
