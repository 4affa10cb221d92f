"""Readers of logged histories: JSON objects, one a line, plain or gzip."""

from __future__ import annotations

import gzip
import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bapo import seeds
from bapo.errors import UserError

if TYPE_CHECKING:
    import pandas as pd

#: characters of one line; a longer one is no log
LONGEST = 1_000_000


@dataclass
class Tables:
    """What a log gives: frames like those of a run directory, and notes on what was assumed."""

    steps: pd.DataFrame
    groups: pd.DataFrame
    probe: pd.DataFrame
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Settings:
    """What the log does not say. batch: prompts a step; group: responses a prompt; points: probed steps."""

    batch: int = 128
    group: int = 8
    points: int = 11


def lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line number, object). Raises UserError naming file and line."""
    opened: Callable[..., Any] = gzip.open if path.suffix == ".gz" else open
    number = 0
    try:
        with opened(path, "rt", encoding="utf-8") as handle:
            while line := handle.readline(LONGEST):
                number += 1
                if len(line) == LONGEST:
                    raise UserError(f"{path}, line {number}: longer than {LONGEST:,} characters; is this a log?")
                if line.strip():
                    record = json.loads(line)
                    if not isinstance(record, dict):
                        raise UserError(f"{path}, line {number}: must be a JSON object")
                    yield number, record
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except (OSError, EOFError, ValueError, RecursionError) as error:
        raise UserError(f"{path}, after line {number}: not readable ({error}); unpack or repair the file") from None


def detect(path: Path) -> str:
    """Return the format of a file by the fields of its first line."""
    for _, first in lines(path):
        for name, (needed, _) in FORMATS.items():
            if needed <= set(first):
                return name
        known = "; ".join(f"{name}: {', '.join(sorted(needed))}" for name, (needed, _) in FORMATS.items())
        raise UserError(f"{path}, line 1: the fields {', '.join(sorted(first)[:8])} are of no known format; {known}")
    raise UserError(f"{path}: empty")


def read(path: Path, settings: Settings, name: str | None = None) -> Tables:
    """Return the tables of a log. name: a key of FORMATS; None: detected."""
    name = name or detect(path)
    needed, reader = FORMATS[name]
    records = []
    for number, record in lines(path):
        missing = sorted(needed - set(record))
        if missing:
            raise UserError(f"{path}, line {number}: field '{missing[0]}' is missing")
        records.append(record)
    try:
        return reader(records, settings)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    except (TypeError, ValueError, KeyError) as error:
        raise UserError(f"{path}: a value does not fit the format {name} ({error})") from None


# ------------------------------------------------------------------------------------------------ accuracy histories


def histories(records: list[dict[str, Any]], settings: Settings) -> Tables:
    """Read a prompt's accuracies in the order of its visits: {"id", "acc_history"} (ypwang61/One-Shot-RLVR).

    The log has no steps. Visit i of n is placed at the share (i + u) / n of the run, u in [0, 1) keyed by the prompt,
    and the visits in that order are cut into steps of ``batch`` prompts: right to about one epoch.
    """
    import pandas as pd

    g = settings.group
    visits = []
    for record in records:
        history = np.asarray(record["acc_history"], dtype=np.float64)
        correct = np.rint(history * g)
        wrong = ~(np.abs(correct - history * g) < 1e-3) | (history < 0) | (history > 1)
        if wrong.any():
            raise UserError(f"{record['id']}: accuracy {history[wrong][0]:g} is no multiple of 1/{g}; set --group")
        offset = seeds.key64("visit", record["id"]) / 2**64
        visits += [((i + offset) / len(history), str(record["id"]), int(c)) for i, c in enumerate(correct)]
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


def tracking(records: list[dict[str, Any]], settings: Settings) -> Tables:
    """Read one row a response of a tracked prompt: {"prompt", "step", "reward"} (waunx/BAPO_ICLR).

    Steps at which a prompt has fewer responses than the usual number are left out.
    """
    import pandas as pd

    frame = pd.DataFrame(records)[["prompt", "step", "reward"]]
    if not frame["reward"].isin([0, 1]).all():
        raise UserError(f"reward {frame['reward'][~frame['reward'].isin([0, 1])].iloc[0]}: must be 0 or 1")
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
    return Tables(steps, _no_groups(), probe.reset_index(drop=True), notes)


def _no_groups() -> pd.DataFrame:
    import pandas as pd

    names = ("step", "prompt_id", "origin", "version", "generated_step", "rewards", "mean", "used", "reason")
    return pd.DataFrame({name: [] for name in names})


# ------------------------------------------------------------------------------------------------ verl's metrics

REWARD = "critic/score/mean"
#: verl's names -> ours
METRICS = {
    REWARD: "reward_mean",
    "actor/entropy": "entropy",
    "actor/entropy_loss": "entropy",
    "actor/grad_norm": "gradient_norm",
    "actor/pg_clipfrac": "clip_fraction",
    "actor/kl_loss": "kl",
    "actor/pg_loss": "loss",
    "actor/lr": "learning_rate",
    "response_length/mean": "response_length",
    "timing_s/gen": "seconds_rollout",
    "timing_s/reward": "seconds_reward",
    "timing_s/update_actor": "seconds_update",
    "timing_s/step": "seconds_total",
}


def verl(records: list[dict[str, Any]], settings: Settings) -> Tables:
    """verl's metrics of each step: {"step", "critic/score/mean", ...}; lines of validation alone are left out."""
    import pandas as pd

    rows = []
    trained = [r for r in records if REWARD in r]
    if not trained:
        raise UserError(f"no line has '{REWARD}': these are no training metrics")
    for record in sorted(trained, key=lambda r: int(r["step"])):
        row: dict[str, float] = {"step": int(record["step"])}
        for theirs, ours in METRICS.items():
            if theirs in record and ours not in row:
                row[ours] = float(record[theirs])
        row["fresh_rollouts"] = settings.batch * settings.group
        rows.append(row)
    steps = pd.DataFrame(rows)
    if steps["step"].duplicated().any():
        raise UserError(f"step {steps['step'][steps['step'].duplicated()].iloc[0]} is there twice")
    for name in dict.fromkeys(METRICS.values()):
        if name not in steps:
            steps[name] = math.nan
    empty = pd.DataFrame({name: [] for name in ("step", "set", "prompt_id", "correct", "samples", "mean")})
    notes = [f"fresh_rollouts: {settings.batch} prompts x {settings.group} responses a step, as given, not logged"]
    if len(trained) < len(records):
        notes.append(f"{len(records) - len(trained)} lines without training metrics (validation) are left out")
    return Tables(steps, _no_groups(), empty, notes)


#: name -> (fields that every line has, reader); the first that fits the first line is taken
FORMATS: dict[str, tuple[set[str], Callable[[list[dict[str, Any]], Settings], Tables]]] = {
    "histories": ({"id", "acc_history"}, histories),
    "tracking": ({"prompt", "step", "reward"}, tracking),
    "verl": ({"step"}, verl),
}
