"""Training prompts in each accuracy group, before and after GRPO (the paper's Figure 1)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from analysis import probes, style
from analysis.figures import common, probed
from analysis.study import Block, Study

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PANEL, GAP = 2.5, 0.95
TOP = 0.42
FAIR = (
    "Across seeds: the same between the base in another seed's probe and the trained model in the seed's own probe; "
    "unchanged base: between the base in another seed's probe and the base in the seed's own, which is what sampling "
    "alone shows. Both have independent random numbers on their two sides. The probes of one run can share theirs, and "
    "an unchanged model would then not move at all, so the number within a run has no fair chance level."
)


def figure1_accuracy_groups(study: Study) -> tuple[Figure, pd.DataFrame]:
    """Draw a panel a model: how many probed training prompts are answered 0 .. G times of G at step 0 and last."""
    import pandas as pd

    study = common.part(study, ("mathematics",), ("grpo",))
    data = [_read(b, m, study) for b in study.blocks for m in b.methods]
    caption = (
        f"A fixed set of training prompts by the number of correct answers out of {data[0]['samples']} before and "
        f"after training, mean over {common.seed_words(study.blocks)}, lines from lowest to highest seed. Moved within "
        "a run: half the sum of the differences, at least this share of the prompts has changed its group. "
    )
    caption += probed.chance_words([(d["title"], d["probes"]) for d in data], FAIR)
    caption += study.note
    fig, grid = style.panels(caption, (len(data), 1), PANEL, GAP, TOP, left=0.6)
    for axes, d in zip(grid[:, 0], data, strict=True):
        _panel(axes, d)
    return fig, pd.concat([d["frame"] for d in data], ignore_index=True)


def _read(block: Block, method: str, study: Study) -> dict:
    found = probes.read(block, method, study)
    samples, ends = found.samples, (found.steps[0], found.steps[-1])

    def moved(initial: np.ndarray, current: np.ndarray) -> float:
        return probes.distance(probes.histogram(initial, samples), probes.histogram(current, samples))

    shares = {"moved_within_run": found.within(ends[1], moved)}  # [S], as the next two
    for name, step in (("moved_across_seeds", ends[1]), ("unchanged_base_across_seeds", 0)):
        shares[name] = np.full(len(found.seeds), np.nan) if found.obstacle else found.across(step, moved)
    within, across, unchanged = (float(np.mean(share)) for share in shares.values())
    counts, frame = probed.bins(block, method, found, ends, {k: np.stack([v, v]) for k, v in shares.items()})
    return {
        "title": block.title,
        "method": method,
        "name": block.plain_title(method),
        "counts": dict(zip(ends, counts, strict=True)),
        "samples": samples,
        "within": within,
        "across": across,
        "unchanged": unchanged,
        "probes": found,
        "frame": frame,
    }


def _panel(axes: Axes, d: dict) -> None:
    x, width = np.arange(d["samples"] + 1), 0.4
    after = style.method_line(d["method"])["color"]
    first, last = d["counts"]
    labels = ("base" if first == 0 else f"step {first}", f"after {d['name']}, step {last}")
    for i, (label, colour) in enumerate(zip(labels, ("#B9B9B9", after), strict=True)):
        counts = d["counts"][(first, last)[i]]
        place, mean = x + (i - 0.5) * width, counts.mean(axis=0)
        axes.bar(place, mean, width * 0.94, color=colour, label=label)
        top = counts.max(axis=0)
        if len(counts) > 1:
            axes.vlines(place, counts.min(axis=0), top, color="#333333", linewidth=0.8)
        for xi, m, t in zip(place, mean, top, strict=True):
            axes.annotate(f"{m:.0f}", (xi, t), (0, 2), ha="center", fontsize=6.5, **style.ABOVE)
    axes.set_xticks(x, [f"{i}/{d['samples']}" for i in x])
    axes.set_xlim(-0.6, d["samples"] + 0.6)
    axes.set_ylim(0, max(c.max() for c in d["counts"].values()) * 1.12)
    axes.grid(axis="x", visible=False)
    axes.set_xlabel("correct answers of a prompt")
    axes.set_ylabel("training prompts")
    axes.legend(loc="upper right")
    detail = f"moved within a run: {d['within']:.0%}"
    if not d["probes"].obstacle:
        detail += f"   across seeds: {d['across']:.0%}   unchanged base: {d['unchanged']:.0%}"
    style.panel_title(axes, d["title"], detail)
