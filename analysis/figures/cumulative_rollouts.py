"""Responses generated up to each training step, by method (the paper's Figure 9)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from analysis import reading, style, text
from analysis.figures import common
from analysis.study import Block, Study

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

PANEL, GAP = 2.6, 0.65


def figure(study: Study) -> tuple[Figure, pd.DataFrame]:
    """One panel a task and model: mean over seeds, band from the lowest to the highest seed."""
    import pandas as pd

    words = (
        "Responses generated up to each step: fresh rollouts, those that dynamic sampling throws away, and "
        f"re-evaluations; mean over {common.seed_words(study.blocks)}, band: lowest to highest seed."
        f" In brackets: times GRPO's. Methods that generate the same number lie on one line. {study.note}"
    )
    below = style.caption_height(words) + 0.5
    count = len(study.blocks)
    fig = style.figure(0.3 + count * PANEL + (count - 1) * GAP + below)
    grid = fig.subplots(count, 1, squeeze=False)[:, 0]
    rows = [_panel(axes, block, study) for axes, block in zip(grid, study.blocks, strict=True)]
    style.margins(fig, left=0.6, right=2.0, top=0.3, bottom=below, hspace=GAP / PANEL)
    style.caption(fig, words)
    return fig, pd.concat(rows, ignore_index=True)


def _panel(axes, block: Block, study: Study) -> pd.DataFrame:
    import pandas as pd

    rows, totals, lines = [], {}, {}
    for m in block.methods:
        frame = reading.steps(block, m, study, ["fresh_rollouts", "regenerated_rollouts"])
        frame["rollouts"] = frame["fresh_rollouts"] + frame["regenerated_rollouts"]
        steps, values = common.series(frame, "rollouts")
        sums = np.cumsum(values, axis=1)
        totals[m], lines[m] = sums[:, -1].mean(), (steps, sums)
        for cell, seed in zip(block.methods[m], sums, strict=True):
            rows.append(pd.DataFrame({
                "task": block.task, "model": block.model, "method": m, "seed": cell.seed, "step": steps,
                "cumulative_rollouts": seed.astype(np.int64),
            }))  # fmt: skip
    for i, (m, (steps, sums)) in enumerate(lines.items()):
        line = style.method_line(m, i)
        axes.fill_between(steps, sums.min(axis=0), sums.max(axis=0), color=line["color"], alpha=0.18, linewidth=0)
        # of equal lines the first is the widest and lies lowest, so that each stays visible
        equal = sum(np.isclose(totals[o], totals[m], rtol=0.01) for o in list(lines)[:i])
        axes.plot(steps, sums.mean(axis=0), **{**line, "linewidth": max(1.0, (2.6 if i == 0 else 1.8) - 0.6 * equal)})
    last = max(steps[-1] for steps, _ in lines.values())
    common.tidy_steps(axes, last)
    axes.set_ylim(0, None)
    axes.yaxis.set_major_formatter(lambda v, _: f"{v / 1000:g}k" if v >= 1000 else f"{v:g}")
    style.row_title(axes, block.title, 0.08)
    axes.set_xlabel("training step")
    axes.set_ylabel("responses generated")
    style.spread_labels(axes, _labels(block, totals), last, PANEL)
    return pd.concat(rows, ignore_index=True)


def _labels(block: Block, totals: dict[str, float]) -> list[tuple[float, str, str]]:
    """One label for each different total: methods within 1% share a label, in the colour of the first."""
    groups: list[list[str]] = []
    for m in totals:
        for g in groups:
            if np.isclose(totals[g[0]], totals[m], rtol=0.01):
                g.append(m)
                break
        else:
            groups.append([m])
    found = []
    order = list(totals)
    for g in groups:
        value = totals[g[0]]
        times = f" ({value / totals['grpo']:.2f}x)" if totals.get("grpo") else ""
        names = [common.plain_title(block, m) for m in g]
        wrapped = ",\n".join(", ".join(names[i : i + 2]) for i in range(0, len(names), 2))
        colour = style.method_line(g[0], order.index(g[0]))["color"]
        found.append((value, f"{wrapped}\n{text.thousands(value)}{times}", colour))
    return found
