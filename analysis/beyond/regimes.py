"""Difficulty regimes: for which share of training prompts at 0/8 BAPO beats GRPO, at equal steps, rollouts, updates
and compute."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis import probes, reading, results, statistics, text
from analysis.page import Page, Table
from analysis.results import AVERAGE
from analysis.study import Block, StudyFile
from analysis.tables.comparison import seeds_of
from bapo.errors import UserError

SUBJECT = "bapo"
#: budget that both runs share -> (the method that ends with it, the totals of summary.json that are summed)
BUDGETS = {
    "steps": (SUBJECT, ("steps",)),
    "rollouts": (f"{SUBJECT}+rollouts", ("rollouts",)),
    "updates": (f"{SUBJECT}+updates", ("updates",)),
    "compute": (f"{SUBJECT}+compute", ("forward_flops", "backward_flops")),
}


def start(block: Block, study: StudyFile) -> dict[str, Any]:
    """Return the shares of prompts at 0 in the reference's probes of step 0. Raises UserError where there is none."""
    probing = probes.read(block, study.reference, study)
    if 0 not in probing.steps:
        raise UserError(f"{block.title}: the base was not probed by every seed (no step 0); `{study.command}`")
    shares = [float((correct == 0).mean()) for correct in probing.at(0)]
    sizes = {"prompts": len(probing.prompts[0]), "samples": probing.samples}
    return {"share_at_zero": float(np.mean(shares)), "lowest_share": min(shares), "highest_share": max(shares)} | sizes


def _total(block: Block, method: str, keys: Sequence[str], study: StudyFile) -> float:
    summaries = [reading.summary(c.run, study) for c in block.methods[method]]
    return float(np.mean([sum(({**s, **s.get("totals", {})}).get(k, math.nan) for k in keys) for s in summaries]))


def compare(study: StudyFile) -> pd.DataFrame:
    """Return a row a base model and budget: BAPO minus the reference in points, the average of the benchmarks.

    Its error covers new problems and new seeds (problems alone where there is one seed). used: BAPO's share of what
    should be equal; p_seeds_only: the paired t test over seeds, on these problems; p_holm: over the study; title,
    missed: for the page. Raises UserError naming a broken run.
    """
    rows, pairs = [], []
    for block in (b for b in study.blocks if study.reference in b.methods):
        by_method = results.collect(block, study)
        hard, margin = start(block, study), results.margins(block, by_method)[AVERAGE]
        for budget, (method, totals) in BUDGETS.items():
            result, reference = by_method.get(method), by_method[study.reference]
            if result is None or not set(result.seeds) & set(reference.seeds):
                continue
            pairs.append(results.difference(result, reference, AVERAGE, margin))
            by_seed, short = pairs[-1].difference.by_seed, reading.short_of_budget(block.methods[method], study)
            used = _total(block, method, totals, study) / _total(block, study.reference, totals, study)
            row = {"task": block.task, "model": block.model, "model_title": block.model_title, **hard}
            row |= {"equal": budget, "used": used, "not_reached": len(short), "title": block.title}
            row["p_seeds_only"] = statistics.clustered(np.array(list(by_seed.values()))).p
            row["missed"] = f", not reached: {seeds_of(short)}" if short else ""
            rows.append(row | {f"seed_{s}": 100 * d for s, d in by_seed.items()})
    frame = pd.DataFrame([row | results.columns_of(c) for row, c in zip(rows, results.corrected(pairs), strict=True)])
    return frame.rename(columns={f"difference_{end}": end for end in ("se", "low", "high")} | {"paired_seeds": "seeds"})


def _cell(row: pd.Series) -> str:
    change = text.change(row["difference"], row["low"], row["high"])
    return f"{change}: {row['verdict']} [used {text.number(row['used'], 2)}{row['missed']}]"


def write(study: StudyFile, out: Path) -> list[Path]:
    """Write regimes.csv, .md and .tex. Raises UserError where no base has runs to compare."""
    frame = compare(study)
    if frame.empty:
        wanted = ", ".join(method for method, _ in BUDGETS.values())
        raise UserError(f"study {study.name}: no base has runs of {study.reference} and of one of {wanted}")
    first = next(b for b in study.blocks if study.reference in b.methods)
    title = f"{SUBJECT.upper()} minus {first.plain_title(study.reference)}"
    shares = frame.groupby("title", sort=False)["share_at_zero"].first().sort_values(kind="stable")  # the easiest first
    cells = frame.assign(cell=frame.apply(_cell, axis=1)).pivot(index="title", columns="equal", values="cell")
    cells = cells.reindex(columns=list(BUDGETS), fill_value=text.MISSING).fillna(text.MISSING)
    lines = [[base, f"{100 * share:.1f}%", *cells.loc[base]] for base, share in shares.items()]
    header = ["Base", "Share at 0/8", *(f"Equal {b}" for b in BUDGETS)]
    table = Table(f"{title}, average accuracy", header, lines, "lr" + "l" * len(BUDGETS))
    seeds = text.counted(frame["seeds"], "seed")
    notes = text.words("regimes", seeds=seeds, level=results.LEVEL, count=len(frame))
    data = frame.drop(columns=["title", "missed"])
    return Page.of(study, "Difficulty regimes", [table], notes).write(out, "regimes", data)
