"""Probed prompts by how often they are answered, 0/8 to 8/8, before and during training (the paper's Figures 1, 7, 13
and 15), and the share that is never answered."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, cast

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.container import BarContainer
from matplotlib.figure import Figure

from analysis import probes, statistics, style, text
from analysis.figures import frames
from analysis.figures.curves import SHOWN, differences, minus
from analysis.probes import Probes
from analysis.results import BASE
from analysis.statistics import Side
from analysis.study import Block, StudyFile

#: the most matrices in a row of Figure 15
STEPS = 4
#: where the compared bins come from: two probes of one run, of two, or of the base in two runs
WITHIN, ACROSS, UNCHANGED = "within a run", "across seeds", "unchanged base"
MOVED, IMPROVED = "moved", "improved"
#: where the bins come from -> the column of the share; the braces stand for what is counted
COLUMNS = {WITHIN: "{}_within_run", ACROSS: "{}_across_seeds", UNCHANGED: "unchanged_base_across_seeds"}


def _caption(study: StudyFile, read: Collection[Probes], *keys: str, counts: str = "", **fields: str) -> str:
    """Return a caption with ``counts``, and with why seeds cannot be compared where they cannot be."""
    words = frames.caption(study, *keys, samples=next(iter(read)).samples, **fields)
    obstacles = dict.fromkeys(probing.obstacle for probing in read if probing.obstacle)
    hidden = f"Not shown: {'; '.join(obstacles)}." if obstacles else ""
    return " ".join([words, *filter(None, [counts, hidden]), *study.notes])


# ------------------------------------------------------------------------------------------------ Figures 1, 7 and 13


def figure1_accuracy_groups(study: StudyFile) -> tuple[Figure, pd.DataFrame]:
    """Draw GRPO on mathematics, before and after training."""
    return _tracking(frames.subset(study, ("mathematics",), ("grpo",)), MOVED)


def figure7_tracking(study: StudyFile) -> tuple[Figure, pd.DataFrame]:
    """Draw GRPO, DAPO and BAPO on mathematics, along training."""
    return _tracking(frames.subset(study, ("mathematics",), SHOWN), IMPROVED)


def figure13_tracking(study: StudyFile) -> tuple[Figure, pd.DataFrame]:
    """Draw GRPO, DAPO and BAPO on Countdown and geometry, along training."""
    return _tracking(frames.subset(study, ("countdown", "geometry"), SHOWN), IMPROVED)


def _tracking(study: StudyFile, counted: str) -> tuple[Figure, pd.DataFrame]:
    """Draw a row a task and model, a panel a method, a bar a probed step (the first: the base model)."""
    read = {(b, m): probes.read(b, m, study) for b in study.blocks for m in b.methods}
    parts = {place: _bins(*place, probing, counted) for place, probing in read.items()}
    samples, across = next(iter(read.values())).samples, max(len(b.methods) for b in study.blocks)
    shares = "; ".join(
        f"{b.plain_title(m)}, {b.task_title}: {_shares(part, counted)}" for (b, m), part in parts.items()
    )
    caption = _caption(study, read.values(), "bins", counted, "chance", counts=f"{counted.capitalize()}: {shares}.")
    fig, panels = style.grid(caption, across * len(study.blocks), across, 2.5)
    for i, block in enumerate(study.blocks):
        row = style.first(panels[across * i : across * (i + 1)], len(block.methods))
        row[0].set_ylabel("number of prompts")
        for axes, method in zip(row, block.methods, strict=True):
            _stacks(axes, parts[block, method])
            axes.set_title(f"{block.plain_title(method)}: {block.task_title}\n{block.model_title}")
    style.legend(fig, panels[:1], samples + 1, title="correct", fontsize=7, handlelength=1.1, columnspacing=1)
    return fig, pd.concat(parts.values(), ignore_index=True)


def _bins(block: Block, method: str, probing: Probes, counted: str) -> pd.DataFrame:
    """Return how many prompts have 0, 1 .. G correct answers, a row a seed, step and bin, with what is counted.

    Moved: the share of prompts that moved from the first step to the last, which are those shown. Improved: the share
    of the base's 0/G prompts that have a correct answer at a step.
    """

    def moved(initial: np.ndarray, current: np.ndarray) -> float:
        return probes.distance(probes.histogram(initial, probing.samples), probes.histogram(current, probing.samples))

    def across(step: int) -> np.ndarray | list[float]:
        return probing.across(step, moved) if counted == MOVED else probes.improved_across(probing, step)[1]

    steps = (probing.steps[0], probing.steps[-1]) if counted == MOVED else probing.steps
    until = [steps[-1]] * len(steps) if counted == MOVED else steps
    size, value = probing.samples + 1, moved if counted == MOVED else probes.improved
    none = np.full((len(steps), len(probing.seeds)), np.nan)  # [T, S], as the others
    shares: dict[str, Any] = {WITHIN: [probing.within(step, value) for step in until], ACROSS: none, UNCHANGED: none}
    if not probing.obstacle:
        shares |= {ACROSS: [across(step) for step in until], UNCHANGED: [across(0)] * len(steps)}
    counts = [probes.histogram(c, probing.samples) for seed in zip(*map(probing.at, steps), strict=True) for c in seed]
    index = pd.MultiIndex.from_product([probing.seeds, steps, range(size)], names=["seed", "step", "correct"])
    frame = pd.DataFrame({"prompts": np.concatenate(counts)}, index).reset_index()
    for name, column in COLUMNS.items():
        frame[column.format(counted)] = np.repeat(np.transpose(shares[name]).ravel(), size)
    return frame.assign(**block.keys(method), samples=probing.samples)


def _shares(frame: pd.DataFrame, counted: str) -> str:
    """Return the shares at the last step in words: the mean over seeds, the lowest and the highest."""
    last = frames.select(frame, step=frame["step"].max()).groupby("seed").first()
    shares = {name: last[column.format(counted)].dropna() for name, column in COLUMNS.items()}
    return ", ".join(
        f"{name} {share.mean():.0%}" + (f" ({100 * share.min():.0f} to {share.max():.0%})" if len(share) > 1 else "")
        for name, share in shares.items()
        if len(share)
    )


def _stacks(axes: Axes, frame: pd.DataFrame) -> None:
    counts = frame.pivot_table(values="prompts", index="step", columns="correct")
    samples = counts.shape[1] - 1
    fills = [style.VERMILLION, *matplotlib.colormaps["Blues"](np.linspace(0.16, 0.98, samples))]  # 0/G, 1/G .. G/G
    counts = counts.rename(index={0: "base"}, columns=lambda correct: f"{correct}/{samples}")
    look: dict[str, Any] = {"width": 0.78, "edgecolor": "white", "linewidth": 0.3, "rot": 0, "legend": False}
    counts.plot.bar(ax=axes, stacked=True, color=fills, xlabel="training step", **look)
    axes.bar_label(
        cast("BarContainer", axes.containers[0]), fmt="%.0f", label_type="center", fontsize=6.5, color="white"
    )
    axes.grid(axis="x", visible=False)


# ------------------------------------------------------------------------------------------------ the share at 0/G


def unsolved_share(study: StudyFile) -> tuple[Figure, pd.DataFrame]:
    """Draw the share of probed training prompts at 0/G, minus the reference's, a panel a task and model; in points."""
    study = frames.subset(study)
    read = {block: probes.of_block(block, study) for block in study.blocks}
    frame = pd.DataFrame([row for block in read for row in _unsolved(block, read[block], study.reference)])
    if frame["difference"].isna().all():
        return style.nothing(f"No method of this study is compared with {study.reference}.")[0], frame
    samples = max(probing.samples for by_method in read.values() for probing in by_method.values())
    left = minus(study, f"never solved in {samples} tries")
    fig, panels = style.grid(frames.caption(study, "unsolved", samples=samples), len(read), left=left)
    for axes, block in zip(panels, read, strict=True):
        differences(axes, frames.of_block(frame, block), block, "probe")
        axes.set_xlabel("training step", labelpad=1)
        axes.set_title(f"{block.task_title}\n{block.model_title}")
    style.legend(fig, panels, 4, handlelength=3)
    return fig, frame


def _unsolved(block: Block, read: Mapping[str, Probes], reference: str) -> Iterator[dict[str, Any]]:
    """Yield a row a method and step, in percent and points; the base model is the reference's first probe."""
    against = read.get(reference)
    sides = {(m, _probe(p, step)): (step, _never(p, step)) for m, p in read.items() for step in p.steps if step}
    if against and against.steps[0] == 0:
        sides |= {(BASE, _probe(against, step)): (step, _never(against, 0)) for step in against.steps[1:]}
    for (method, probe), (step, side) in sides.items():
        other = sides.get((reference, probe)) if method != reference else None
        differs = statistics.difference(side, other[1]).tested if other else None
        level = {"step": step, "probe": probe, "unsolved": 100 * float(side.tables[0].mean())}
        yield block.keys(method) | level | text.columns("difference", differs, "low", "high")


def _probe(probing: Probes, step: int) -> float:
    """Return the step, or infinity for the last: a budget ends runs at other steps than the reference's."""
    return np.inf if step == probing.steps[-1] else step


def _never(probing: Probes, step: int) -> Side:
    """Return whether each prompt has no correct answer at a step [S, n]."""
    return Side([(np.stack(probing.at(step)) == 0).astype(float)], probing.seeds)


# ------------------------------------------------------------------------------------------------ Figure 15


def figure15_migration(study: StudyFile) -> tuple[Figure, pd.DataFrame]:
    """Draw a row a task and model, a matrix a step: prompts by bin in the base (row) and at the step (column).

    The base's bin is another seed's, so that the first matrix is the unchanged base against itself; with one seed both
    bins come from the same run, as in the paper. The method: BAPO, or the first of a study without it.
    """
    study = frames.subset(study, methods=("bapo",))
    read = {(b, m): probes.read(b, m, study) for b in study.blocks for m in list(b.methods)[:1]}
    parts = {(b, m): _migrations(b, m, probing) for (b, m), probing in read.items()}
    block, method = next(iter(parts))
    caption = _caption(study, read.values(), "migration", "chance", method=block.plain_title(method))
    fig, panels = style.grid(caption, STEPS * len(parts), STEPS, 1.95)
    for i, ((block, _), frame) in enumerate(parts.items()):
        across = frame["compared"].iloc[-1] == ACROSS  # where seeds can be compared
        matrices = frames.select(frame, compared=ACROSS if across else WITHIN).groupby("step")
        row = style.first(panels[STEPS * i : STEPS * (i + 1)], len(matrices))
        for axes, (step, cells) in zip(row, matrices, strict=True):
            axes.tick_params(labelleft=axes is row[0])
            _matrix(axes, f"{f'step {step}' if step else UNCHANGED if across else 'base'}\n{block.task_title}", cells)
        row[0].set_ylabel("correct of another seed's base" if across else "correct before training", labelpad=2)
    return fig, pd.concat(parts.values(), ignore_index=True)


def spaced(steps: Sequence[int], count: int) -> list[int]:
    """Return at most ``count`` of the probed steps, evenly chosen, the first and the last among them."""
    places = np.linspace(0, len(steps) - 1, count).round().astype(int)
    return [sorted(steps)[i] for i in dict.fromkeys(places)]


def _migrations(block: Block, method: str, probing: Probes) -> pd.DataFrame:
    """Return a row a comparison, step and pair of bins: the mean number of prompts over seeds, or pairs of seeds."""

    def matrix(initial: np.ndarray, current: np.ndarray) -> np.ndarray:
        return probes.migration(initial, current, probing.samples)

    parts = []
    for compared, measure in ((WITHIN, probing.within), (ACROSS, probing.across))[: 1 if probing.obstacle else 2]:
        for step in spaced(probing.steps, STEPS):
            table = measure(step, matrix).mean(axis=0)
            initial, current = (axis.ravel() for axis in np.indices(table.shape))
            frame = pd.DataFrame({"initial": initial, "current": current, "prompts": table.ravel()})
            below = probes.degraded(table)
            parts.append(frame.assign(compared=compared, step=step, share_below_diagonal=below))
    return pd.concat(parts, ignore_index=True).assign(**block.keys(method), samples=probing.samples)


def _matrix(axes: Axes, title: str, cells: pd.DataFrame) -> None:
    counts = cells.pivot(index="initial", columns="current", values="prompts").to_numpy()
    totals, g = counts.sum(axis=1, keepdims=True), len(counts) - 1
    share = np.divide(counts, totals, out=np.zeros(counts.shape), where=totals > 0)
    axes.imshow(share, cmap="Blues", vmin=0, vmax=1, aspect="auto")
    axes.axline((0, 0), slope=1, color=style.VERMILLION, linewidth=0.6)
    for (row, column), n in np.ndenumerate(counts):
        if n >= 0.5:
            colour = "white" if share[row, column] > 0.55 else "#222222"
            axes.text(column, row, str(int(n + 0.5)), ha="center", va="center", fontsize=4.8, color=colour)
    ticks = np.arange(0, g + 1, 2 if g > 4 else 1)
    labels = [f"{t}/{g}" for t in ticks]
    axes.set_xticks(ticks, labels, fontsize=6.5)
    axes.set_yticks(ticks, labels, fontsize=6.5)
    axes.grid(visible=False)
    axes.set_xlabel("correct at this step", labelpad=2)
    axes.set_title(f"{title}\nbelow the line: {cells['share_below_diagonal'].iloc[0]:.1%}")
