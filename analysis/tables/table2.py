"""Table 2 of the paper, computational overhead: what each method's training cost, absolute and relative to GRPO."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from analysis import paper, reading, text
from analysis.page import Page, Table
from analysis.results import has_reference_pass
from analysis.study import Block, StudyFile

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


def costs(block: Block, method: str, study: StudyFile) -> pd.DataFrame:
    """Return QUANTITIES, NaN where a summary lacks one, and ``seconds_<phase>`` of each run, a row a seed.

    seconds_other: the rest of the steps' time. Probes are no cost and left out.
    """
    totals = {c.seed: reading.summary(c.run, study).get("totals", {}) for c in block.methods[method]}
    phases = [f"seconds_{p}" for p in PHASES]
    frame = reading.steps(block, method, study, [*phases, "seconds_probe", "seconds_total"])
    sums = frame.groupby("seed").sum()
    sums["seconds_other"] = sums["seconds_total"] - sums["seconds_probe"] - sums[phases].sum(axis=1)
    return pd.DataFrame(totals, list(QUANTITIES), dtype=float).T.join(sums[[*phases, "seconds_other"]])


def rows(block: Block, study: StudyFile) -> Iterator[dict[str, Any]]:
    """Yield one row a method and quantity, the phases of the time among them, with the ratio of the means."""
    every = {m: costs(block, m, study) for m in block.methods}
    printed, base = times(block.task), every.get(REFERENCE, every[next(iter(every))] * math.nan)
    for method, frame in every.items():
        _, time, ratio = printed.get(method, ("", "", None))
        ratios = frame / base.where(base != 0)  # runs with the same seed are compared
        for key, values in frame.items():
            each, mean, other = ratios[key].dropna(), values.mean(), base[key].mean()
            yield {
                **block.keys(method),
                "quantity": key,
                "seeds": len(values),
                "mean": mean,
                "sd": values.std(),
                "ratio_to_grpo": mean / other if other else math.nan,
                "ratio_sd": each.std(),
                "ratio_low": each.min(),
                "ratio_high": each.max(),
                "paper_time": time if key == "seconds" else "",
                "paper_ratio": ratio if key == "seconds" else None,
                **{f"seed_{seed}": value for seed, value in values.items()},
            }


def times(task: str) -> dict[str, tuple[str, str, float]]:
    """Return method -> (title, time as printed, ratio to GRPO's) of a task; {} where the paper has none."""
    rows = [row for entry in paper.read("table2")["tasks"] if entry["task"] == task for row in entry["rows"]]
    printed = {row["method"]: pd.Timedelta(row["time"].replace("d", "D")) for row in rows}
    return {r["method"]: (r["title"], r["time"], printed[r["method"]] / printed[REFERENCE]) for r in rows}


def amount(key: str, value: float) -> str:
    """Return a quantity as text; seconds: 14.56 -> "14.6 s", 754 -> "12.6 min", 9720 -> "2.70 h"."""
    if not key.startswith("seconds"):
        return text.operations(value) if key.endswith("flops") else text.thousands(value)
    if not math.isfinite(value):
        return text.MISSING
    if value < 120:
        return f"{value:.1f} s"
    return f"{value / 60:.1f} min" if value < 7200 else f"{value / 3600:.2f} h"


def absolute(row: Any) -> str:
    """Return the mean of a row of :func:`rows` and its spread between seeds: "12.6 min (sd 3.0 s)"."""
    return amount(row.quantity, row.mean) + (f" (sd {amount(row.quantity, row.sd)})" if row.sd > 0 else "")


def relative(row: Any) -> str:
    """Return the ratio of the means, and the lowest and highest of runs with the same seed: "1.14 (1.10 to 1.19)".

    It is one number where these agree in two digits.
    """
    ends = [text.number(row.ratio_low, 2), text.number(row.ratio_high, 2)]
    return text.number(row.ratio_to_grpo, 2) + (f" ({ends[0]} to {ends[1]})" if len(set(ends)) > 1 else "")


def share(row: Any) -> str:
    """Return the mean of a phase and its share of all phases: "12.6 min (40%)"."""
    return amount(row.quantity, row.mean) + (f" ({100 * row.share:.0f}%)" if math.isfinite(row.share) else "")


def _tables(block: Block, frame: pd.DataFrame) -> Iterator[Table]:
    frame = frame[(frame["task"] == block.task) & (frame["model"] == block.model)]
    quantities = frame[frame["quantity"].isin(QUANTITIES)]
    phases = frame.drop(quantities.index)
    phases = phases.assign(share=phases["mean"] / phases.groupby("method")["mean"].transform("sum"))

    def table(title: str, header: Iterable[str], rows: Iterable[Sequence[str]]) -> Table:
        return Table(f"{block.title}: {title}", ["Method", *header], list(rows))

    def cells(part: pd.DataFrame, form: Callable[[Any], str]) -> Iterator[list[str]]:
        for method, of_method in part.groupby("method", sort=False):
            yield [block.method_title(str(method)), *map(form, of_method.itertuples())]

    yield table("absolute, mean over seeds", QUANTITIES.values(), cells(quantities, absolute))
    if REFERENCE in block.methods:
        yield table("relative to GRPO", QUANTITIES.values(), cells(quantities, relative))
    yield table("phases of the time", [*PHASES.values(), "Other"], cells(phases, share))
    printed, source = times(block.task), paper.read("table2")
    if printed and REFERENCE in block.methods:
        ours = {row.method: relative(row) for row in quantities.itertuples() if row.quantity == "seconds"}
        rows = [[title, t, text.number(x, 2), ours.get(m, text.MISSING)] for m, (title, t, x) in printed.items()]
        title = f"time relative to GRPO, the paper's ({source['source']}, {source['hardware']}) and ours"
        yield table(title, ["Paper, time", "Paper, to GRPO", "Ours, to GRPO"], rows)


def write(study: StudyFile, out: Path) -> list[Path]:
    """Write table2.csv, table2.md and table2.tex. Raises UserError naming a run that is missing or broken."""
    frame = pd.DataFrame([row for block in study.blocks for row in rows(block, study)])
    runs = [(b.method_title(m).lstrip("+"), cells) for b in study.blocks for m, cells in b.methods.items()]
    paying = dict.fromkeys(title for title, cells in runs if has_reference_pass(reading.config(cells[0])))
    seeds = text.counted([len(cells) for _, cells in runs], "training seed")
    notes = text.words("table2", seeds=seeds, paying=", ".join(paying) or "none")
    tables = [table for block in study.blocks for table in _tables(block, frame)]
    return Page.of(study, "Table 2: computational overhead", tables, notes).write(out, "table2", frame)
