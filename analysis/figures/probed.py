"""What the figures of probes share: the steps shown, and what their captions say about chance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from analysis.probes import Probes, histogram
from analysis.study import Block

if TYPE_CHECKING:
    import pandas as pd


def spaced(steps: Sequence[int], count: int) -> list[int]:
    """At most ``count`` of the probed steps, the first and the last among them, the others nearest to equal spacing."""
    steps = sorted(steps)
    if len(steps) <= count:
        return steps
    wanted = np.linspace(steps[0], steps[-1], count)
    return sorted({min(steps, key=lambda s: (abs(s - w), s)) for w in wanted})


def bins(
    block: Block, method: str, probes: Probes, steps: Sequence[int], shares: Mapping[str, np.ndarray]
) -> tuple[np.ndarray, pd.DataFrame]:
    """Return how many prompts have 0, 1 .. G correct answers [T, S, G+1] at the steps, and the same as a table.

    shares: further columns of the table, [T, S].
    """
    import pandas as pd

    counts = np.stack([[histogram(x, probes.samples) for x in probes.at(step)] for step in steps])
    frame = pd.DataFrame(
        [
            {
                **block.keys(method),
                "seed": seed,
                "step": step,
                "correct": correct,
                "samples": probes.samples,
                "prompts": int(counts[i, s, correct]),
                **{name: share[i, s] for name, share in shares.items()},
            }
            for s, seed in enumerate(probes.seeds)
            for i, step in enumerate(steps)
            for correct in range(probes.samples + 1)
        ]
    )
    return counts, frame


def chance_words(parts: Sequence[tuple[str, Probes]], fair: str) -> str:
    """Return the caption's part on chance: ``fair`` where seeds can be compared, else why they cannot be.

    parts: (what a reader calls it, its probes) of every part of the figure.
    """
    lacking: dict[str, list[str]] = {}
    for name, probes in parts:
        if probes.obstacle:
            lacking.setdefault(probes.obstacle, []).append(name)
    if not lacking:
        return f"{fair} "
    if sum(map(len, lacking.values())) == len(parts):
        return f"There is no fair chance level here ({'; '.join(lacking)}). "
    missing = "".join(f"No fair chance level for {', '.join(names)} ({why}). " for why, names in lacking.items())
    return f"{fair} {missing}"
