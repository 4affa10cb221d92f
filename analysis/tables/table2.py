"""Table 2 of the paper, computational overhead: what each method's training cost, absolute and relative to GRPO."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from analysis import paper, reading, statistics, text
from analysis.page import Page, Table, at_scale
from analysis.results import has_reference_pass
from analysis.study import Block, Study

REFERENCE = "grpo"
#: key in totals of a run's summary.json -> title
QUANTITIES = {
    "seconds": "Time",
    "rollouts": "Rollouts",
    "generated_tokens": "Generated tokens",
    "trained_tokens": "Trained tokens",
    "updates": "Updates",
    "forward_flops": "Forward FLOPs",
    "backward_flops": "Backward FLOPs",
}
#: columns seconds_<phase> of steps.parquet; what is left of a step's time is "other"
PHASES = {"rollout": "Rollout", "regenerate": "Re-evaluation", "reward": "Reward", "update": "Update"}


@dataclass(frozen=True)
class Cost:
    """One quantity of one method. values: by seed."""

    values: dict[int, float]

    @property
    def mean(self) -> float:
        return float(np.mean(list(self.values.values())))

    @property
    def sd(self) -> float:
        return statistics.seed_spread(list(self.values.values()))

    def ratio(self, other: Cost) -> float:
        """Return the ratio of the means; NaN where there is nothing to divide by."""
        return self.mean / other.mean if other.mean else math.nan

    def ratios(self, other: Cost) -> list[float]:
        """Return the ratios of the runs with the same seed, by seed."""
        return [self.values[s] / other.values[s] for s in sorted(self.values) if other.values.get(s)]


def costs(block: Block, method: str, study: Study) -> dict[str, Cost]:
    """Return every quantity of a method; NaN where a run's summary lacks it."""
    totals = {c.seed: reading.summary(c.run, study).get("totals", {}) for c in block.methods[method]}
    return {key: Cost({s: float(t.get(key, math.nan)) for s, t in totals.items()}) for key in QUANTITIES}


def phases(block: Block, method: str, study: Study) -> dict[str, Cost]:
    """Seconds of each phase over a whole run, and of the rest of its steps; probes are no cost and left out."""
    columns = [f"seconds_{p}" for p in PHASES]
    frame = reading.steps(block, method, study, [*columns, "seconds_probe", "seconds_total"])
    sums = frame.groupby("seed")[[*columns, "seconds_probe", "seconds_total"]].sum()
    seconds = {p: Cost({int(s): float(v) for s, v in sums[f"seconds_{p}"].items()}) for p in PHASES}
    rest = sums["seconds_total"] - sums["seconds_probe"] - sums[columns].sum(axis=1)
    return {**seconds, "other": Cost({int(s): float(v) for s, v in rest.items()})}


# ------------------------------------------------------------------------------------------------ the paper's

#: minutes of a printed day, hour and minute
UNITS = {"d": 24 * 60, "h": 60, "m": 1}


def minutes(printed: str) -> int:
    """Return 2458 for "1d 16h 58m". Raises ValueError for anything else."""
    if not re.fullmatch(r"(\d+[dhm] ?)+", printed):
        raise ValueError(f"not a time as the paper prints it: {printed!r}")
    return sum(int(number) * UNITS[unit] for number, unit in re.findall(r"(\d+)([dhm])", printed))


def times(task: str) -> dict[str, tuple[str, str, float | None]]:
    """Return method -> (title, time as printed, ratio to GRPO's) of a task; {} where the paper has none."""
    for entry in paper.read("table2")["tasks"]:
        if entry["task"] == task:
            printed = {row["method"]: minutes(row["time"]) for row in entry["rows"]}
            grpo = printed.get("grpo")
            return {
                row["method"]: (row["title"], row["time"], printed[row["method"]] / grpo if grpo else None)
                for row in entry["rows"]
            }
    return {}


# ------------------------------------------------------------------------------------------------ as text


def duration(seconds: float) -> str:
    """14.56 -> "14.6 s", 754 -> "12.6 min", 9720 -> "2.70 h"."""
    if not math.isfinite(seconds):
        return text.MISSING
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.2f} h"


def amount(key: str, value: float) -> str:
    if key == "seconds":
        return duration(value)
    if key.endswith("flops"):
        return text.operations(value)
    return text.thousands(value)


def _absolute(key: str, cost: Cost) -> str:
    spread = f" (sd {amount(key, cost.sd)})" if cost.sd > 0 else ""
    return amount(key, cost.mean) + spread


def relative(cost: Cost, other: Cost) -> str:
    """ "1.14 (1.10 to 1.19)": the ratio of the means, and the lowest and highest of the runs with the same seed.

    One number where these agree in two digits.
    """
    each = cost.ratios(other)
    ends = [f"{f(each):.2f}" for f in (min, max)] if len(each) > 1 and all(map(math.isfinite, each)) else []
    spread = f" ({ends[0]} to {ends[1]})" if len(set(ends)) > 1 else ""
    return text.number(cost.ratio(other), 2) + spread


def _tables(block: Block, study: Study) -> list[Table]:
    costs_of = {m: costs(block, m, study) for m in block.methods}
    parts = {m: phases(block, m, study) for m in block.methods}

    def table(title: str, rows: dict[str, list[str]], columns: Sequence[str]) -> Table:
        cells = [[block.method_title(m), *row] for m, row in rows.items()]
        return Table(f"{block.title}: {title}", ["Method", *columns], cells, "l" + "r" * len(columns))

    rows = {m: [_absolute(k, c) for k, c in found.items()] for m, found in costs_of.items()}
    tables = [table("absolute, mean over seeds", rows, [*QUANTITIES.values()])]
    base = costs_of.get(REFERENCE)
    if base:
        rows = {m: [relative(c, base[k]) for k, c in found.items()] for m, found in costs_of.items()}
        tables.append(table("relative to GRPO", rows, [*QUANTITIES.values()]))
    rows = {m: [_phase(c, found) for c in found.values()] for m, found in parts.items()}
    tables.append(table("phases of the time", rows, [*PHASES.values(), "Other"]))
    printed = times(block.task)
    if printed and base:
        ours = {m: relative(found["seconds"], base["seconds"]) for m, found in costs_of.items()}
        beside = [[title, t, text.number(x, 2), ours.get(m, text.MISSING)] for m, (title, t, x) in printed.items()]
        source = paper.read("table2")
        title = f"time relative to GRPO, the paper's ({source['source']}, {source['hardware']}) and ours"
        header = ["Method", "Paper, time", "Paper, to GRPO", "Ours, to GRPO"]
        tables.append(Table(f"{block.title}: {title}", header, beside, "lrrr"))
    return tables


def _phase(cost: Cost, every: dict[str, Cost]) -> str:
    total = sum(c.mean for c in every.values())
    return f"{duration(cost.mean)} ({100 * cost.mean / total:.0f}%)" if total > 0 else duration(cost.mean)


# ------------------------------------------------------------------------------------------------ files


def long_rows(block: Block, study: Study) -> list[dict[str, str | float | None]]:
    """Return one row a method and quantity, the phases of the time among them (``seconds_<phase>``)."""
    every = {
        m: costs(block, m, study) | {f"seconds_{p}": c for p, c in phases(block, m, study).items()}
        for m in block.methods
    }
    printed, base, rows = times(block.task), every.get(REFERENCE), []
    for method, costs_of in every.items():
        _, time, ratio = printed.get(method, ("", "", None))
        for key, cost in costs_of.items():
            each = cost.ratios(base[key]) if base else []
            rows.append(
                {
                    **block.keys(method),
                    "quantity": key,
                    "seeds": len(cost.values),
                    "mean": cost.mean,
                    "sd": cost.sd,
                    "ratio_to_grpo": cost.ratio(base[key]) if base else math.nan,
                    "ratio_sd": statistics.seed_spread(each),
                    "ratio_low": min(each, default=math.nan),
                    "ratio_high": max(each, default=math.nan),
                    "paper_time": time if key == "seconds" else "",
                    "paper_ratio": ratio if key == "seconds" else None,
                    **{f"seed_{s}": v for s, v in sorted(cost.values.items())},
                }
            )
    return rows


def notes(study: Study) -> Sequence[str]:
    seeds = [len(cells) for b in study.blocks for cells in b.methods.values()]
    cells = [(b.method_title(m).lstrip("+"), cells[0]) for b in study.blocks for m, cells in b.methods.items()]
    paying = dict.fromkeys(title for title, cell in cells if has_reference_pass(reading.config(cell, study)))
    return [
        *([study.note] if study.note else []),
        f"Mean over {text.counted(seeds, 'training seed')}; sd: between them, where it is not 0. Probes, checkpoints' "
        "evaluation and the making of the base model are not counted.",
        "Relative to GRPO: the ratio of the means (lowest to highest ratio of two runs with the same seed).",
        "Time is wall-clock time, and runs may have shared their machine: a bracket that holds 1 tells nothing.",
        "Rollouts: re-evaluations and what dynamic sampling throws away included. FLOPs: 2 a parameter and token "
        "forwards, 4 backwards, without attention's own.",
        f"Time and forward FLOPs include the reference model's forward pass for: {', '.join(paying) or 'none'}.",
        "The paper's hardware, lengths and batch sizes are others: only ratios can be compared.",
    ]


def write(study: Study, out: Path) -> list[Path]:
    """table2.csv, table2.md and table2.tex."""
    import pandas as pd

    frame = pd.DataFrame([row for block in study.blocks for row in long_rows(block, study)])
    tables = [t for block in study.blocks for t in _tables(block, study)]
    return Page(at_scale("Table 2: computational overhead", study.scale), tables, notes(study)).write(
        out, "table2", frame
    )
