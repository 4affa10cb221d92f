"""One look for every figure: the Okabe-Ito colours (safe for colour-blind readers), one font, files that never change
for the same data."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from analysis import text
from bapo.store.files import atomic

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLACK, ORANGE, SKY, GREEN, YELLOW, BLUE, VERMILLION, PURPLE = (
    "#000000",
    "#E69F00",
    "#56B4E9",
    "#009E73",
    "#F0E442",
    "#0072B2",
    "#D55E00",
    "#CC79A7",
)
GREY = "#8A8A8A"
WINE = "#882255"  # of Tol's muted scheme, safe as well

#: method -> (colour, dash pattern); two methods never share both
METHODS: dict[str, tuple[str, Any]] = {
    "grpo": (BLUE, "-"),
    "dapo": (GREEN, "-"),
    "mopps": (WINE, "-"),
    "ppo": (ORANGE, "-"),
    "ba_ppo": (PURPLE, "-"),
    "grpo_v5": (SKY, (0, (5, 1.5))),
    "repo": (PURPLE, (0, (3, 1.2, 1, 1.2))),
    "remix": (GREY, (0, (1, 1))),
    "bapo_without_x2": (ORANGE, (0, (4, 1.2))),
    "bapo_without_x3": (BLACK, (0, (1.2, 1.2))),
    "bapo+v10": (SKY, "-"),
    "bapo+v20": (BLUE, (0, (5, 1.5))),
    "bapo+m1": (ORANGE, (0, (1.2, 1.2))),
    "bapo+m10": (BLACK, (0, (5, 1.5))),
    "bapo+fixed_0_2": (BLUE, (0, (3, 1.2, 1, 1.2))),
    "bapo+fixed_3_4": (BLACK, "-"),
    "bapo+gaussian": (BLUE, (0, (4, 1.2))),
    "bapo+uniform": (GREEN, (0, (3, 1.2, 1, 1.2))),
    "bapo+mini": (PURPLE, (0, (4, 1.2))),
    "bapo": (VERMILLION, "-"),
}
#: of methods that this file does not know
OTHERS = (BLUE, PURPLE, GREEN, ORANGE, BLACK, SKY, GREY)
#: the three parts of a training batch, eq. 5
PARTS = {
    "x1": ("$X_1$ filtered fresh", SKY),
    "x2": ("$X_2$ improved hard", VERMILLION),
    "x3": ("$X_3$ replayed", GREEN),
}

WIDTH = 7.2  # inches: a page's text width
CAPTION = 18.8  # characters of a caption to the inch
ABOVE = {"textcoords": "offset points", "va": "bottom"}  # of a note that stands above what it annotates


def method_line(method: str, index: int = 0) -> dict[str, Any]:
    """Colour and dash of a method; one that this file does not know gets a dash and mostly a colour of its own."""
    colour, dash = METHODS.get(method, (OTHERS[index % len(OTHERS)], (0, (2.5 + index, 1, 1, 1))))
    return {"color": colour, "linestyle": dash}


def settings() -> Any:
    """Use as ``with style.settings():`` around drawing and saving."""
    import matplotlib

    return matplotlib.rc_context(fname=Path(__file__).with_name("paper.mplstyle"))


def figure(height: float, width: float = WIDTH) -> Figure:
    """Return a figure without pyplot: no global state, no display."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height))


def caption(fig: Figure, words: str, bottom: float = 0.05) -> None:
    """Draw a caption below the axes, wrapped to the figure's width. bottom: inches from the lower edge."""
    width, height = fig.get_size_inches()
    lines = textwrap.wrap(" ".join(words.split()), int(width * CAPTION))
    look = {"fontsize": 7, "color": "#333333", "va": "bottom", "linespacing": 1.3}
    fig.text(0.08 / width, bottom / height, "\n".join(lines), gid="caption", **look)


def caption_height(words: str, width: float = WIDTH) -> float:
    """Inches that :func:`caption` needs."""
    return 0.08 + 0.128 * len(textwrap.wrap(" ".join(words.split()), int(width * CAPTION)))


def margins(fig: Figure, left: float, right: float, top: float, bottom: float, **spaces: float | None) -> None:
    """subplots_adjust in inches; wspace and hspace as there."""
    width, height = fig.get_size_inches()
    fig.subplots_adjust(
        left=left / width, right=1 - right / width, top=1 - top / height, bottom=bottom / height, **spaces
    )


def panels(
    words: str,
    shape: tuple[int, int],
    panel: float,
    gap: float,
    top: float,
    left: float,
    right: float = 0.15,
    wspace: float | None = None,
    **options: Any,
) -> tuple[Figure, np.ndarray]:
    """Return a figure with the caption ``words``, and its axes [rows, columns].

    panel, gap: inches, the height of a row and the space between two; margins as in :func:`margins`; options: of
    ``Figure.subplots``.
    """
    below = caption_height(words) + 0.5
    fig = figure(top + shape[0] * panel + (shape[0] - 1) * gap + below)
    grid = fig.subplots(*shape, squeeze=False, **options)
    margins(fig, left, right, top, below, hspace=gap / panel, wspace=wspace)
    caption(fig, words)
    return fig, grid


def nothing(words: str) -> tuple[Figure, pd.DataFrame]:
    """Return a figure that says in words why it shows nothing, and its data: none."""
    import pandas as pd

    fig = figure(caption_height(words) + 0.1)
    caption(fig, words)
    return fig, pd.DataFrame({"nothing": [words]})


def smooth(values: np.ndarray, window: int) -> np.ndarray:
    """Centred moving average of [T] or [S, T] along the last axis; shorter at the ends, so that no step is lost."""
    values = np.asarray(values, dtype=np.float64)
    half = window // 2
    total = np.concatenate([np.zeros((*values.shape[:-1], 1)), np.cumsum(values, axis=-1)], axis=-1)
    t = np.arange(values.shape[-1])
    low, high = np.maximum(t - half, 0), np.minimum(t + half + 1, values.shape[-1])
    return (total[..., high] - total[..., low]) / (high - low)


def row_title(axes: Axes, words: str, inches: float, detail: str = "") -> None:
    """Draw the title of a row of panels above its first one; detail: after it, in plain type."""
    title = axes.annotate(words, (0, 1), (0, 72 * inches), "axes fraction", fontsize=9.5, fontweight="bold", **ABOVE)
    if detail:
        axes.annotate(detail, (1, 0), (0, 1.5), title, fontsize=7.5, ha="left", **ABOVE)


def panel_title(axes: Axes, words: str, detail: str) -> None:
    """Draw the title of one panel with smaller lines of detail below it. Height: 0.13 inches a line of detail."""
    lines = detail.count("\n") + 1
    axes.set_title(words, loc="left", fontweight="bold", pad=4 + 10.5 * lines)
    axes.annotate(detail, (0, 1), (0, 4), "axes fraction", fontsize=7.2, linespacing=1.25, **ABOVE)


def spread_labels(axes: Axes, labels: list[tuple[float, str, str]], x: float, height: float) -> None:
    """Draw text at the right end of lines, moved apart where it would overlap.

    labels: (y in data units, text, colour); x: data coordinate of the line ends; height: of the axes, in inches.
    """
    low, high = axes.get_ylim()
    order = sorted(range(len(labels)), key=lambda i: labels[i][0])
    placed = [(labels[i][0] - low) / (high - low) for i in order]
    lines = [labels[i][1].count("\n") + 1 for i in order]
    for _ in range(300):  # push neighbours apart a little at a time until nothing overlaps
        for i in range(1, len(placed)):
            gap = (0.135 * (lines[i] + lines[i - 1]) / 2 + 0.015 * (max(lines[i], lines[i - 1]) > 1)) / height
            overlap = gap - (placed[i] - placed[i - 1])
            if overlap > 1e-9:
                placed[i] += overlap / 2
                placed[i - 1] -= overlap / 2
    for i, y in zip(order, placed, strict=True):
        value, words, colour = labels[i]
        line = {"arrowstyle": "-", "color": colour, "linewidth": 0.5, "shrinkA": 1, "shrinkB": 1, "relpos": (0, 0.5)}
        look = {"color": colour, "fontsize": 7.5, "va": "center", "linespacing": 1.15, "annotation_clip": False}
        axes.annotate(words, (x, value), (1.03, y), textcoords="axes fraction", arrowprops=line, **look)


def said(fig: Figure) -> str:
    """Return the caption as one line; "" where there is none."""
    return " ".join(" ".join(t.get_text() for t in fig.texts if t.get_gid() == "caption").split())


def save(fig: Figure, frame: pd.DataFrame, out: Path, name: str, title: str = "") -> list[Path]:
    """NAME.pdf, NAME.png, NAME.svg and NAME.csv (the data behind it), each whole or not at all; no dates inside.

    The SVG holds the title and the caption as text, for a screen reader and a search.
    """
    metadata = {
        "pdf": {"CreationDate": None},
        "png": {"Software": None},
        "svg": {"Date": None, "Title": title or name, "Description": said(fig)},
    }
    paths = []
    for suffix, content in metadata.items():
        path = out / f"{name}.{suffix}"
        with atomic(path) as temporary:
            fig.savefig(temporary, format=suffix, metadata=content)
        paths.append(path)
    text.write_csv(out / f"{name}.csv", frame)
    return [*paths, out / f"{name}.csv"]
