"""BAPO's variants: curves and, at the end of training, test accuracy (the paper's Figures 6 and 10)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis import probes, results, style
from analysis.figures import frames
from analysis.figures.curves import lines
from analysis.results import AVERAGE, BASE, ByMethod
from analysis.study import Block, StudyFile, evaluated

#: Figure 6's rows: title -> the methods beside BAPO
ABLATIONS = {
    "periods v and m": re.compile(r"bapo\+[vm]\d+"),
    "parts of the buffer": re.compile(r"bapo_without_x[23]"),
    "thresholds of X3": re.compile(r"bapo\+fixed_\w+"),
}
#: Figure 10's methods
FILTERS = ("bapo+gaussian", "bapo+uniform", "bapo")
HELD_OUT, ACCURACY = "held_out_accuracy", "test_accuracy"
#: measure along training -> its name
MEASURES = {
    "reward_mean": "mean reward",
    HELD_OUT: "held-out problems, share correct",
    "gradient_norm": "gradient norm",
}
#: what a row of panels shows: a block, a title, the methods
Row = tuple[Block, str, Sequence[str]]


def figure6_ablations(study: StudyFile) -> tuple[Figure, pd.DataFrame]:
    """Draw a row an ablation: training reward, and the test accuracy of the methods evaluated."""
    named = {m for b in study.blocks for m in b.methods for ablation in ABLATIONS.values() if ablation.fullmatch(m)}
    study = frames.part(study, methods=["bapo", *named])
    rows = [
        (block, name, [*methods, "bapo"])
        for block in study.blocks
        for name, ablation in ABLATIONS.items()
        if (methods := [m for m in block.methods if ablation.fullmatch(m)])
    ]
    frame, averaged = frames.smoothed(study, ["reward_mean"])
    caption = frames.caption(study, "ablations", "ends", averaged=averaged)
    return _draw(study, frame, rows or [(b, "", list(b.methods)) for b in study.blocks], caption)


def figure10_online_filters(study: StudyFile) -> tuple[Figure, pd.DataFrame]:
    """Draw a row a model: accuracy of held-out problems along training, gradient norm, test accuracy at the end."""
    study = frames.part(study, methods=FILTERS)
    norms, averaged = frames.smoothed(study, ["gradient_norm"])
    read = {(b, m): probes.read(b, m, study, "probe") for b in study.blocks for m in b.methods}
    parts = [(_held_out(b, m, probing), frames.of_block(norms, b, method=m)) for (b, m), probing in read.items()]
    samples = next(iter(read.values())).samples
    caption = frames.caption(study, "filters", "ends", samples=samples, averaged=averaged)
    rows = [(b, "", list(b.methods)) for b in study.blocks]
    return _draw(study, pd.concat([frame for pair in parts for frame in pair]), rows, caption)


def _draw(study: StudyFile, frame: pd.DataFrame, rows: Sequence[Row], caption: str) -> tuple[Figure, pd.DataFrame]:
    """Draw rows of panels: the measures of the frame, then test accuracy, which is added to the frame."""
    measures = [measure for measure in MEASURES if measure in set(frame["measure"])]
    ends, across = {b: accuracies(b, study) for b in study.blocks}, len(measures) + 1
    fig, panels = style.grid(caption, across * len(rows), across, 1.9)
    for i, (block, title, methods) in enumerate(rows):
        labels = {m: block.plain_title(m) for m in methods if m in block.methods}
        *curves, right = panels[across * i : across * (i + 1)]
        for axes, measure in zip(curves, measures, strict=True):
            here = frames.of_block(frame, block, measure=measure)
            lines(axes, here, block, "smoothed", labels)
            axes.set_ylabel(MEASURES[measure])
            axes.set_title(f"{title or block.task_title}\n{block.title if title else block.model_title}")
            if measure == HELD_OUT and "bapo" in block.methods:
                mean, look = frames.of(here, method="bapo").groupby("step")["value"].mean(), style.method_line("bapo")
                axes.plot(mean.idxmax(), mean.max(), "*", color=look["color"], markersize=11, zorder=6)
        dots(right, block, ends[block], labels)
    parts = [part for b in study.blocks for part in (frames.of_block(frame, b), accuracy_rows(b, ends[b]))]
    return fig, pd.concat(parts, ignore_index=True).astype({"seed": "Int64", "step": "Int64"})


def _held_out(block: Block, method: str, probing: probes.Probes) -> pd.DataFrame:
    """Return the share of correct answers to held-out problems, a row a seed and step."""
    shares = [correct.mean(axis=1) / probing.samples for correct in probing.correct]
    wide = pd.DataFrame(shares, pd.Index(probing.seeds, name="seed"), pd.Index(probing.steps, name="step"))
    long = wide.stack().rename("value").reset_index()
    return long.assign(**block.keys(method), measure=HELD_OUT, smoothed=long["value"])


# ------------------------------------------------------------------------------------------------ test accuracy


def accuracies(block: Block, study: StudyFile) -> ByMethod:
    """Return the methods all of whose runs are evaluated, and last the base where it is."""
    known = [b for b in evaluated(study).blocks if (b.task, b.model) == (block.task, block.model)]
    rows = results.by_method(results.frame(study.of(known)), block) if known else {}
    order = sorted(rows, key=lambda method: method == BASE)
    return {m: rows[m] for m in order if m == BASE or rows[m][AVERAGE]["seeds"] == len(block.methods[m])}


def accuracy_rows(block: Block, ends: ByMethod) -> pd.DataFrame:
    """Return a row a seed, and one a method with the interval, whose seed is empty. Fractions."""
    rows = []
    for method, result in ((method, of[AVERAGE]["result"]) for method, of in ends.items()):
        same, mean = {**block.keys(method), "measure": ACCURACY}, result.mean(AVERAGE)
        rows += [same | {"seed": s, "value": v} for s, v in zip(result.seeds, mean.seed_means, strict=method != BASE)]
        rows.append(same | {"value": mean.mean, "low": mean.tested.low, "high": mean.tested.high})
    return pd.DataFrame(rows)


def dots(axes: Axes, block: Block, ends: ByMethod, labels: Mapping[str, str]) -> None:
    """Draw the accuracy of each method of ``labels`` in percent, from the top, with its curve's look."""
    looks = {m: style.method_line(m, i) for i, m in enumerate(block.methods)}
    for row, method in enumerate(labels):
        if method in ends:
            mean, colour = ends[method][AVERAGE]["result"].mean(AVERAGE), looks[method]["color"]
            line = {"color": colour, "linestyle": looks[method]["linestyle"], "linewidth": 1.2}
            axes.plot(np.multiply(100, [mean.tested.low, mean.tested.high]), [row, row], **line)
            axes.plot(np.multiply(100, mean.seed_means), [row + 0.2] * len(mean.seed_means), ".", color=colour, ms=2.5)
            axes.plot(100 * mean.mean, row, looks[method].get("marker", "o"), color=colour, markersize=4)
    if BASE in ends:
        axes.axvline(ends[BASE][AVERAGE]["mean"], color="#444444", linewidth=1.1, linestyle=(0, (1, 1)))
    axes.set_ylim(len(labels) - 0.5, -0.5)
    axes.set_yticks(range(len(labels)), list(labels.values()), fontsize=7)
    for tick, method in zip(axes.get_yticklabels(), labels, strict=True):
        tick.set_color(looks[method]["color"])
    axes.grid(axis="y", visible=False)
    axes.set_xlabel("test accuracy (%)")
