"""Accuracy against how far the policy drifts from its rollout policy, a curve a learning rate: beyond the paper."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from analysis import reading, results, style, text
from analysis.figures import frames
from analysis.results import AVERAGE
from analysis.study import Block, StudyFile
from bapo.store.files import STEPS

DRIFT, LEFT = "tv_x1", "minus the reference (points)"
LOOKS = tuple(zip(style.OTHERS, "vos^DPX", strict=True))


def drift(study: StudyFile) -> tuple[Figure, pd.DataFrame]:
    """Return the figure and its data, a row a run. Raises UserError naming the runs that are not finished."""
    reading.require_runs(study)
    frame = pd.DataFrame([row for block in study.blocks for row in _rows(block, study)])
    if frame.empty:
        return style.nothing(f"No run of this study has a partner of {study.reference} with the same seed.")
    curves = sorted(set(zip(frame["rate"], frame["steps"], strict=True)))
    longer = len({steps for _, steps in curves}) > 1
    places = list(dict.fromkeys(zip(frame["task"], frame["model"], frame["family"], strict=True)))
    caption = text.words("drift", seeds=frames.seed_words(study.blocks), note=study.note)[0]
    fig, panels = style.grid(caption, len(places), height=2.4, left=LEFT, sharey=True)
    for axes, (task, model, family) in zip(panels, places, strict=True):
        here = frames.select(frame, task=task, model=model, family=family)
        axes.axhline(0, color=style.DARK, linewidth=0.8)
        for (colour, marker), (rate, steps) in zip(itertools.cycle(LOOKS), curves):
            runs = frames.select(here, rate=rate, steps=steps)
            axes.scatter(runs["drift"], runs["difference"], s=6, color=colour, alpha=0.5, linewidths=0)
            means = runs.groupby("method")[["drift", "mean", "mean_low", "mean_high"]].mean().sort_values("drift")
            label = f"rate {rate:g}" + (f", {steps} steps" if longer else "")
            ends = means["mean_low"], means["mean_high"]
            style.whiskers(axes, means["drift"], means["mean"], ends, "y", color=colour, fmt=f"{marker}-", label=label)
        axes.set_xlim(left=0)
        axes.set_xlabel("total variation from the rollout policy")
        axes.set_title(here["family_title"].iloc[0])
    style.legend(fig, panels)
    return fig, frame.assign(family_title=frame["family_title"].str.replace("\n", ", "))


def _rows(block: Block, study: StudyFile) -> list[dict[str, Any]]:
    """Return a row a run: minus the reference's with its learning rate and steps, or else the plain reference's."""
    rows_of = results.collect(block, study)
    trained = {m: reading.config(cells[0]).get("train", {}) for m, cells in block.methods.items()}
    # they are as configured, whatever a budget lets a run take
    settings = {m: (float(t.get("learning_rate", np.nan)), int(t.get("steps") or 0)) for m, t in trained.items()}
    references = sorted((m for m in settings if m.split("+")[0] == study.reference), key=len)
    rows = []
    for method, cells in block.methods.items():
        family, title = method.split("+")[0], block.plain_title(method)
        other = next((m for m in references if settings[m] == settings[method]), study.reference)
        if family == study.reference or other not in rows_of:
            continue
        difference = results.difference(rows_of[method], rows_of[other], AVERAGE).difference
        rows += [
            {
                **block.keys(method),
                "title": title,
                "family": family,
                "family_title": f"{title.split(', ')[0]}\n{block.title}",
                "rate": settings[method][0],
                "steps": settings[method][1],
                "minus": other,
                "seed": cell.seed,
                "drift": float(reading.table(cell, STEPS, study, [DRIFT])[DRIFT].mean()),
                "difference": 100 * difference.by_seed[cell.seed],
                **text.columns("mean", difference.tested, "low", "high"),
            }
            for cell in cells
            if cell.seed in difference.by_seed
        ]
    return rows
