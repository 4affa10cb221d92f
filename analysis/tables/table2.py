"""Table 2 of the paper, computational overhead: what each method's training cost, absolute and relative to GRPO."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
NOTES = (
    "Mean over {seeds}; sd: between them, where it is not 0. Probes, checkpoints' evaluation and the making of the "
    "base model are not counted.",
    "Relative to GRPO: the ratio of the means (lowest to highest ratio of two runs with the same seed).",
    "Time is wall-clock time, and runs may have shared their machine: a bracket that holds 1 tells nothing.",
    "Rollouts: re-evaluations and what dynamic sampling throws away included. FLOPs: 2 a parameter and token "
    "forwards, 4 backwards, without attention's own.",
    "Time and forward FLOPs include the reference model's forward pass for: {paying}.",
    "The paper's hardware, lengths and batch sizes are others: only ratios can be compared.",
)


@dataclass(frozen=True)
class Cost:
    """One quantity of one method. values: by seed."""

    values: Mapping[int, float]

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
    """Return every quantity of a method, NaN where a run's summary lacks it, and ``seconds_<phase>`` over a whole run.

    seconds_other: the rest of the steps' time. Probes are no cost and left out.
    """
    totals = {c.seed: reading.summary(c.run, study).get("totals", {}) for c in block.methods[method]}
    found = {key: Cost({s: float(t.get(key, math.nan)) for s, t in totals.items()}) for key in QUANTITIES}
    phases = [f"seconds_{p}" for p in PHASES]
    frame = reading.steps(block, method, study, [*phases, "seconds_probe", "seconds_total"])
    sums = frame.groupby("seed").sum()
    sums["seconds_other"] = sums["seconds_total"] - sums["seconds_probe"] - sums[phases].sum(axis=1)
    return found | {p: Cost({int(s): float(v) for s, v in sums[p].items()}) for p in (*phases, "seconds_other")}


# ------------------------------------------------------------------------------------------------ the paper's

#: minutes of a printed day, hour and minute
UNITS = {"d": 24 * 60, "h": 60, "m": 1}


def minutes(printed: str) -> int:
    """Return 2458 for "1d 16h 58m"."""
    return sum(int(number) * UNITS[unit] for number, unit in re.findall(r"(\d+)([dhm])", printed))


def times(task: str) -> dict[str, tuple[str, str, float]]:
    """Return method -> (title, time as printed, ratio to GRPO's) of a task; {} where the paper has none."""
    rows: list[dict[str, str]] = next(
        (entry["rows"] for entry in paper.read("table2")["tasks"] if entry["task"] == task), []
    )
    printed = {row["method"]: minutes(row["time"]) for row in rows}
    return {r["method"]: (r["title"], r["time"], printed[r["method"]] / printed[REFERENCE]) for r in rows}


# ------------------------------------------------------------------------------------------------ as text


def amount(key: str, value: float) -> str:
    """Return a quantity as text; seconds: 14.56 -> "14.6 s", 754 -> "12.6 min", 9720 -> "2.70 h"."""
    if not key.startswith("seconds"):
        return text.operations(value) if key.endswith("flops") else text.thousands(value)
    if not math.isfinite(value):
        return text.MISSING
    if value < 120:
        return f"{value:.1f} s"
    return f"{value / 60:.1f} min" if value < 7200 else f"{value / 3600:.2f} h"


def relative(cost: Cost, other: Cost) -> str:
    """ "1.14 (1.10 to 1.19)": the ratio of the means, and the lowest and highest of the runs with the same seed.

    One number where these agree in two digits.
    """
    each = cost.ratios(other)
    ends = [f"{f(each):.2f}" for f in (min, max)] if len(each) > 1 and all(map(math.isfinite, each)) else []
    spread = f" ({ends[0]} to {ends[1]})" if len(set(ends)) > 1 else ""
    return text.number(cost.ratio(other), 2) + spread


def _tables(block: Block, costs_of: Mapping[str, Mapping[str, Cost]]) -> list[Table]:
    base = costs_of.get(REFERENCE)
    phases = [f"seconds_{p}" for p in (*PHASES, "other")]

    def absolute(key: str, cost: Cost) -> str:
        return amount(key, cost.mean) + (f" (sd {amount(key, cost.sd)})" if cost.sd > 0 else "")

    def share(method: str, key: str) -> str:
        cost, total = costs_of[method][key], sum(costs_of[method][p].mean for p in phases)
        return amount(key, cost.mean) + (f" ({100 * cost.mean / total:.0f}%)" if total > 0 else "")

    def table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
        return Table(f"{block.title}: {title}", ["Method", *header], rows, "l" + "r" * len(header))

    titles, quantities = {m: block.method_title(m) for m in costs_of}, list(QUANTITIES.values())
    rows = [[titles[m], *(absolute(k, c[k]) for k in QUANTITIES)] for m, c in costs_of.items()]
    tables = [table("absolute, mean over seeds", quantities, rows)]
    if base:
        rows = [[titles[m], *(relative(c[k], base[k]) for k in QUANTITIES)] for m, c in costs_of.items()]
        tables.append(table("relative to GRPO", quantities, rows))
    rows = [[titles[m], *(share(m, p) for p in phases)] for m in costs_of]
    tables.append(table("phases of the time", [*PHASES.values(), "Other"], rows))
    printed = times(block.task)
    if printed and base:
        ours = {m: relative(c["seconds"], base["seconds"]) for m, c in costs_of.items()}
        rows = [[title, t, text.number(x, 2), ours.get(m, text.MISSING)] for m, (title, t, x) in printed.items()]
        source = paper.read("table2")
        title = f"time relative to GRPO, the paper's ({source['source']}, {source['hardware']}) and ours"
        tables.append(table(title, ["Paper, time", "Paper, to GRPO", "Ours, to GRPO"], rows))
    return tables


# ------------------------------------------------------------------------------------------------ files


def long_rows(block: Block, costs_of: Mapping[str, Mapping[str, Cost]]) -> list[dict[str, Any]]:
    """Return one row a method and quantity, the phases of the time among them (``seconds_<phase>``)."""
    printed, base, rows = times(block.task), costs_of.get(REFERENCE), []
    for method, found in costs_of.items():
        _, time, ratio = printed.get(method, ("", "", None))
        for key, cost in found.items():
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


def write(study: Study, out: Path) -> list[Path]:
    """table2.csv, table2.md and table2.tex."""
    import pandas as pd

    every = {b: {m: costs(b, m, study) for m in b.methods} for b in study.blocks}
    rows = [row for block, found in every.items() for row in long_rows(block, found)]
    tables = [t for block, found in every.items() for t in _tables(block, found)]
    runs = [(b.method_title(m).lstrip("+"), cells) for b in study.blocks for m, cells in b.methods.items()]
    paying = dict.fromkeys(title for title, cells in runs if has_reference_pass(reading.config(cells[0], study)))
    seeds = text.counted([len(cells) for _, cells in runs], "training seed")
    notes = [note.format(seeds=seeds, paying=", ".join(paying) or "none") for note in NOTES]
    page = Page(at_scale("Table 2: computational overhead", study.scale), tables, [*study.notes, *notes])
    return page.write(out, "table2", pd.DataFrame(rows))
