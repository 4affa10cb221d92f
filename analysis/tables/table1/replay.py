"""How much of a method's training is on responses that are not of the step's own rollout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from analysis import reading
from analysis.study import Block, Cell, Study
from bapo.store.files import GROUPS


@dataclass(frozen=True)
class Replay:
    """Means over seeds. steps: in which some response was brought back; of: all steps; share: of the responses trained
    on, those that were stored before the step or are an expert's.
    """

    steps: float
    of: float
    share: float


def replays(block: Block, study: Study) -> dict[str, Replay]:
    """Return it for every method that is off policy, none replayed included, and for any other that replays.

    A run without recorded groups (an imported one) says nothing.
    """
    found = {}
    for method, cells in block.methods.items():
        seeds = [seed for cell in cells if (seed := _of_seed(cell, study))]
        if seeds and (cells[0].kind == "off" or any(seed.share for seed in seeds)):
            found[method] = Replay(*np.mean([(s.steps, s.of, s.share) for s in seeds], axis=0).tolist())
    return found


def _of_seed(cell: Cell, study: Study) -> Replay | None:
    groups = reading.table(cell, GROUPS, study)
    if groups.empty or "replayed" not in groups:
        return None
    trained = groups[groups["used"]]
    steps = trained.loc[trained["replayed"] > 0, "step"].nunique()
    share = trained["replayed"].sum() / max(1, trained["rewards"].map(len).sum())
    return Replay(steps, reading.summary(cell.run, study)["steps"], float(share))


def sentences(by_method: dict[str, Replay], titles: Sequence[tuple[str, str]]) -> list[str]:
    """Say it in a sentence, or in none where there is no such method. titles: (method, title) in the rows' order."""
    parts = [
        f"{title.lstrip('+')} {100 * r.share:.1f}% ({r.steps:.0f} of {r.of:.0f} steps)"
        for method, title in titles
        if (r := by_method.get(method))
    ]
    if not parts:
        return []
    return [
        "Replayed responses, stored before the step or an expert's, as a share of all that were trained on, and the "
        f"steps that had any: {', '.join(parts)}. The rest was sampled in the step itself."
    ]
