"""Test curves: accuracy of the kept checkpoints on a benchmark (the paper's Figures 5, 12 and 16)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from analysis import paper, reading, statistics, style
from analysis.figures import common
from analysis.study import Block, Study
from bapo.errors import UserError

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Figure 12's benchmark of each task, by the paper's name
BENCHMARKS = {"mathematics": "amc", "countdown": "cd4", "geometry": "geo3k_test"}
AIME = "aime24"
#: the panels of Figure 5
PAIRS = (("grpo", "bapo"), ("grpo", "bapo+mini"), ("dapo", "bapo"))
#: PPO with triangles, BA-PPO with circles, as in Figure 16
MARKERS = {"ppo": "^", "ba_ppo": "o"}
ACROSS = 3
HEIGHT, GAP = 2.1, 0.8


@dataclass(frozen=True)
class Panel:
    """One benchmark of a block and the methods that are compared on it."""

    block: Block
    benchmark: str
    methods: tuple[str, ...]
    title: str


def figure5_test_curves(study: Study) -> tuple[Figure, pd.DataFrame]:
    """BAPO against GRPO, its mini test against GRPO, BAPO against DAPO, on what stands for AIME 2024."""
    study = _part(study, [m for pair in PAIRS for m in pair])
    panels = []
    for block in study.blocks:
        shown = [pair for pair in PAIRS if all(m in block.methods for m in pair)] or [tuple(block.methods)]
        for pair in shown:
            title = " and ".join(block.plain_title(m) for m in reversed(pair))
            panels.append(Panel(block, _benchmark(block, AIME), pair, title))
    return _draw(panels, study, _on(panels))


def figure12_test_curves(study: Study) -> tuple[Figure, pd.DataFrame]:
    """GRPO, DAPO and BAPO, a panel a task and model, on what stands for AMC, CD-4 and the Geometry3K test."""
    study = _part(study, ("grpo", "dapo", "bapo"))
    panels = []
    for block in study.blocks:
        benchmark = _benchmark(block, BENCHMARKS.get(block.task, ""))
        panels.append(Panel(block, benchmark, tuple(block.methods), f"{block.title}\n{_name(block, benchmark)}"))
    return _draw(panels, study, "")


def figure16_ppo(study: Study) -> tuple[Figure, pd.DataFrame]:
    """PPO and BA-PPO on what stands for AIME 2024, a star at each one's highest point."""
    study = _part(study, tuple(MARKERS))
    panels = [Panel(b, _benchmark(b, AIME), tuple(b.methods), b.title) for b in study.blocks]
    caption = (
        f"{_on(panels)}Star: the highest point of a curve, chosen on the test problems themselves: on new problems the "
        "same checkpoint would mostly lie lower. "
    )
    return _draw(panels, study, caption, stars=True)


def _part(study: Study, methods: Sequence[str]) -> Study:
    """Return the methods of a figure that the study has curves of; all of those where it knows none of the figure's.

    Raises UserError naming every run without them and the command that makes them.
    """
    if not study.curves:
        raise UserError("the study has no test curves; name the methods that need them under 'curves' in its file")
    narrower = common.part(study, methods=[m for m in methods if m in study.curves] or study.curves)
    reading.require_runs(narrower, ("summary.json", "curve/summary.json"))
    return narrower


def _benchmark(block: Block, role: str) -> str:
    """Return the benchmark that plays the part of the paper's; the last one where none does."""
    names = [name for name, _ in block.benchmarks]
    return next((n for n in names if block.roles.get(n, n) == role), names[-1])


def _name(block: Block, benchmark: str) -> str:
    """Its title and, where it stands for one of the paper's, whose part it plays."""
    title, role = dict(block.benchmarks)[benchmark], block.roles.get(benchmark, benchmark)
    printed = paper.match(block.task, block.model, block.paper_model)
    theirs = printed.columns.get(role, role) if printed else role
    return title if role == benchmark or theirs == title else f"{title} (for {theirs})"


def _on(panels: Sequence[Panel]) -> str:
    names = dict.fromkeys(f"{p.block.title}: {_name(p.block, p.benchmark)}" for p in panels)
    return f"{'; '.join(names)}. "


# ------------------------------------------------------------------------------------------------ drawing


def _draw(panels: Sequence[Panel], study: Study, extra: str, stars: bool = False) -> tuple[Figure, pd.DataFrame]:
    import pandas as pd

    curves_of = {p: {m: reading.curves(p.block.methods[m], p.benchmark, study) for m in p.methods} for p in panels}
    samples = sorted({c.samples for curves in curves_of.values() for c in curves.values()})
    caption = (
        f"{extra}Accuracy of the kept checkpoints, {' or '.join(map(str, samples))} samples a problem; step 0: before "
        f"training. Thick: mean over {common.seed_words(study.blocks)}; thin: each seed; band: 95% interval of the "
        f"mean for new problems, these trained models given. {study.note}"
    )
    titled = 0.2 * max(p.title.count("\n") + 1 for p in panels)
    shape = -(-len(panels) // ACROSS), min(ACROSS, max(2, len(panels)))
    fig, grid = style.panels(caption, shape, HEIGHT, GAP + titled, 0.3 + titled, left=0.5, wspace=0.22)
    for axes in grid.flat[len(panels) :]:
        axes.set_visible(False)
    rows = [_panel(axes, p, curves_of[p], stars) for axes, p in zip(grid.flat, panels, strict=False)]
    for line in grid:
        line[0].set_ylabel("accuracy, %")
    if len({(p.block.task, p.block.model, p.benchmark) for p in panels}) == 1:  # the same numbers: one scale
        common.same_scale(grid.flat[: len(panels)])
    common.legend_above(fig, grid.flat[: len(panels)], left=0.5)
    return fig, pd.concat(rows, ignore_index=True).drop_duplicates(ignore_index=True)


def _panel(axes: Axes, panel: Panel, curves: dict[str, reading.Curve], stars: bool) -> pd.DataFrame:
    """Draw it; returns its data in percent, a row a method and step, with a column for each seed."""
    import pandas as pd
    from matplotlib.ticker import MaxNLocator

    rows = []
    order = list(panel.block.methods)
    for method, curve in curves.items():
        steps, accuracy = np.array(curve.steps), 100 * curve.accuracy
        means_of = [statistics.mean_over_seeds(accuracy[:, t]).problems for t in range(len(steps))]
        means, low, high = (np.array([getattr(e, key) for e in means_of]) for key in ("mean", "low", "high"))
        line = style.method_line(method, order.index(method))
        top = 5 if method == "bapo" else 3
        axes.fill_between(steps, low, high, color=line["color"], alpha=0.13, linewidth=0)
        for seed in accuracy.mean(axis=2):
            axes.plot(steps, seed, color=line["color"], linewidth=0.5, alpha=0.7, zorder=2)
        label, marker = panel.block.plain_title(method), MARKERS.get(method) if stars else None
        axes.plot(steps, means, label=label, marker=marker, markersize=4, zorder=top, clip_on=not stars, **line)
        best = int(np.argmax(means))
        if stars:
            look = {"markersize": 13, "color": line["color"], "markeredgecolor": "white", "linestyle": "none"}
            axes.plot(steps[best], means[best], marker="*", zorder=6, **look)
        for t, step in enumerate(curve.steps):
            each = zip(panel.block.methods[method], accuracy[:, t].mean(axis=1), strict=True)
            rows.append(
                {
                    "task": panel.block.task,
                    "model": panel.block.model,
                    "benchmark": panel.benchmark,
                    "method": method,
                    "step": step,
                    "accuracy": means[t],
                    "low": low[t],
                    "high": high[t],
                    "highest": t == best,
                    "problems": len(curve.problems),
                    "samples": curve.samples,
                    **{f"seed_{cell.seed}": value for cell, value in each},
                }
            )
    common.tidy_steps(axes, max(c.steps[-1] for c in curves.values()))
    axes.yaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes.set_title(panel.title, loc="left", fontsize=7.5)
    axes.set_xlabel("training step", labelpad=1)
    return pd.DataFrame(rows)
