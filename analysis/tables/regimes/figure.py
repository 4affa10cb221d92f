"""The difference between BAPO and its reference against how hard the training prompts are, a panel a budget."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from analysis import style

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

PANEL = 2.0
#: verdict -> (colour, marker)
LOOKS = {"better": (style.BLUE, "o"), "worse": (style.VERMILLION, "v"), "cannot tell": (style.GREY, "s")}


def write(frame: pd.DataFrame, names: tuple[str, str], note: str, out: Path) -> list[Path]:
    """regimes_figure.pdf, .png, .svg and .csv from the rows of regimes.csv. names: of BAPO and of the reference."""
    budgets = list(dict.fromkeys(frame["equal"]))
    caption = (
        f"{names[0]} minus {names[1]} in points of average accuracy, against the share of training prompts without a "
        "correct answer before training: one point a base model, bar: 95% interval over problems and seeds, seeds "
        f"paired; better and worse: after Holm's correction. {note}"
    )
    with style.settings():
        shape = 1, len(budgets)
        fig, [panels] = style.panels(caption, shape, PANEL, gap=0, top=0.55, left=0.6, wspace=0.18, sharey=True)
        for axes, budget in zip(panels, budgets, strict=True):
            _panel(axes, frame[frame["equal"] == budget])
            axes.set_title(f"equal {budget}", loc="left")
        panels[0].set_ylabel("difference (points)")
        handles = {label: h for a in panels for h, label in zip(*a.get_legend_handles_labels(), strict=True)}
        width, height = fig.get_size_inches()
        fig.legend(
            list(handles.values()),
            list(handles),
            loc="upper left",
            ncols=3,
            bbox_to_anchor=(0.5 / width, 1 - 0.02 / height),
        )
        return style.save(fig, frame, out, "regimes_figure", f"{names[0]} minus {names[1]} by difficulty")


def _panel(axes: Axes, rows: pd.DataFrame) -> None:
    """Draw one budget, verdicts told apart by colour and by marker."""
    axes.axhline(0, color="#444444", linewidth=0.8)
    for verdict, (colour, marker) in LOOKS.items():
        points = rows[rows["verdict"] == verdict]
        if len(points):
            spread = [points["difference"] - points["low"], points["high"] - points["difference"]]
            look = {"color": colour, "capsize": 2, "markersize": 5, "linewidth": 1.2, "label": verdict}
            axes.errorbar(100 * points["share_at_zero"], points["difference"], yerr=spread, fmt=marker, **look)
    axes.set_xlim(0, 100)
    axes.set_xticks([0, 50, 100])
    axes.set_xlabel("share at 0/8 (%)")
