"""The chance that one of k samples is correct, on the test benchmarks, of the base and of every method."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from analysis import reading, results, statistics, style, text
from analysis.figures import frames
from analysis.figures.curves import band

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pandas as pd
    from matplotlib.figure import Figure

    from analysis.study import Block, Study

#: the numbers of samples, where an evaluation has as many
TRIES = (1, 2, 4, 8, 16, 32)


def pass_at_k(study: Study) -> tuple[Figure, pd.DataFrame]:
    """Draw a panel a benchmark; in percent."""
    import pandas as pd

    reading.require_runs(study)
    frame = pd.DataFrame([row for block in study.blocks for row in _rows(block, study)])
    places = [(block, name, title) for block in study.blocks for name, title in block.benchmarks]
    across = max(2, min(3, len(places)))
    fig, panels = style.grid(frames.caption(study, "pass_at_k"), len(places), across, 2.5)
    for axes, (block, benchmark, title) in zip(panels, places, strict=True):
        for method, rows in frames.of_block(frame, block, benchmark=benchmark).groupby("method", sort=False):
            label = "base model" if method == results.BASE else block.plain_title(method)
            band(axes, block, method, rows["k"], rows[["mean", "low", "high"]].to_numpy().T, label)
        axes.set_xscale("log", base=2)
        axes.set_xticks(TRIES, map(str, TRIES))
        axes.set_xlabel("k", labelpad=1)
        axes.set_title(f"{block.title}\n{title}")
    for axes in panels[::across]:
        axes.set_ylabel("pass@k (%)")
    style.legend(fig, panels, 3)
    return fig, frame


def _rows(block: Block, study: Study) -> Iterator[dict[str, Any]]:
    """Yield a row a method, benchmark and k: the mean over seeds with its interval for new problems."""
    for result in results.collect(block, study):
        for name, found in result.outcomes.items():
            counts = found.correct.sum(axis=2)  # [S, n]
            for k in (k for k in TRIES if k <= found.samples):
                chances = np.stack([statistics.pass_at_k(seed, found.samples, k) for seed in counts])
                mean = statistics.mean_over_seeds(chances).problems
                keys = {**block.keys(result.method), "benchmark": name, "k": k}
                yield keys | text.points(mean, "mean", "low", "high")
