"""Training prompts by how often they are answered: 0/8, 1/8 .. 8/8, from the base on (the paper's Figures 7, 13)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from analysis import probes, style
from analysis.figures import common, probed
from analysis.study import Block, Study

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

#: the paper compares the base, GRPO and BAPO; DAPO is shown too where it was run
SHOWN = ("grpo", "dapo", "bapo")
PANEL, GAP = 2.2, 1.5
TOP = 1.05
FAIR = (
    "That count has no fair chance level: the probes of one run can share their random numbers, and an unchanged model "
    "would then repeat its answers. Across seeds: of the prompts at 0/{samples} in ANOTHER seed's probe of the base, "
    "the share with a correct answer at the last step of the seed's own run; unchanged base: with a correct answer of "
    "the base in the seed's own probe, which is what sampling it again shows. What training did is the difference."
)


def figure7_tracking(study: Study) -> tuple[Figure, pd.DataFrame]:
    """Mathematics."""
    return _draw(common.part(study, ("mathematics",), SHOWN))


def figure13_tracking(study: Study) -> tuple[Figure, pd.DataFrame]:
    """Countdown and geometry."""
    return _draw(common.part(study, ("countdown", "geometry"), SHOWN))


def _draw(study: Study) -> tuple[Figure, pd.DataFrame]:
    """Draw a row a task and model, a panel a method, a bar a probed step (the first: the base model); red: 0/G."""
    import pandas as pd

    data = [[_read(b, m, study) for m in b.methods] for b in study.blocks]
    samples = data[0][0]["samples"]
    seeds = common.seed_words(study.blocks)
    caption = (
        f"A fixed set of training prompts by the number of correct answers out of {samples}, of the base and during "
        f"training, mean over {seeds}; red: no correct answer. Improved: share of the base's 0/{samples} prompts with "
        "at least one correct answer at the last step (lowest to highest seed). Within a run, as the paper counts: "
        "base and last step of the same run. "
    )
    rows = zip(study.blocks, data, strict=True)
    named = [(f"{d['title']} on {block.title}", d["probes"]) for block, line in rows for d in line]
    caption += probed.chance_words(named, FAIR.format(samples=samples))
    caption += study.note
    shape = len(data), max(map(len, data))
    fig, grid = style.panels(caption, shape, PANEL, GAP, TOP, left=0.62, right=0.72, wspace=0.08, sharey="row")
    colours = bin_colours(samples)
    for line, block, found in zip(grid, study.blocks, data, strict=True):
        for axes in line[len(found) :]:
            axes.set_visible(False)
        for axes, d in zip(line, found, strict=False):
            _panel(axes, d, colours)
        line[0].set_ylabel("number of prompts")
        style.row_title(
            line[0], block.title, 0.75, f"   above the bars: share of the 0/{samples} prompts that improved"
        )
    _legend(fig, grid[0, -1], colours, samples)
    return fig, pd.concat([d["frame"] for line in data for d in line], ignore_index=True)


def bin_colours(samples: int) -> list[str]:
    """0/G in vermillion, then light to dark blue."""
    import matplotlib
    from matplotlib.colors import to_hex

    blues = matplotlib.colormaps["Blues"](np.linspace(0.16, 0.98, samples))
    return [style.VERMILLION, *(to_hex(c) for c in blues)]


def _read(block: Block, method: str, study: Study) -> dict:
    found = probes.read(block, method, study)
    steps, samples = found.steps, found.samples
    within = np.stack([found.within(step, probes.improved) for step in steps])  # [T, S]
    none = (float("nan"), [float("nan")] * len(found.seeds))
    across = [none if found.obstacle else probes.improved_across(found, step) for step in steps]
    shares = {
        "improved_within_run": within,
        "improved_across_seeds": np.array([by_seed for _, by_seed in across]),
        "unchanged_base_across_seeds": np.array([across[0][1]] * len(steps)),
    }
    counts, frame = probed.bins(block, method, found, steps, shares)
    return {
        "title": block.plain_title(method),
        "steps": steps,
        "samples": samples,
        "counts": counts.mean(axis=1),
        "within": (_mean(within[-1]), list(within[-1])),
        "across": across[-1],
        "unchanged": across[0],
        "probes": found,
        "frame": frame,
    }


def _mean(values: np.ndarray) -> float:
    """Over the seeds that have prompts at 0/G."""
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else float("nan")


def _share(shares: tuple[float, list[float]]) -> str:
    """Return a share over seeds, from the lowest to the highest."""
    mean, by_seed = shares[0], [x for x in shares[1] if np.isfinite(x)]
    if not by_seed:
        return "no such prompt"
    return f"{mean:.0%}" + (f" ({100 * min(by_seed):.0f} to {max(by_seed):.0%})" if len(by_seed) > 1 else "")


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
    detail = f"within a run: {_share(d['within'])}"
    if not d["probes"].obstacle:
        detail += f"\nacross seeds: {_share(d['across'])}\nunchanged base: {_share(d['unchanged'])}"
    style.panel_title(axes, d["title"], detail)


def _legend(fig, axes, colours: list[str], samples: int) -> None:
    from matplotlib.patches import Patch

    handles = [Patch(facecolor=c, label=f"{i}/{samples}") for i, c in reversed(list(enumerate(colours)))]
    place = axes.get_position()
    fig.legend(
        handles=handles,
        loc="center left",
        bbox_to_anchor=(place.x1 + 0.005, (place.y0 + place.y1) / 2),
        title="correct",
        title_fontsize=7.5,
        handlelength=1.1,
        handleheight=1.1,
        labelspacing=0.35,
    )
