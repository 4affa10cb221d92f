"""BAPO's variants: curves and, at the end of training, test accuracy (the paper's Figures 6 and 10)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from analysis import probes, reading, results, style
from analysis.figures import frames
from analysis.figures.curves import lines
from analysis.results import AVERAGE, BASE, Result
from analysis.study import Block, Study, evaluated

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Figure 6's columns: title, the methods beside BAPO, how BAPO is called there
COLUMNS = (
    ("periods v and m", re.compile(r"bapo\+[vm]\d+"), "v = {v}, m = {m}"),
    ("parts of the buffer", re.compile(r"bapo_without_x[23]"), "BAPO"),
    ("thresholds of X3", re.compile(r"bapo\+fixed_\w+"), "adaptive"),
)
#: Figure 10's methods
FILTERS = ("bapo+gaussian", "bapo+uniform", "bapo")
WORDS = (
    "Test accuracy of runs that are evaluated: the last checkpoint, mean over benchmarks and seeds, small dots: each "
    "seed, 95% interval for new problems and new seeds; dotted: the base model. "
)
ACCURACY = "test_accuracy"


def figure6_ablations(study: Study) -> tuple[Figure, pd.DataFrame]:
    """Draw above training reward, a column an ablation, and below the test accuracy of the methods evaluated."""
    names = [m for b in study.blocks for m in b.methods if m == "bapo" or any(c.fullmatch(m) for _, c, _ in COLUMNS)]
    study = frames.part(study, methods=names)
    curves, window = frames.smoothed(study, ["reward_mean"])
    ends = accuracies(study)
    frame = _joined([part for b in study.blocks for part in (frames.of_block(curves, b), accuracy_rows(b, ends[b]))])
    caption = (
        f"Above: mean reward of the fresh rollouts at each step, mean over {frames.seed_words(study.blocks)}"
        f"{frames.averaged(window)}; band: lowest to highest seed. v: steps between two refreshes of the rollout "
        "policy, whose reward this is; m: between two re-evaluations. "
        f"{WORDS}{study.note}"
    )
    across = len(COLUMNS)
    fig, panels = style.grid(caption, 2 * across * len(study.blocks), across, 1.9)
    for i, block in enumerate(study.blocks):
        above, under = panels[2 * across * i :][:across], panels[2 * across * i + across :][:across]
        for upper, lower, (name, _, _), labels in zip(above, under, COLUMNS, _labels(block, study), strict=True):
            upper.set_visible(bool(labels))
            lower.set_visible(bool(labels))
            lines(upper, frames.of_block(curves, block), block, "smoothed", labels)
            style.title(upper, f"{name}\n{block.title}")
            dots(lower, block, ends[block], labels)
        style.same_scale([axes for axes in above if axes.get_visible()])
        above[0].set_ylabel("mean reward")
    return fig, frame


def figure10_online_filters(study: Study) -> tuple[Figure, pd.DataFrame]:
    """Draw a row a model: accuracy of held-out problems along training, gradient norm, test accuracy at the end."""
    study = frames.part(study, methods=FILTERS)
    norms, window = frames.smoothed(study, ["gradient_norm"])
    ends = accuracies(study)
    parts, samples = [], 0
    for block in study.blocks:
        for m in block.methods:
            found = probes.read(block, m, study, "probe")
            samples = samples or found.samples
            values = np.stack([correct.mean(axis=1) / found.samples for correct in found.correct])
            columns = {"value": values, "smoothed": values}
            parts.append(frames.by_seed(block, m, np.array(found.steps), columns, measure="held_out_accuracy"))
            parts.append(frames.of_block(norms, block, method=m))
        parts.append(accuracy_rows(block, ends[block]))
    frame = _joined(parts)
    caption = (
        f"Left: share of correct answers to held-out problems, {samples} samples each; star: BAPO's best step by that "
        "measure, which flatters it, as the best of several always does. Middle: norm of the gradient"
        f"{frames.averaged(window)}. Mean over {frames.seed_words(study.blocks)}, band: lowest to highest seed. "
        f"{WORDS}{study.note}"
    )
    fig, panels = style.grid(caption, 3 * len(study.blocks), 3)
    for i, block in enumerate(study.blocks):
        left, middle, right = panels[3 * i : 3 * i + 3]
        labels = {m: "range (BAPO)" if m == "bapo" else frames.short(block.plain_title(m)) for m in block.methods}
        held_out = frames.of_block(frame, block, measure="held_out_accuracy")
        lines(left, held_out.assign(value=100 * held_out["value"]), block, "value", labels)
        if "bapo" in block.methods:
            mean = 100 * frames.wide(frames.of(held_out, method="bapo"), "value").mean(axis=1)
            color = style.method_line("bapo")["color"]
            left.plot(mean.idxmax(), mean.max(), "*", color=color, markersize=11, markeredgecolor="white", zorder=6)
        lines(middle, frames.of_block(norms, block), block, "smoothed", labels)
        middle.set_ylim(0, None)
        dots(right, block, ends[block], labels)
        for axes, name in ((left, "held-out problems, correct (%)"), (middle, "gradient norm")):
            style.title(axes, f"{block.title}\n{name}")
    return fig, frame


def _joined(parts: list[pd.DataFrame]) -> pd.DataFrame:
    import pandas as pd

    return pd.concat(parts, ignore_index=True).astype({"seed": "Int64", "step": "Int64"})


def _labels(block: Block, study: Study) -> list[dict[str, str]]:
    """Return the methods of each column of Figure 6 with what they are called in it."""
    columns = []
    for _, chosen, bapo in COLUMNS:
        labels = {m: frames.short(block.plain_title(m)) for m in block.methods if chosen.fullmatch(m)}
        if "bapo" in block.methods:
            method = reading.config(block.methods["bapo"][0], study).get("method", {})
            labels["bapo"] = bapo.format(**method) if {"v", "m"} <= set(method) else "BAPO"
        columns.append(labels)
    if not any(columns):  # none of the paper's ablations: what there is
        columns[0] = {m: block.plain_title(m) for m in block.methods}
    return columns


# ------------------------------------------------------------------------------------------------ test accuracy


def accuracies(study: Study) -> dict[Block, dict[str, Result]]:
    """Return by block the methods all of whose runs are evaluated, and last the base where it is."""
    known = {(b.task, b.model): results.collect(b, study) for b in evaluated(study).blocks}
    ends = {}
    for b in study.blocks:
        rows = {r.method: r for r in sorted(known.get((b.task, b.model), []), key=lambda r: r.is_base)}
        ends[b] = {m: r for m, r in rows.items() if r.is_base or len(r.seeds) == len(b.methods[m])}
    return ends


def accuracy_rows(block: Block, ends: Mapping[str, Result]) -> pd.DataFrame:
    """Return a row a seed, and one a method with the interval, whose seed is empty. Fractions."""
    import pandas as pd

    rows = []
    for name, row in ends.items():
        same, mean = {**block.keys(name), "measure": ACCURACY}, row.mean(AVERAGE)
        if not row.is_base:
            rows += [same | {"seed": s, "value": v} for s, v in zip(row.seeds, mean.seed_means, strict=True)]
        rows.append(same | {"value": mean.mean, "low": mean.tested.low, "high": mean.tested.high})
    return pd.DataFrame(rows)


def dots(axes: Axes, block: Block, ends: Mapping[str, Result], labels: Mapping[str, str]) -> None:
    """Draw the accuracy of each method of ``labels`` in percent, from the top; its name has the colour of its curve."""
    colours = {m: style.method_line(m, i)["color"] for i, m in enumerate(block.methods)}
    for row, method in enumerate(labels):
        if method in ends:
            mean = ends[method].mean(AVERAGE)
            e, seeds = mean.tested, np.multiply(100, mean.seed_means)
            axes.plot([100 * e.low, 100 * e.high], [row, row], color=colours[method], linewidth=1.2)
            axes.plot(seeds, [row + 0.2] * len(seeds), ".", color=colours[method], markersize=2.5)
            axes.plot(100 * e.mean, row, "o", color=colours[method], markersize=4)
    if BASE in ends:
        axes.axvline(100 * ends[BASE].mean(AVERAGE).mean, color="#444444", linewidth=1.1, linestyle=(0, (1, 1)))
    axes.set_ylim(len(labels) - 0.5, -0.5)
    axes.set_yticks(range(len(labels)), list(labels.values()), fontsize=7)
    for tick, method in zip(axes.get_yticklabels(), labels, strict=True):
        tick.set_color(colours[method])
    axes.grid(axis="y", visible=False)
    axes.set_xlabel("test accuracy (%)")
