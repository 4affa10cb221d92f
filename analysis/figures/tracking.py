"""Training prompts by how often they are answered: 0/8, 1/8 .. 8/8, from the base on (the paper's Figures 7, 13)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from analysis import style
from analysis.figures import common
from analysis.study import Block, Study

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

#: the paper compares the base, GRPO and BAPO; DAPO is shown too where it was run
SHOWN = ("grpo", "dapo", "bapo")
PANEL, GAP = 2.2, 1.2
TOP = 0.9


def shown(block: Block) -> list[str]:
    return [m for m in SHOWN if m in block.methods] or list(block.methods)


def figure(study: Study) -> tuple[Figure, pd.DataFrame]:
    """A row a task and model, a panel a method, a bar a probed step (the first: the base model); red: 0/G."""
    import pandas as pd

    across = max(len(shown(b)) for b in study.blocks)
    data = [[_read(b, m, study) for m in shown(b)] for b in study.blocks]
    samples = data[0][0]["samples"]
    seeds = common.seed_words(study.blocks, [m for b in study.blocks for m in shown(b)])
    words = (
        f"A fixed set of training prompts by the number of correct answers out of {samples}, of the base and during "
        f"training, mean over {seeds}; red: no correct answer. Improved: share of the "
        f"base's 0/{samples} prompts with at least one correct answer at the last step (lowest to highest seed). "
    )
    if any(np.isfinite(d["chance"]) for line in data for d in line):
        words += (
            "Unchanged base: the same share between two independent samplings of the base (step 0 of two seeds), about "
            "the most that chance can give, as the probes of one run share their random numbers. "
        )
    words += study.note
    below = style.caption_height(words) + 0.5
    fig = style.figure(TOP + len(data) * PANEL + (len(data) - 1) * GAP + below)
    grid = fig.subplots(len(data), across, squeeze=False, sharey="row")
    colours = bin_colours(samples)
    for line, block, found in zip(grid, study.blocks, data, strict=True):
        for axes in line[len(found) :]:
            axes.set_visible(False)
        for axes, d in zip(line, found, strict=False):
            _panel(axes, d, colours)
        line[0].set_ylabel("number of prompts")
        style.row_title(line[0], block.title, 0.6)
    style.margins(fig, left=0.62, right=0.72, top=TOP, bottom=below, hspace=GAP / PANEL, wspace=0.08)
    _legend(fig, grid[0, -1], colours, samples)
    style.caption(fig, words)
    return fig, pd.concat([d["frame"] for line in data for d in line], ignore_index=True)


def bin_colours(samples: int) -> list[str]:
    """0/G in vermillion, then light to dark blue."""
    import matplotlib
    from matplotlib.colors import to_hex

    blues = matplotlib.colormaps["Blues"](np.linspace(0.16, 0.98, samples))
    return [style.VERMILLION, *(to_hex(c) for c in blues)]


def _read(block: Block, method: str, study: Study) -> dict:
    import pandas as pd

    probes, steps, samples = common.tracked(block, method, study)
    counts = np.zeros((len(probes), len(steps), samples + 1))  # [S, steps, G+1]
    rows, shares = [], []
    for s, (seed, wide) in enumerate(probes.items()):
        for i, step in enumerate(steps):
            counts[s, i] = np.bincount(wide[step], minlength=samples + 1)
            share = common.improved(wide[steps[0]].to_numpy(), wide[step].to_numpy())
            for correct in range(samples + 1):
                rows.append({
                    "task": block.task, "model": block.model, "method": method, "seed": seed, "step": step,
                    "correct": correct, "samples": samples, "prompts": int(counts[s, i, correct]),
                    "improved_share": share,
                })  # fmt: skip
        shares.append(common.improved(wide[steps[0]].to_numpy(), wide[steps[-1]].to_numpy()))
    pairs = common.base_pairs(probes)
    chance = float(np.mean([common.improved(x, y) for x, y in pairs])) if pairs else float("nan")
    frame = pd.DataFrame(rows).assign(unchanged_base_share=chance)
    return {
        "title": common.plain_title(block, method), "steps": steps, "samples": samples, "counts": counts.mean(axis=0),
        "shares": shares, "chance": chance, "frame": frame,
    }  # fmt: skip


def _panel(axes, d: dict, colours: list[str]) -> None:
    x = np.arange(len(d["steps"]))
    bottom = np.zeros(len(x))
    for correct, fill in enumerate(colours):
        height = d["counts"][:, correct]
        axes.bar(x, height, bottom=bottom, width=0.78, color=fill, edgecolor="white", linewidth=0.3)
        if correct == 0:
            for xi, h in zip(x, height, strict=True):
                low = h < 0.06 * d["counts"][0].sum()  # too flat for a number inside
                y, colour, va = (h * 1.05, "#222222", "bottom") if low else (h / 2, "white", "center")
                axes.text(xi, y, f"{h:.0f}", ha="center", va=va, fontsize=6.5, color=colour)
        bottom += height
    axes.set_xticks(x, ["base" if s == 0 else str(s) for s in d["steps"]])
    axes.set_xlabel("training step")
    axes.grid(axis="x", visible=False)
    axes.set_xlim(-0.5, len(x) - 0.5)
    share = f"{np.mean(d['shares']):.0%}"
    if len(d["shares"]) > 1:
        share += f" ({min(d['shares']):.0%} to {max(d['shares']):.0%})"
    detail = f"improved: {share}"
    if np.isfinite(d["chance"]):
        detail += f"\nunchanged base: {d['chance']:.0%}"
    axes.set_title(d["title"], loc="left", fontweight="bold", pad=26)
    axes.text(0, 1.03, detail, transform=axes.transAxes, fontsize=7.2, va="bottom", linespacing=1.25)


def _legend(fig, axes, colours: list[str], samples: int) -> None:
    from matplotlib.patches import Patch

    handles = [Patch(facecolor=c, label=f"{i}/{samples}") for i, c in reversed(list(enumerate(colours)))]
    place = axes.get_position()
    fig.legend(
        handles=handles, loc="center left", bbox_to_anchor=(place.x1 + 0.005, (place.y0 + place.y1) / 2),
        title="correct", title_fontsize=7.5, handlelength=1.1, handleheight=1.1, labelspacing=0.35,
    )  # fmt: skip
