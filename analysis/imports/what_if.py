"""Which batch would BAPO have drawn from the groups of a recorded run?"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from analysis.imports.folders import write, write_study
from analysis.imports.formats import Tables
from bapo import methods
from bapo.algorithm.rollouts import FRESH, ORIGINS, Group, Prompt
from bapo.errors import UserError
from bapo.store.files import GROUPS, PROBE, read_table

if TYPE_CHECKING:
    import pandas as pd


class Recorded:
    """``bapo.methods.Sampler`` over a log: a re-evaluated prompt has the accuracy of its next recorded group."""

    def __init__(self, groups: pd.DataFrame) -> None:
        self.step = 0
        self._visits: dict[str, list[tuple[int, list[float]]]] = defaultdict(list)
        for row in groups.sort_values("step").itertuples():
            self._visits[row.prompt_id].append((int(row.step), list(row.rewards)))

    def draw(self, count: int) -> list[Prompt]:
        raise UserError("this method draws prompts while it builds a batch, which a recorded run cannot give")

    def regenerate(self, prompts: list[Prompt], group_size: int | None = None, policy: str = "current") -> list[Group]:
        """Return each prompt's group of the recorded run at this step or the next, whatever policy sampled it there."""
        return [self._next(p) for p in prompts]

    def _next(self, prompt: Prompt) -> Group:
        visits = self._visits[prompt.id]
        place = min(bisect_left([s for s, _ in visits], self.step), len(visits) - 1)
        return Group(prompt, np.array(visits[place][1]), self.step, self.step - 1)


def what_if(
    run: Path, algorithm: str, options: dict[str, Any], batch_size: int | None = None, seed: int = 1
) -> tuple[Tables, int]:
    """Return the batches of ``algorithm`` (BAPO or a variant), had it been given the fresh groups of ``run``.

    What it would have changed afterwards is not simulated: the policy is that of the recorded run. Nor is a delayed
    rollout policy: the groups are those that were recorded. Returns the tables and B. Raises UserError where the
    run has no groups.
    """
    import pandas as pd

    groups = read_table(run / GROUPS)
    groups = groups[groups["origin"] == FRESH]
    if groups.empty:
        raise UserError(f"{run / GROUPS}: no groups are recorded; a what-if needs the rewards of every group")
    size = batch_size or int(groups.groupby("step").size().max())
    try:
        method = methods.build({"algorithm": algorithm, **options}, size, seed)
    except methods.MethodError as error:
        raise UserError(str(error)) from None
    sampler = Recorded(groups)
    rows = []
    for step, part in groups.groupby("step"):
        sampler.step = int(step)
        fresh = [Group(Prompt(r.prompt_id), np.array(r.rewards), int(step), int(r.version)) for r in part.itertuples()]
        batch = method.build_batch(int(step), fresh, sampler)
        means = np.array([g.mean for g in fresh])
        again = int(batch.metrics.get("reevaluated_prompts", 0))
        rows.append(
            {
                "step": int(step),
                "reward_mean": float(means.mean()),
                "groups_fresh": len(fresh),
                "groups_none_correct": int((means == 0).sum()),
                "groups_all_correct": int((means == 1).sum()),
                "batch_groups": len(batch.groups),
                **{f"x{i}": sum(g.origin == o for g in batch.groups) for i, o in enumerate(ORIGINS, start=1)},
                "fresh_rollouts": sum(g.size for g in fresh),
                "regenerated_rollouts": again * fresh[0].size,
                **{k: float(v) for k, v in batch.metrics.items()},
            }
        )
    notes = [
        f"batches that {algorithm} would have drawn from the fresh groups of {run.name} under {run.parent.name}",
        "the policy is the recorded run's; a re-evaluated prompt has the accuracy of its next recorded group",
    ]
    return Tables(pd.DataFrame(rows), groups.iloc[:0], read_table(run / PROBE), notes), size


def write_what_if(run: Path, out: Path, algorithm: str, options: dict[str, Any], batch_size: int | None = None) -> Path:
    """Write the what-if of ``run`` beside the imported runs below ``out``; returns its folder."""
    tables, size = what_if(run, algorithm, options, batch_size)
    task, model, method, seed = run.resolve().parts[-4:]
    folder = out / task / model / f"{algorithm}_on_{method}" / seed
    write(folder, tables, {"run": f"{task}/{model}/{method}/{seed}", "algorithm": algorithm, "options": options}, size)
    write_study(out / task)
    return folder
