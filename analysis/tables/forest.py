"""A forest plot of Table 1: BAPO minus GRPO here, with its interval, and in the paper."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from analysis import style, text
from analysis.results import AVERAGE, BASE

STEM = "table1_forest"
TITLE = "BAPO minus GRPO, here and in the paper"
METHOD, REFERENCE = "bapo", "grpo"
METHODS, PLACE = (BASE, REFERENCE, METHOD), ["task", "model"]
HERE, PAPER = "here", "the paper"
#: column of the data, those of its interval -> title of its panel
PANELS = {
    ("points", "low", "high"): "points of average accuracy",
    ("share", "share_low", "share_high"): "% of what GRPO gains over its base model",
}


def data(frame: pd.DataFrame, pairs: pd.DataFrame) -> pd.DataFrame:
    """Return a row for this run and one for the paper, of every task and model that has both methods.

    frame, pairs: of analysis.results.
    """
    averages, pairs = (rows[rows["benchmark"] == AVERAGE] for rows in (frame, pairs))
    pairs = pairs[(pairs["of"] == METHOD) & (pairs["minus"] == REFERENCE)].set_index(PLACE)
    shares = ["share", "share_low", "share_high"]
    wide = averages.pivot(index=PLACE, columns="method", values=["mean", "paper", "seeds", *shares, "paper_share"])
    wide = wide.reindex(pairs.index, columns=pd.MultiIndex.from_product([wide.columns.levels[0], METHODS])).astype(
        float
    )
    over_base = {name: wide[name][REFERENCE] - wide[name][BASE] for name in ("mean", "paper")}
    # one seed has no interval but over problems
    ours = {"seeds": wide["seeds"][METHOD], "points": pairs["difference"]}
    ours |= {end: pairs[f"difference_{end}"] for end in ("low", "high")}
    ours |= {share: wide[share][METHOD] for share in shares}
    theirs = {"points": wide["paper"][METHOD] - wide["paper"][REFERENCE], "share": wide["paper_share"][METHOD]}
    both = ((HERE, over_base["mean"], ours), (PAPER, over_base["paper"], theirs))
    rows = pd.concat([pd.DataFrame({"set": name, "gain": gain, **columns}) for name, gain, columns in both])
    rows = rows.loc[pairs.index].reset_index()
    return rows[rows["points"].notna()].astype({"seeds": "Int64"})


def write(frame: pd.DataFrame, out: Path, note: str = "") -> list[Path]:
    """Write the plot and its data. note: what the scale can show."""
    with style.settings():
        fig = _figure(frame, note) if len(frame) else style.nothing("This study does not have both GRPO and BAPO.")[0]
        return style.save(fig, frame, out, STEM, TITLE)


def _figure(frame: pd.DataFrame, note: str) -> Figure:
    rows = frame.assign(place=frame.groupby(PLACE, sort=False).ngroup())
    rows["y"] = np.arange(len(rows)) + 1.0 * rows["place"]  # a free line between two tasks
    seeds = frame["seeds"].dropna().astype(int)
    both = " and new training seeds" if seeds.min() > 1 else ""
    caption = " ".join(text.words("forest", seeds=text.counted(seeds, "seed"), both=both, note=note))
    names = [f"{task.capitalize()}\n{model}" for task, model in frame[PLACE].drop_duplicates().to_numpy()]
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
    panels[0].set_yticks(rows.groupby("place")["y"].mean(), names)
    panels[0].tick_params(axis="y", length=0)
    panels[0].grid(axis="y", visible=False)
    style.legend(fig, panels)
    return fig
