"""A forest plot of Table 1: BAPO minus GRPO here, with its interval, and in the paper."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from analysis import results, style, text
from analysis.results import AVERAGE, BASE, ByMethod
from analysis.study import Block

STEM = "table1_forest"
TITLE = "BAPO minus GRPO, here and in the paper"
METHOD, REFERENCE = "bapo", "grpo"
PLACE = ["task", "model"]
COLUMNS = [*PLACE, "title", "set", "gain", "seeds", "points", "low", "high", "share", "share_low", "share_high"]
HERE, PAPER = "this repository", "the paper"
#: column of the data, those of its interval -> title of its panel
PANELS = {
    ("points", "low", "high"): "points of average accuracy",
    ("share", "share_low", "share_high"): "% of what GRPO gains over its base model",
}


def data(rows: Mapping[Block, ByMethod], pairs: pd.DataFrame) -> pd.DataFrame:
    """Return a row for this run and one for the paper, of every task and model that has both methods.

    rows, pairs: of analysis.results. gain: what GRPO gains over its base model.
    """
    lines = []
    for block, of in rows.items():
        if not {METHOD, REFERENCE} <= of.keys():
            continue
        ours, reference, base = (of[m][AVERAGE] if m in of else {} for m in (METHOD, REFERENCE, BASE))
        here, gain = results.of_pair(pairs, block, METHOD, REFERENCE), {"mean": np.nan, "paper": np.nan, **base}
        line = {"set": HERE, "gain": reference["mean"] - gain["mean"], "seeds": ours["seeds"]}
        line |= dict(zip(("points", "low", "high"), text.ends(here, "difference"), strict=True))
        line |= {share: ours[share] for share in ("share", "share_low", "share_high")}
        theirs = {"set": PAPER, "gain": reference["paper"] - gain["paper"], "share": ours["paper_share"]}
        theirs["points"] = ours["paper"] - reference["paper"]
        place = {"task": block.task, "model": block.model, "title": f"{block.task_title}\n{block.model_title}"}
        lines += [place | each for each in (line, theirs)]
    frame = pd.DataFrame(lines, columns=COLUMNS)
    return frame[frame["points"].notna()].astype({"seeds": "Int64"})


def write(frame: pd.DataFrame, out: Path, note: str = "") -> list[Path]:
    """Write the plot and its data. note: what the scale can show."""
    with style.settings():
        fig = _figure(frame, note) if len(frame) else style.nothing("This study does not have both GRPO and BAPO.")[0]
        return style.save(fig, frame.drop(columns="title"), out, STEM, TITLE)


def _figure(frame: pd.DataFrame, note: str) -> Figure:
    rows = frame.assign(place=frame.groupby(PLACE, sort=False).ngroup())
    rows["y"] = np.arange(len(rows)) + 1.0 * rows["place"]  # a free line between two tasks
    seeds = frame["seeds"].dropna().astype(int)
    both = " and new training seeds" if seeds.min() > 1 else ""
    caption = " ".join(text.words("forest", seeds=text.counted(seeds, "seed"), both=both, note=note))
    fig, panels = style.grid(caption, len(PANELS), len(PANELS), 0.8 + 0.14 * rows["y"].max())
    for axes, (columns, title) in zip(panels, PANELS.items(), strict=True):
        axes.axvline(0, color="#444444", linewidth=0.8, zorder=1)
        for name, colour, mark in ((HERE, style.VERMILLION, "o"), (PAPER, style.BLACK, "x")):
            drawn = rows[rows["set"] == name]
            value, low, high = (drawn[column].astype(float) for column in columns)
            style.whiskers(axes, value, drawn["y"], (low, high), label=name, capsize=0, color=colour, fmt=mark)
        axes.set_ylim(rows["y"].max() + 0.7, -0.7)
        axes.set_yticks([])
        axes.set_xlabel(title)
    panels[0].set_yticks(rows.groupby("place")["y"].mean(), frame["title"].unique())
    panels[0].tick_params(axis="y", length=0)
    panels[0].grid(axis="y", visible=False)
    style.legend(fig, panels)
    return fig
