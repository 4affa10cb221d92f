"""The theory monitor: the terms of Theorem 3.2 along BAPO's runs, and how often its bound says nothing.

Of every step: K1 to K3, the estimated total-variation distances of the trained policy to the policies that wrote the
batch, and the bound in two forms, which the page explains. TV(pi_t, alpha_i) is 0 for X2, and for X1 where the rollout
policy is the current one; elsewhere it is not recorded, and 0 in its place only raises the bound.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis import reading, text
from analysis.page import Page, Table, at_scale
from analysis.study import Block, Study
from bapo.algorithm import theory
from bapo.errors import UserError
from bapo.store.files import STEPS

if TYPE_CHECKING:
    import pandas as pd

PARTS = (1, 2, 3)
COLUMNS = ["staleness", *(f"{name}{i}" for name in ("x", "tv_x", "k") for i in PARTS)]
#: of the ceilings and of the estimates, where a run has them
FORMS = {
    "ceiling_printed": "as printed, its largest value",
    "ceiling_repaired": "repaired, its largest value",
    "bound_printed": "as printed, estimated",
    "bound_repaired": "repaired, estimated",
}
TERMS = ("K1", "K2", "K2, worst case", "K3", "TV to X1's policy", "TV to X2's policy", "TV to X3's policy")


def worst_k2(config: Mapping[str, Any]) -> float | None:
    """Return K2 over all that eq. 6 admits in groups of G, NaN where that is nothing; None: no variant of BAPO."""
    c1, group = config.get("method", {}).get("c1"), config.get("train", {}).get("group_size")
    if c1 is None or group is None:
        return None
    try:
        return theory.k2_worst(float(c1), int(group))
    except ValueError:  # nothing lies between c1 and 1
        return math.nan


def step_terms(row: Mapping[str, float], k2: float) -> dict[str, float]:
    """Return the bound's forms in a row of steps.parquet; NaN where the batch is empty or a term is unknown.

    k2: the worst case.
    """
    present = [i for i in PARTS if row[f"x{i}"] > 0]
    total = sum(row[f"x{i}"] for i in present)
    found = dict.fromkeys(FORMS, math.nan if not present else 0.0)
    for i in present:
        tv, printed = float(row[f"tv_x{i}"]), float(row[f"k{i}"])
        gain = float(row.get(f"surrogate_x{i}", math.nan))
        worst = k2 if i == 2 else printed
        for form, k, factor, weight in (("printed", printed, 2.0, 1.0), ("repaired", worst, 1.0, row[f"x{i}"] / total)):
            unknown = math.isnan(k) or math.isnan(tv)  # the formulas' comparisons would take NaN for 0
            largest = math.nan if unknown else theory.ceiling(k, tv, factor=factor)
            bound = math.nan if unknown or math.isnan(gain) else theory.lower_bound([gain], k, tv, 0.0, factor)
            found[f"ceiling_{form}"] += weight * largest
            found[f"bound_{form}"] += weight * bound
    return found


def monitor(block: Block, method: str, study: Study) -> pd.DataFrame | None:
    """Return a row for each seed and step, the terms and the forms of the bound; None if the method is not BAPO's."""
    import pandas as pd

    parts = []
    for cell in block.methods[method]:
        k2 = worst_k2(reading.config(cell))
        if k2 is None:
            return None
        frame = reading.table(cell, STEPS, study)
        extra = [c for c in (f"surrogate_x{i}" for i in PARTS) if c in frame]
        rows = frame[["step", *COLUMNS, *extra]]
        terms = pd.DataFrame([step_terms(r, k2) for r in rows.to_dict("records")], columns=list(FORMS))
        names = {**block.keys(method), "seed": cell.seed}
        parts.append(pd.concat([rows.reset_index(drop=True), terms], axis=1).assign(k2_repaired=k2, **names))
    every = pd.concat(parts, ignore_index=True)
    return every[[*names, *(c for c in every if c not in names)]]


# ------------------------------------------------------------------------------------------------ the table


def _silent(values: pd.Series) -> str:
    """Say in how many steps the bound promises no improvement: not positive, or not known."""
    steps, unknown, not_positive = len(values), int(values.isna().sum()), int((values <= 0).sum())
    if unknown == steps:
        return "not recorded"
    detail = f", {unknown} unknown" if unknown else ""
    return f"{100 * (unknown + not_positive) / steps:.1f}% ({not_positive} of {steps} steps not positive{detail})"


def _terms(frame: pd.DataFrame) -> list[str]:
    """Return the range of each constant, and median and 95th percentile of each TV over the steps that have it."""
    cells = []
    for name in ("k1", "k2", "k2_repaired", "k3"):
        values = frame[name].dropna()
        ends = [f"{v:.2f}" for v in (values.min(), values.max())] if len(values) else [text.MISSING]
        cells.append(" to ".join(dict.fromkeys(ends)))
    for i in PARTS:
        tv = frame[f"tv_x{i}"].dropna()
        cells.append(f"{tv.median():.3f} ({tv.quantile(0.95):.3f}; {len(tv)})" if len(tv) else text.MISSING)
    return cells


def write(study: Study, out: Path) -> list[Path]:
    """Write theory_monitor.csv, .md and .tex. Raises UserError where runs are missing or none is BAPO's."""
    import pandas as pd

    methods = [(b, m) for b in study.blocks for m in (["bapo"] if "bapo" in b.methods else b.methods)]
    found = {
        f"{b.title}, {b.method_title(m).lstrip('+')}": frame
        for b, m in methods
        if (frame := monitor(b, m, study)) is not None
    }
    if not found:
        raise UserError("the theory monitor needs a run of BAPO (a method with the option c1); the study has none")
    tables = [
        Table(
            "The constants and the distances",
            ["Runs", *TERMS],
            [[name, *_terms(frame)] for name, frame in found.items()],
            "l" + "r" * len(TERMS),
            text.words("theory below"),
        ),
        Table(
            "How often the bound says nothing (not positive, or unknown)",
            ["Runs", *FORMS.values()],
            [[name, *(_silent(frame[form]) for form in FORMS)] for name, frame in found.items()],
            "l" + "r" * len(FORMS),
        ),
    ]
    page = Page(
        at_scale("Theory monitor: the bound of Theorem 3.2", study.scale), tables, [*text.words("theory"), *study.notes]
    )
    return page.write(out, "theory_monitor", pd.concat(found.values(), ignore_index=True))
