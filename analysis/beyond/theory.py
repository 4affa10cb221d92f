"""The theory monitor: the terms of Theorem 3.2 along BAPO's runs, and how often its bound says nothing.

Of every step: K1 to K3, the estimated total-variation distances of the trained policy to the policies that wrote the
batch, and the bound in two forms, which the page explains. TV(pi_t, alpha_i) is 0 for X2, and for X1 where the rollout
policy is the current one; elsewhere it is not recorded, and 0 in its place only raises the bound.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from analysis import reading, text
from analysis.figures.frames import RUN
from analysis.page import Page, Table
from analysis.study import Block, StudyFile
from bapo.algorithm import theory
from bapo.errors import UserError
from bapo.store.files import STEPS

PARTS = (1, 2, 3)
COLUMNS = ["step", "staleness", *(f"{name}{i}" for name in ("x", "tv_x", "k", "surrogate_x") for i in PARTS)]
#: form of the bound -> its title; a ceiling is its largest value over all new policies
FORMS = {
    "ceiling_printed": "as printed, its largest value",
    "ceiling_repaired": "repaired, its largest value",
    "bound_printed": "as printed, estimated",
    "bound_repaired": "repaired, estimated",
}
#: column of a constant or a distance -> its title
CONSTANTS = {"k1": "K1", "k2": "K2", "k2_repaired": "K2, worst case", "k3": "K3"}
DISTANCES = {f"tv_x{i}": f"TV to X{i}'s policy" for i in PARTS}


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
    bounds = dict.fromkeys(FORMS, 0.0 if present else math.nan)
    for i in present:
        tv, printed, gain = row[f"tv_x{i}"], row[f"k{i}"], row.get(f"surrogate_x{i}", math.nan)
        worst = k2 if i == 2 else printed
        for form, k, factor, weight in (("printed", printed, 2.0, 1.0), ("repaired", worst, 1.0, row[f"x{i}"] / total)):
            known = not (math.isnan(k) or math.isnan(tv))  # the formulas' comparisons would take NaN for 0
            largest = theory.ceiling(k, tv, factor=factor) if known else math.nan
            bounds[f"ceiling_{form}"] += weight * largest
            bounds[f"bound_{form}"] += weight * theory.lower_bound(gain, k, tv, factor) if known else math.nan
    return bounds


def monitor(block: Block, method: str, study: StudyFile) -> pd.DataFrame | None:
    """Return a row for each seed and step, the terms and the forms of the bound; None if the method is not BAPO's."""
    parts = []
    for cell in block.methods[method]:
        k2 = worst_k2(reading.config(cell))
        if k2 is None:
            return None
        steps = reading.table(cell, STEPS, study).reindex(columns=COLUMNS)
        terms = pd.DataFrame([step_terms(row, k2) for row in steps.to_dict("records")])
        parts.append(steps.join(terms).assign(k2_repaired=k2, **block.keys(method), seed=cell.seed))
    return pd.concat(parts).set_index(RUN).reset_index()


def _silent(values: pd.Series) -> str:
    """Return in words how many steps have a bound that promises no improvement: not positive, or not known."""
    steps, unknown, not_positive = len(values), int(values.isna().sum()), int((values <= 0).sum())
    if unknown == steps:
        return "not recorded"
    detail = f", {unknown} unknown" if unknown else ""
    return f"{100 * (unknown + not_positive) / steps:.1f}% ({not_positive} of {steps} steps not positive{detail})"


def _range(values: pd.Series) -> str:
    """Return the lowest and the highest value of a constant."""
    ends = [] if values.isna().all() else [values.min(), values.max()]
    return " to ".join(dict.fromkeys(f"{end:.2f}" for end in ends)) or text.MISSING


def _spread(tv: pd.Series) -> str:
    """Return median and 95th percentile of a distance over the steps that have it, and their number."""
    count = tv.notna().sum()
    return f"{tv.median():.3f} ({tv.quantile(0.95):.3f}; {count})" if count else text.MISSING


def write(study: StudyFile, out: Path) -> list[Path]:
    """Write theory_monitor.csv, .md and .tex. Raises UserError where runs are missing or none is BAPO's."""
    methods = [(b, m) for b in study.blocks for m in (["bapo"] if "bapo" in b.methods else b.methods)]
    monitored = {f"{b.title}, {b.method_title(m).lstrip('+')}": monitor(b, m, study) for b, m in methods}
    frames = {title: frame for title, frame in monitored.items() if frame is not None}
    if not frames:
        raise UserError("the theory monitor needs a run of BAPO (a method with the option c1); the study has none")
    terms, silent = [], []
    for title, frame in frames.items():
        terms.append([title, *(_range(frame[c]) for c in CONSTANTS), *(_spread(frame[c]) for c in DISTANCES)])
        silent.append([title, *(_silent(frame[form]) for form in FORMS)])
    header, below = ["Runs", *CONSTANTS.values(), *DISTANCES.values()], text.words("theory below")
    tables = [
        Table("The constants and the distances", header, terms, below=below),
        Table("How often the bound says nothing (not positive, or unknown)", ["Runs", *FORMS.values()], silent),
    ]
    page = Page.of(study, "Theory monitor: the bound of Theorem 3.2", tables, text.words("theory"))
    return page.write(out, "theory_monitor", pd.concat(frames.values()))
