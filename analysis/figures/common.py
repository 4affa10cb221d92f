"""What several figures share: series over seeds, words about seeds, probes, and what chance alone would show."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations
from typing import TYPE_CHECKING

import numpy as np

from analysis import reading
from analysis.study import Block, Study

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes


def series(frame: pd.DataFrame, column: str) -> tuple[np.ndarray, np.ndarray]:
    """(steps [T], values [S, T]) of one method's rows; steps that not every seed has are left out."""
    wide = frame.pivot(index="seed", columns="step", values=column).dropna(axis=1)
    return wide.columns.to_numpy(), wide.to_numpy(dtype=np.float64)


def seed_words(blocks: Sequence[Block], methods: Sequence[str] | None = None) -> str:
    """ "3 seeds", "1 seed" or "3 to 5 seeds" """
    counts = [len(cells) for b in blocks for m, cells in b.methods.items() if methods is None or m in methods]
    number = str(min(counts)) if min(counts) == max(counts) else f"{min(counts)} to {max(counts)}"
    return f"{number} seed{'' if max(counts) == 1 else 's'}"


def plain_title(block: Block, method: str) -> str:
    """A method's name without the table's decoration."""
    return block.method_title(method).lstrip("+").replace(" (Ours)", "").replace("w/o", "without")


def tidy_steps(axes: Axes, last: int) -> None:
    """The step axis: from 0 to the last step, few whole-numbered ticks."""
    from matplotlib.ticker import MaxNLocator

    axes.set_xlim(0, last)
    axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))


# ------------------------------------------------------------------------------------------------ probes


def spaced(steps: Sequence[int], count: int) -> list[int]:
    """At most ``count`` of the probed steps, the first and the last among them, the others nearest to equal spacing."""
    steps = sorted(steps)
    if len(steps) <= count:
        return steps
    wanted = np.linspace(steps[0], steps[-1], count)
    return sorted({min(steps, key=lambda s: (abs(s - w), s)) for w in wanted})


def probed_steps(probes: dict[int, pd.DataFrame]) -> list[int]:
    """The steps that every seed was probed at."""
    return sorted(set.intersection(*(set(p.columns) for p in probes.values())))


def migration(initial: np.ndarray, current: np.ndarray, samples: int) -> np.ndarray:
    """Counts [G+1, G+1] of prompts, row: correct answers of G at the start, column: now. Inputs: integers [n]."""
    counts = np.zeros((samples + 1, samples + 1), dtype=np.int64)
    np.add.at(counts, (initial, current), 1)
    return counts


def degraded(counts: np.ndarray) -> float:
    """Share of the prompts below the diagonal: fewer correct answers now than at the start."""
    return float(np.tril(counts, -1).sum() / counts.sum())


def improved(initial: np.ndarray, current: np.ndarray) -> float:
    """Share of the prompts without a correct answer at the start that have one now; NaN where there was none."""
    hard = initial == 0
    return float((current[hard] > 0).mean()) if hard.any() else float("nan")


def base_pairs(probes: dict[int, pd.DataFrame]) -> list[tuple[np.ndarray, np.ndarray]]:
    """Pairs of independent probes of the SAME base model: step 0 of two different seeds.

    A prompt at 0/8 has rarely a chance of exactly 0, so even an unchanged model "improves" some and loses others. The
    pairs say how many. Empty where there is one seed or the seeds share their samples of the base.
    """
    starts = []
    for frame in probes.values():
        if 0 in frame.columns:
            starts.append(frame[0])
    pairs = []
    for a, b in permutations(starts, 2):
        both = a.index.intersection(b.index)
        x, y = a.loc[both].to_numpy(), b.loc[both].to_numpy()
        if not np.array_equal(x, y):
            pairs.append((x, y))
    return pairs


def tracked(block: Block, method: str, study: Study) -> tuple[dict[int, pd.DataFrame], list[int], int]:
    """(probes by seed, steps that all have, samples a prompt) of the fixed training prompts."""
    probes = reading.probes(block, method, study)
    return probes, probed_steps(probes), next(iter(probes.values())).attrs["samples"]
