"""Accuracies of prompts: histories of what each was trained on, and logs that track a few through a run."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import numpy as np

from analysis.imports.lines import Log
from analysis.imports.tables import Settings, Tables, no_groups
from bapo import seeds
from bapo.errors import UserError

if TYPE_CHECKING:
    import pandas as pd


def histories(log: Log, settings: Settings) -> Tables:
    """Read a prompt's accuracies in the order of its visits: {"id", "acc_history"} (ypwang61/One-Shot-RLVR).

    The log has no steps. Visit i of n is placed at the share (i + u) / n of the run, u in [0, 1) keyed by the prompt,
    and the visits in that order are cut into steps of ``batch`` prompts: right to about one epoch.
    """
    import pandas as pd

    g = settings.group
    visits = []
    for record in log.records:
        name = record.fields["id"]
        try:
            history = np.asarray(record.fields["acc_history"], dtype=np.float64).reshape(-1)
        except (TypeError, ValueError, OverflowError):
            log.refuse(record.place, f"{name}: acc_history is no list of numbers")
            continue
        correct = np.rint(history * g)
        wrong = ~(np.abs(correct - history * g) < 1e-3) | (history < 0) | (history > 1)
        if wrong.any():
            log.refuse(record.place, f"{name}: accuracy {history[wrong][0]:g} is no multiple of 1/{g}; set --group")
            continue
        offset = seeds.key64("visit", name) / 2**64
        visits += [((i + offset) / len(history), str(name), int(c)) for i, c in enumerate(correct)]
    log.require(len(visits))
    if len(visits) < settings.batch:
        raise UserError(f"{len(visits)} visits are less than one step of {settings.batch} prompts; lower --batch")
    visits.sort()
    rows = [(place // settings.batch + 1, name, c) for place, (_, name, c) in enumerate(visits)]
    last = rows[-1][0]
    if len(rows) % settings.batch:  # an unfinished step would look unlike the others
        last -= 1
        rows = [r for r in rows if r[0] <= last]
    groups = pd.DataFrame(
        {
            "step": [s for s, _, _ in rows],
            "prompt_id": [n for _, n, _ in rows],
            "origin": "fresh",
            "version": [s - 1 for s, _, _ in rows],
            "generated_step": [s for s, _, _ in rows],
            "rewards": [[1.0] * c + [0.0] * (g - c) for _, _, c in rows],
            "mean": [c / g for _, _, c in rows],
            "used": True,
            "reason": "",
        }
    )
    return Tables(
        _steps_of(groups, g),
        groups,
        _nearest_visits(rows, last, settings),
        [
            "steps: the log has a prompt's accuracies in order, not their steps; visit i of n is placed at (i + u) / n",
            "rewards: only their number is logged; the correct ones are written first",
            "probe: the group that was trained on nearest to the step, the first one for step 0",
        ],
    )


def _steps_of(groups: pd.DataFrame, group_size: int) -> pd.DataFrame:
    by_step = groups.groupby("step")["mean"]
    frame = by_step.agg(reward_mean="mean", groups_fresh="size").reset_index()
    frame["groups_none_correct"] = by_step.apply(lambda m: int((m == 0).sum())).to_numpy()
    frame["groups_all_correct"] = by_step.apply(lambda m: int((m == 1).sum())).to_numpy()
    frame["batch_groups"] = frame["x1"] = frame["groups_fresh"]
    frame["x2"] = frame["x3"] = frame["regenerated_rollouts"] = 0
    frame["fresh_rollouts"] = frame["groups_fresh"] * group_size
    return frame


def _nearest_visits(rows: list[tuple[int, str, int]], last: int, settings: Settings) -> pd.DataFrame:
    import pandas as pd

    seen: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for step, name, correct in rows:
        seen[name].append((step, correct))
    points = sorted({round(i * last / (settings.points - 1)) for i in range(settings.points)})
    nearest = [
        {
            "step": point,
            "set": "train",
            "prompt_id": name,
            "correct": min(v, key=lambda x: abs(x[0] - point))[1],
            "samples": settings.group,
        }
        for point in points
        for name, v in seen.items()
    ]
    frame = pd.DataFrame(nearest)
    return frame.assign(mean=frame["correct"] / frame["samples"])


# ------------------------------------------------------------------------------------------------ tracking logs


def tracking(log: Log, settings: Settings) -> Tables:
    """Read one row a response of a tracked prompt: {"prompt", "step", "reward"} (waunx/BAPO_ICLR).

    Steps at which a prompt has fewer responses than the usual number are left out.
    """
    import pandas as pd

    kept = []
    for record in log.records:
        if record.fields["reward"] in (0, 1):
            kept.append(record.fields)
        else:
            log.refuse(record.place, f"reward {record.fields['reward']}: must be 0 or 1")
    log.require(len(kept))
    frame = pd.DataFrame(kept)[["prompt", "step", "reward"]]
    counts = frame.groupby(["step", "prompt"])["reward"].agg(["sum", "size"]).reset_index()
    samples = int(counts["size"].mode().iloc[-1])
    prompts = frame["prompt"].nunique()
    whole = counts[counts["size"] == samples].groupby("step").filter(lambda g: len(g) == prompts)
    left_out = sorted(set(counts["step"]) - set(whole["step"]))
    probe = pd.DataFrame(
        {
            "step": whole["step"].astype(int),
            "set": "train",
            "prompt_id": whole["prompt"].astype(str),
            "correct": whole["sum"].astype(int),
            "samples": samples,
            "mean": whole["sum"] / samples,
        }
    )
    steps = probe.groupby("step")["mean"].mean().rename("reward_mean").reset_index()
    notes = ["reward_mean: of the tracked prompts, not of the training batch"]
    if left_out:
        notes.append(f"steps {left_out} are left out: not every prompt has {samples} responses there")
    return Tables(steps, no_groups(), probe.reset_index(drop=True), notes)
