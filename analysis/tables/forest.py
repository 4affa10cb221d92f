"""A forest plot of Table 1: BAPO minus GRPO here, with its interval, and in the paper.

Each set of base models is a set of rows. To draw the sets of several runs together, give the data behind their plots;
of two rows for the same set and task the later file's is drawn:

    python -m analysis.tables.forest FOREST.csv ... OUT
"""

from __future__ import annotations

import itertools
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from analysis import style, text
from analysis.results import AVERAGE, BASE

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

STEM = "table1_forest"
TITLE = "BAPO minus GRPO, here and in the paper"
METHOD, REFERENCE = "bapo", "grpo"
HERE, PAPER = "here", "the paper"
KEYS = ["set", "task", "model"]
#: looks of the sets of base models, this run's first
LOOKS = ((style.VERMILLION, "o"), (style.BLUE, "s"), (style.SKY, "D"), (style.GREEN, "^"), (style.PURPLE, "v"))
#: column of the data, those of its interval -> title of its panel
PANELS = {
    ("points", "low", "high"): "points of average accuracy",
    ("share", "share_low", "share_high"): "% of what GRPO gains over its base model",
}


def data(averages: pd.DataFrame, differences: pd.DataFrame) -> pd.DataFrame:
    """Return a row for this run and one for the paper, of every task and model that has both methods.

    averages, differences: the content of table1.csv and table1_differences.csv. Shares take GRPO's gain as exact.
    """
    import pandas as pd

    averages, differences = (frame[frame["benchmark"] == AVERAGE] for frame in (averages, differences))
    rows = []
    for (task, model), methods in averages.groupby(["task", "model"], sort=False):
        pairs = differences.query("task == @task and model == @model").set_index(["a", "b"])
        if (REFERENCE, METHOD) not in pairs.index:
            continue
        methods, pair = methods.set_index("method"), pairs.loc[(REFERENCE, METHOD)]
        place, printed = {"task": task, "model": model}, methods["paper"].astype(float)
        here = (-pair["difference"], *_interval(pair))
        rows.append({"set": HERE, **place, "seeds": int(methods["seeds"][METHOD]), **_numbers(methods["mean"], *here)})
        rows.append({"set": PAPER, **place, **_numbers(printed, printed[METHOD] - printed[REFERENCE])})
    frame = pd.DataFrame(rows, columns=[*KEYS, "seeds", "gain", *(name for names in PANELS for name in names)])
    return frame[frame["points"].notna()].astype({"seeds": "Int64"})


def _interval(pair: pd.Series) -> tuple[float, float]:
    """Return the interval of BAPO minus GRPO; the table has the other sign. One seed has none but over problems."""
    suffix = "problems_and_seeds" if np.isfinite(pair["low_problems_and_seeds"]) else "problems"
    return -pair[f"high_{suffix}"], -pair[f"low_{suffix}"]


def _numbers(accuracy: pd.Series, *points: float) -> dict[str, float]:
    """Return GRPO's gain over the base, and a difference with its interval in points and as shares of that gain."""
    gain = accuracy[REFERENCE] - accuracy.get(BASE, np.nan)
    scale = 100 / gain if gain > 0 else np.nan
    in_points, in_shares = PANELS
    shares = [scale * value for value in points]
    return {"gain": gain, **dict(zip(in_points, points, strict=False)), **dict(zip(in_shares, shares, strict=False))}


def write(frame: pd.DataFrame, out: Path, note: str = "") -> list[Path]:
    """Write the plot and its data. note: what the scale can show."""
    with style.settings():
        fig = _figure(frame, note) if len(frame) else style.nothing("This study does not have both GRPO and BAPO.")[0]
        return style.save(fig, frame, out, STEM, TITLE)


def _figure(frame: pd.DataFrame, note: str) -> Figure:
    sets = sorted(dict.fromkeys(frame["set"]), key=lambda name: (name == PAPER, name != HERE))
    looks = {**dict(zip(sets, itertools.cycle(LOOKS), strict=False)), PAPER: (style.BLACK, "x")}
    places = list(dict.fromkeys(zip(frame["task"], frame["model"], strict=True)))
    orders = [places.index(place) for place in zip(frame["task"], frame["model"], strict=True)]
    rows = frame.assign(place=orders, order=frame["set"].map(sets.index)).sort_values(["place", "order"])
    rows["y"] = np.arange(len(rows)) + 1.0 * rows["place"]  # a free line between two tasks
    seeds = frame["seeds"].dropna().astype(int)
    caption = (
        f"BAPO minus GRPO, {text.counted(seeds, 'seed')}. Bars: 95% interval for new problems"
        f"{' and new training seeds' if seeds.min() > 1 else ''}. Crosses: the paper. {note}"
    )
    models = Counter(task for task, _ in places)
    names = [f"{task.capitalize()}\n{model}" if models[task] > 1 else task.capitalize() for task, model in places]
    fig, panels = style.grid(caption, len(PANELS), len(PANELS), 0.8 + 0.14 * rows["y"].max())
    for axes, (columns, title) in zip(panels, PANELS.items(), strict=True):
        axes.axvline(0, color="#444444", linewidth=0.8, zorder=1)
        for name in sets:
            here = rows[rows["set"] == name]
            value, low, high = (here[column].astype(float) for column in columns)
            colour, marker = looks[name]
            style.whiskers(axes, value, here["y"], (low, high), color=colour, fmt=marker, label=name, capsize=0)
        axes.set_ylim(rows["y"].max() + 0.7, -0.7)
        axes.set_yticks([])
        axes.set_xlabel(title)
    panels[0].set_yticks(rows.groupby("place")["y"].mean(), names)
    panels[0].tick_params(axis="y", length=0)
    panels[0].grid(axis="y", visible=False)
    style.legend(fig, panels)
    return fig


def main(files: Sequence[str]) -> None:
    """Draw the sets of several runs: the data behind their plots, then the folder to write to."""
    import pandas as pd

    *behind, out = files
    frame = pd.concat([pd.read_csv(path) for path in behind]).drop_duplicates(KEYS, keep="last")
    print(*write(frame, Path(out)))


if __name__ == "__main__":
    main(sys.argv[1:])
