"""BAPO's variants: test accuracy at the end, and curves of the online filters (the paper's Figures 6 and 10)."""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis import probes, results, style
from analysis.figures import frames
from analysis.figures.curves import lines
from analysis.results import AVERAGE, BASE, ByMethod
from analysis.study import Block, StudyFile, evaluated
from bapo.errors import UserError

#: Figure 6's methods beside BAPO: periods v and m, parts of the buffer, thresholds of X3
ABLATIONS = re.compile(r"bapo\+[vm]\d+|bapo_without_x[23]|bapo\+fixed_\w+")
#: Figure 10's methods
FILTERS = ("bapo+gaussian", "bapo+uniform", "bapo")
HELD_OUT, ACCURACY = "held_out_accuracy", "test_accuracy"
#: measure along training -> its name
MEASURES = {HELD_OUT: "held-out problems, share correct", "gradient_norm": "gradient norm"}


def figure6_ablations(study: StudyFile) -> tuple[Figure, pd.DataFrame]:
    """Draw the test accuracy of BAPO and its ablations, a panel a model."""
    variants = {m for b in study.blocks for m in b.methods if ABLATIONS.fullmatch(m)}
    study = frames.subset(study, methods=["bapo", *variants])
    ends = {b: accuracies(b, study) for b in study.blocks}
    if not any({*by_method} - {BASE} for by_method in ends.values()):
        raise UserError(f"{study.name}: no method of it is evaluated in all seeds; {study.command}")
    highest = max(len(b.methods) for b in study.blocks)
    caption = frames.caption(study, "ablations", "ends")
    fig, panels = style.grid(caption, len(study.blocks), 1, 0.3 + 0.24 * highest)
    for axes, block in zip(panels, study.blocks, strict=True):
        dots(axes, block, ends[block], {m: block.plain_title(m) for m in block.methods})
        axes.set_title(block.title)
    frame = pd.concat([accuracy_rows(b, ends[b]) for b in study.blocks], ignore_index=True)
    return fig, frame.astype({"seed": "Int64"})


def figure10_online_filters(study: StudyFile) -> tuple[Figure, pd.DataFrame]:
    """Draw a row a model: accuracy of held-out problems along training, gradient norm, test accuracy at the end."""
    study = frames.subset(study, methods=FILTERS)
    norms, averaged = frames.smoothed(study, ["gradient_norm"])
    read = {(b, m): probes.read(b, m, study, "probe") for b in study.blocks for m in b.methods}
    parts = [(_held_out(b, m, probing), frames.of_block(norms, b, method=m)) for (b, m), probing in read.items()]
    frame, samples = pd.concat([part for pair in parts for part in pair]), next(iter(read.values())).samples
    caption = frames.caption(study, "filters", "ends", samples=samples, averaged=averaged)
    ends, across = {b: accuracies(b, study) for b in study.blocks}, len(MEASURES) + 1
    fig, panels = style.grid(caption, across * len(study.blocks), across, 1.9)
    for i, block in enumerate(study.blocks):
        labels = {m: block.plain_title(m) for m in block.methods}
        *curves, right = panels[across * i : across * (i + 1)]
        for axes, measure in zip(curves, MEASURES, strict=True):
            here = frames.of_block(frame, block, measure=measure)
            lines(axes, here, block, "smoothed", labels)
            axes.set_ylabel(MEASURES[measure])
            axes.set_title(f"{block.task_title}\n{block.model_title}")
            if measure == HELD_OUT and "bapo" in block.methods:
                mean = frames.select(here, method="bapo").groupby("step")["value"].mean()
                colour = style.method_line("bapo")["color"]
                axes.plot(mean.idxmax(), mean.max(), "*", color=colour, markersize=11, zorder=6)
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
    blocks = [b for b in evaluated(study).blocks if (b.task, b.model) == (block.task, block.model)]
    rows = results.by_method(results.frame(study.of(blocks)), block) if blocks else {}
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
    """Draw the accuracy of each method of ``labels`` in percent, from the top, with its curve's look in the block.

    ends: of :func:`accuracies`; labels: method -> its name on the axis.
    """
    looks = {m: style.method_line(m, i) for i, m in enumerate(block.methods)}
    for row, method in enumerate(labels):
        if method in ends:
            mean, colour = ends[method][AVERAGE]["result"].mean(AVERAGE), looks[method]["color"]
            line = {"color": colour, "linestyle": looks[method]["linestyle"], "linewidth": 1.2}
            axes.plot(np.multiply(100, [mean.tested.low, mean.tested.high]), [row, row], **line)
            axes.plot(np.multiply(100, mean.seed_means), [row + 0.2] * len(mean.seed_means), ".", color=colour, ms=2.5)
            axes.plot(100 * mean.mean, row, looks[method].get("marker", "o"), color=colour, markersize=4)
    if BASE in ends:
        axes.axvline(ends[BASE][AVERAGE]["mean"], color=style.DARK, linewidth=1.1, linestyle=(0, (1, 1)))
    axes.set_ylim(len(labels) - 0.5, -0.5)
    axes.set_yticks(range(len(labels)), list(labels.values()), fontsize=7)
    for tick, method in zip(axes.get_yticklabels(), labels, strict=True):
        tick.set_color(looks[method]["color"])
    axes.grid(axis="y", visible=False)
    axes.set_xlabel("test accuracy (%)")
