"""Accuracy against how far the policy drifts from its rollout policy, a curve a learning rate: beyond the paper."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np

from analysis import reading, results, style, text
from analysis.figures import frames
from analysis.results import AVERAGE
from bapo.store.files import STEPS

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from analysis.study import Block, Study

DRIFT = "tv_x1"
COLOURS = (style.SKY, style.BLUE, style.ORANGE, style.VERMILLION, style.PURPLE, style.GREEN)
LOOKS = tuple(zip(COLOURS, "vos^DP", strict=True))


def drift(study: Study) -> tuple[Figure, pd.DataFrame]:
    """Return the figure and its data, a row a run."""
    import pandas as pd

    reading.require_runs(study)
    frame = pd.DataFrame([row for block in study.blocks for row in _rows(block, study)])
    if frame.empty:
        return style.nothing(f"No run of this study has a partner of {study.reference} with the same seed.")
    curves = sorted(set(zip(frame["rate"], frame["steps"], strict=True)))
    longer = len({steps for _, steps in curves}) > 1
    places = list(dict.fromkeys(zip(frame["task"], frame["model"], frame["family"], strict=True)))
    caption = (
        "Average accuracy minus the reference's run of the same seed (learning rate, steps), against the total "
        f"variation from the rollout policy on fresh groups ({DRIFT}), mean over the run. Small: one run; large: mean "
        "over seeds with its 95% interval over problems and seeds. Lines join the runs of one rate and number of "
        f"steps; {frames.seed_words(study.blocks)}. {study.note}"
    )
    fig, panels = style.grid(caption, len(places), max(2, min(3, len(places))), 2.4)
    for axes, (task, model, family) in zip(panels, places, strict=True):
        here = frames.of(frame, task=task, model=model, family=family)
        axes.axhline(0, color="#444444", linewidth=0.8)
        for (colour, marker), (rate, steps) in zip(itertools.cycle(LOOKS), curves):
            runs = frames.of(here, rate=rate, steps=steps)
            axes.scatter(runs["drift"], runs["difference"], s=6, color=colour, alpha=0.5, linewidths=0)
            means = runs.groupby("method")[["drift", "mean", "mean_low", "mean_high"]].mean().sort_values("drift")
            spread = [means["mean"] - means["mean_low"], means["mean_high"] - means["mean"]]
            look: dict[str, Any] = {"color": colour, "capsize": 2, "markersize": 4.5, "linewidth": 1.1}
            label = f"rate {rate:g}" + (f", {steps} steps" if longer else "")
            axes.errorbar(means["drift"], means["mean"], yerr=spread, fmt=f"{marker}-", label=label, **look)
        axes.set_xlim(left=0)
        axes.set_xlabel("total variation from the rollout policy")
        style.title(axes, here["family_title"].iloc[0])
    style.same_scale(panels)
    panels[0].set_ylabel("minus the reference (points)")
    style.legend(fig, panels)
    return fig, frame.assign(family_title=frame["family_title"].str.replace("\n", ", "))


def partner(block: Block, method: str, study: Study) -> str:
    """Return the reference's method with the learning rate and steps of ``method``; without one the reference itself.

    A run that ends with a budget has the steps that the setting gives, not those it took.
    """
    wanted = _setting(block, method, study)
    ours = [m for m in block.methods if _family(m) == study.reference]
    return min((m for m in ours if _setting(block, m, study) == wanted), key=len, default=study.reference)


def _family(method: str) -> str:
    return method.split("+")[0]


def _setting(block: Block, method: str, study: Study) -> tuple[float, int]:
    """(learning rate, steps) of a method's configuration."""
    train = reading.config(block.methods[method][0], study).get("train", {})
    return float(train.get("learning_rate", np.nan)), int(train.get("steps") or 0)


def _rows(block: Block, study: Study) -> list[dict[str, Any]]:
    rows_of = {r.method: r for r in results.collect(block, study)}
    rows = []
    for method in block.methods:
        other = partner(block, method, study)
        pair = results.paired(rows_of[method], rows_of[other], AVERAGE) if other in rows_of else None
        family = _family(method)
        if family == study.reference or pair is None:
            continue
        rate, steps = _setting(block, method, study)
        title = block.plain_title(method).split(", ")[0]  # of the method without its variants
        for cell in block.methods[method]:
            if cell.seed not in pair.by_seed:
                continue
            moved = reading.table(cell, STEPS, study, [DRIFT])[DRIFT]
            rows.append(
                {
                    **block.keys(method),
                    "title": block.plain_title(method),
                    "family": family,
                    "family_title": f"{title}\n{block.title}",
                    "rate": rate,
                    "steps": steps,
                    "minus": other,
                    "seed": cell.seed,
                    "drift": float(moved.mean()),
                    "difference": 100 * pair.by_seed[cell.seed],
                    "mean": 100 * pair.difference.mean,
                    **text.points(pair.difference.tested, "low", "high", prefix="mean_"),
                }
            )
    return rows
