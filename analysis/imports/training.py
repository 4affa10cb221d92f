"""Metrics of the steps of a training run, as verl, TRL and OpenRLHF log them."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Mapping
from typing import Any

from analysis.imports.lines import Log, json_object
from analysis.imports.tables import Settings, Tables, no_groups, no_probe

#: ours -> theirs, the first that a record has counts
VERL = {
    "reward_mean": ("critic/score/mean",),
    "entropy": ("actor/entropy", "actor/entropy_loss"),
    "gradient_norm": ("actor/grad_norm",),
    "clip_fraction": ("actor/pg_clipfrac",),
    "kl": ("actor/kl_loss",),
    "loss": ("actor/pg_loss",),
    "learning_rate": ("actor/lr",),
    "response_length": ("response_length/mean",),
    "seconds_rollout": ("timing_s/gen",),
    "seconds_reward": ("timing_s/reward",),
    "seconds_update": ("timing_s/update_actor",),
    "seconds_total": ("timing_s/step",),
}
TRL = {
    "reward_mean": ("reward",),
    "entropy": ("entropy",),
    "gradient_norm": ("grad_norm",),
    "clip_fraction": ("clip_ratio/region_mean", "clip_ratio"),
    "kl": ("kl",),
    "loss": ("loss",),
    "learning_rate": ("learning_rate",),
    "response_length": ("completions/mean_length", "completion_length"),
    "seconds_total": ("step_time",),
}
OPENRLHF = {
    "reward_mean": ("rollout/reward_mean", "reward"),
    "entropy": ("entropy_loss",),
    "gradient_norm": ("actor_grad_norm",),
    "clip_fraction": ("ppo_clip_ratio",),
    "kl": ("kl",),
    "loss": ("policy_loss",),
    "learning_rate": ("actor_lr",),
    "response_length": ("rollout/response_length_mean", "response_length"),
    "seconds_rollout": ("timing/generation",),
    "seconds_update": ("timing/ppo_train",),
    "seconds_total": ("timing/step_total",),
    "fresh_rollouts": ("rollout/num_samples",),
}
#: columns of a table of steps, whatever a log has of them
COLUMNS = tuple(VERL)
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_NUMBER = re.compile(r"([^:\s]\S*?):(?:np\.\w+\()?(-?(?:\d+\.?\d*(?:e[+-]?\d+)?|nan|inf))\)?", re.IGNORECASE)


# ------------------------------------------------------------------------------------------------ one line


def verl_line(text: str) -> dict[str, Any] | None:
    """Read a line of verl's file logger, {"step", "data": {...}}, of its console logger, "step:3 - a/b:0.5 - ...",
    or of a flat JSON export; None for another line."""
    if text.lstrip().startswith("{"):
        record = json_object(text)
        data = record.get("data")
        return {"step": record.get("step"), **data} if isinstance(data, dict) else record
    match = re.search(r"\bstep:(\d+) - (.+)", _COLOUR.sub("", text))
    if not match:
        return None
    record: dict[str, Any] = {"step": int(match[1])}
    for part in match[2].split(" - "):
        number = _NUMBER.fullmatch(part.strip())
        if not number:
            raise ValueError(f"'{part.strip()[:40]}' is no NAME:NUMBER; the line is cut off or mixed with another")
        record[number[1]] = float(number[2])
    return record


def openrlhf_line(text: str) -> dict[str, Any] | None:
    """Read "Global step 3: {...}" of the console, or a line of a wandb history with names train/...; else None."""
    if text.lstrip().startswith("{"):
        return unprefixed(json_object(text))
    match = re.search(r"Global step (\d+): (\{.*)", _COLOUR.sub("", text))
    return {"global_step": int(match[1]), **literal(match[2])} if match else None


def trl_line(text: str) -> dict[str, Any] | None:
    """Read a record of log_history, of a wandb history, or the dictionary that the console shows; else None."""
    plain = _COLOUR.sub("", text).strip()
    if plain.startswith('{"'):
        return unprefixed(json_object(plain))
    return unprefixed(literal(plain)) if plain.startswith("{'") else None


def literal(text: str) -> dict[str, Any]:
    """Return a printed dictionary of plain values. Raises ValueError where it is none, for example cut off."""
    try:
        content = ast.literal_eval(re.sub(r"\b(nan|inf)\b", "None", text))
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        raise ValueError("is no dictionary of plain values; the line is cut off or mixed with another") from None
    if not isinstance(content, dict):
        raise ValueError("must be a dictionary")
    return content


def unprefixed(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record without the train/ that wandb's histories put before a metric."""
    return {key.removeprefix("train/"): value for key, value in record.items()}


# ------------------------------------------------------------------------------------------------ all lines


def verl(log: Log, settings: Settings) -> Tables:
    """verl's metrics of each step; lines of validation alone are left out."""
    return _steps(log, settings, VERL, ("step",))


def openrlhf(log: Log, settings: Settings) -> Tables:
    """OpenRLHF's status of each global step."""
    return _steps(log, settings, OPENRLHF, ("global_step", "step", "_step"))


def trl(log: Log, settings: Settings) -> Tables:
    """Read TRL's log history. Its reward is the sum of all reward functions; --reward names one of them."""
    tables = _steps(log, settings, TRL, ("step", "global_step"))
    if not settings.reward:
        tables.notes.append("reward_mean: TRL's reward, the weighted sum of its reward functions")
    return tables


def _steps(log: Log, settings: Settings, names: Mapping[str, tuple[str, ...]], places: tuple[str, ...]) -> Tables:
    """Return the tables of a run that logs one record a step; a step that is there twice counts once, the last."""
    import pandas as pd

    names = {**names, **({"reward_mean": (settings.reward,)} if settings.reward else {})}
    rewards = names["reward_mean"]
    trained = [r for r in log.records if any(r.fields.get(key) is not None for key in rewards)]
    rows: dict[int, dict[str, float]] = {}
    unnumbered = 0
    for record in trained:
        try:
            step = next((record.fields[p] for p in places if record.fields.get(p) is not None), None)
            unnumbered += step is None
            row = _row(record.fields, names)
            step = int(step) if step is not None else len(rows) + 1
            if abs(step) >= 2**63:
                raise OverflowError("step is too large")
        except (TypeError, ValueError, OverflowError) as error:
            log.refuse(record.place, f"a value is no number that can be kept ({error})")
            continue
        if step in rows:
            log.refuse(record.place, f"step {step} is there before; the last counts, as after a resumed run")
        rows[step] = {"step": step, **row}
    if trained:
        log.require(len(rows))
    if not rows:
        raise ValueError(f"no line has '{rewards[0]}': these are no training metrics")
    frame = pd.DataFrame([rows[step] for step in sorted(rows)])
    notes = []
    if "fresh_rollouts" not in frame:
        frame["fresh_rollouts"] = settings.batch * settings.group
        notes.append(
            f"fresh_rollouts: {settings.batch} prompts x {settings.group} responses a step, as given, not logged"
        )
    for name in COLUMNS:
        if name not in frame:
            frame[name] = math.nan
    if unnumbered:
        notes.append(f"steps: {unnumbered} records have none and are numbered in their order")
    if len(trained) < len(log.records):
        notes.append(f"{len(log.records) - len(trained)} lines without training metrics (validation) are left out")
    return Tables(frame, no_groups(), no_probe(), notes)


def _row(fields: Mapping[str, Any], names: Mapping[str, tuple[str, ...]]) -> dict[str, float]:
    found = {
        ours: next((fields[t] for t in theirs if fields.get(t) is not None), None) for ours, theirs in names.items()
    }
    return {ours: float(value) for ours, value in found.items() if value is not None}
