"""Queries over the steps of training: costs, what the batches are made of, series such as reward, Theorem 3.2."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np
import pandas as pd

from analysis import text
from analysis.audit import best_case
from analysis.claims.measures import Measure, of_seeds
from analysis.claims.queries import query
from analysis.claims.view import ClaimView
from analysis.reading import NotRecorded, batch_size, config
from analysis.results import has_reference_pass
from bapo.store.files import GROUPS, STEPS

#: wall-clock time without the probes, which is shown and never judged (entries.py): it depends on the machine's load
SECONDS = "seconds"
FLOPS, WITHOUT_REFERENCE = "flops", "flops_without_reference"
Quantity = Literal[
    "rollouts", "generated_tokens", "trained_tokens", "updates", "flops", "flops_without_reference", "seconds"
]


def _ratio(view: ClaimView, a: str, b: str, x: dict[int, float], y: dict[int, float], what: str) -> Measure:
    """Return the mean of x / y over the seeds that both have, whose runs share base, problems and order of problems.

    x: of method a by seed; y: of b; what: the name of the quantity or column.
    """
    seeds = sorted(set(x) & set(y))
    if not seeds or not all(y[s] for s in seeds):
        raise NotRecorded(f"the two have no training seed in common, or {what} of {view.title(b)} is 0")
    means = [float(np.mean([side[s] for s in seeds])) for side in (x, y)]
    note = f"{what.replace('_', ' ')}: {view.beside(a, means[0], b, means[1])}"
    return of_seeds([x[s] / y[s] for s in seeds], "x", note)


# ------------------------------------------------------------------------------------------------ costs


def _cost(view: ClaimView, method: str, quantity: str) -> dict[int, float]:
    parts = ("forward_flops", "backward_flops") if quantity in (FLOPS, WITHOUT_REFERENCE) else (quantity,)
    totals = view.totals(method)
    if any(p not in t for t in totals.values() for p in parts):
        raise NotRecorded(f"the runs of {view.title(method)} do not record {quantity.replace('_', ' ')}")
    less = 0.0
    settings = config(view.block.methods[method][0])
    if quantity == WITHOUT_REFERENCE and has_reference_pass(settings):
        if "value_clip" in settings["method"]:
            raise NotRecorded(f"{view.title(method)} has a critic, whose operations hide those of the reference")
        less = 0.5  # a forward takes 2 operations a parameter and trained token, a backward 4
    return {s: float(sum(t[p] for p in parts) - less * t.get("backward_flops", 0.0)) for s, t in totals.items()}


@query()
def cost_ratio(view: ClaimView, a: str, b: str, *, quantity: Quantity = "rollouts") -> Measure:
    """Return a / b in a quantity. Raises NotRecorded where the runs do not record it, or share no training seed.

    flops_without_reference: without the forward pass of the reference model that some methods' KL penalty needs.
    """
    return _ratio(view, a, b, _cost(view, a, quantity), _cost(view, b, quantity), quantity)


# ------------------------------------------------------------------------------------------------ the batch


def _share(view: ClaimView, method: str, columns: list[str], share: Callable[[pd.DataFrame, int], float]) -> Measure:
    """Return the mean over seeds of ``share(frame, B)`` in percent. frame: the columns of steps.parquet."""
    size = batch_size(view.block.methods[method][0])
    values = [100 * float(share(f, size)) for f in view.tables(method, STEPS, columns).values()]
    return of_seeds(values, "%", f"B = {size} groups")


@query()
def batch_fill(view: ClaimView, a: str) -> Measure:
    """Return the groups in the training batch as a share of the configured batch B, the mean over the steps."""
    return _share(view, a, ["batch_groups"], lambda f, size: f["batch_groups"].mean() / size)


@query()
def steps_below_capacity(view: ClaimView, a: str) -> Measure:
    """Return the share of the steps whose batch holds fewer groups than B."""
    return _share(view, a, ["batch_groups"], lambda f, size: (f["batch_groups"] < size).mean())


@query()
def batch_part(view: ClaimView, a: str, *, part: Literal["x1", "x2", "x3"]) -> Measure:
    """Return the share of the trained groups that come from x1, x2 or x3, over the whole run."""
    return _share(view, a, [part, "batch_groups"], lambda f, _: f[part].sum() / max(1, f["batch_groups"].sum()))


@query()
def fresh_kept(view: ClaimView, a: str) -> Measure:
    """Return the share of the fresh groups that the online filter keeps as X1."""
    return _share(view, a, ["x1", "groups_fresh"], lambda f, _: f["x1"].sum() / max(1, f["groups_fresh"].sum()))


@query()
def x2_admission(view: ClaimView, a: str, *, stored: int | None = None) -> Measure:
    """Return the share of re-evaluated hard prompts that eq. 6 admits, minus an unchanged policy's.

    analysis/beyond/admission.py estimates both. stored: only prompts whose stored group had this many correct answers.
    Raises NotRecorded where no such prompt was re-evaluated.
    """
    rows = {row["stored"]: row for row in view.admissions(a)}
    if stored not in rows:
        kind = "" if stored is None else f" stored at {stored} correct answers"
        raise NotRecorded(f"{view.title(a)} re-evaluates no prompt{kind}")
    row, seeds = rows[stored], len(rows[stored]["by_seed"])
    admitted, expected = (text.percent(*row[name].points) for name in ("admitted", "expected"))
    note = f"{row['count']} re-evaluations of {row['prompts']} prompts: admitted {admitted}%, "
    e, note = row["difference"].times(100), f"{note}expected of the unchanged policy {expected}%"
    return Measure(e, "points", seeds, 0.0, e.se**2 * seeds / 2, note, freedom=1.0, prompts=True)


# ------------------------------------------------------------------------------------------------ series

REDUCE: dict[str, Callable[[np.ndarray], float]] = {
    "mean": lambda x: float(np.mean(x)),
    "max": lambda x: float(np.max(x)),
    "roughness": lambda x: float(np.abs(np.diff(x)).mean()),  # mean change from one step to the next
}


@query()
def series_ratio(
    view: ClaimView,
    a: str,
    b: str,
    *,
    column: str,
    window: list[float] | None = None,
    reduce: Literal["mean", "max", "roughness"] = "mean",
) -> Measure:
    """Return a / b in the mean, max or roughness (``reduce``) of a column of steps.parquet.

    window: from, to, as shares of the run. Raises NotRecorded where the column is not recorded, or no seed is shared.
    """
    first, last = window or (0, 1)
    sides: dict[str, dict[int, float]] = {a: {}, b: {}}
    for method, by_seed in sides.items():
        for seed, frame in view.tables(method, STEPS, [column]).items():
            part = frame[column].to_numpy(np.float64)[round(first * len(frame)) : round(last * len(frame))]
            part = part[np.isfinite(part)]  # a step without an update has no gradient and no entropy
            if len(part) <= (reduce == "roughness"):
                raise NotRecorded(f"the runs of {view.title(method)} do not record {column}")
            by_seed[seed] = REDUCE[reduce](part)
    return _ratio(view, a, b, sides[a], sides[b], column)


# ------------------------------------------------------------------------------------------------ Theorem 3.2


@query()
def constants_finite(view: ClaimView, a: str) -> Measure:
    """Return the share of the steps at which K1, K2 and K3, as printed, are finite and positive.

    Raises NotRecorded where a run has no step with all three.
    """
    shares, largest = [], np.zeros(3)
    for frame in view.tables(a, STEPS, ["k1", "k2", "k3"]).values():
        k = frame.dropna().to_numpy(np.float64)
        if not len(k):
            raise NotRecorded(f"the runs of {view.title(a)} record no constants")
        shares.append(100 * float((np.isfinite(k) & (k > 0)).all(axis=1).mean()))
        largest = np.maximum(largest, k.max(axis=0))
    return of_seeds(shares, "%", ", ".join(f"K{i} at most {v:.3f}" for i, v in enumerate(largest, 1)))


@query()
def bound_can_be_positive(view: ClaimView, a: str) -> Measure:
    """Return the share of trained groups for which eq. 20's bound, at its best over all new policies, is above 0.

    At its best: the new policy gains all that a total-variation distance allows and alpha is the current policy. Raises
    NotRecorded where a run trained on no group with a reward variance.
    """
    shares, best = [], -np.inf
    for frame in view.tables(a, GROUPS, ["mean", "used"]).values():
        mean = frame.loc[frame["used"] & (frame["mean"] > 0) & (frame["mean"] < 1), "mean"].to_numpy(np.float64)
        if not len(mean):
            raise NotRecorded("no group with a reward variance was trained on")
        values = np.array([best_case(float(m)) for m in mean])
        shares.append(100 * float((values > 1e-9).mean()))
        best = max(best, float(values.max()))
    return of_seeds(shares, "%", f"the bound is at most {best + 0.0:.3g} TV(pi, alpha)")
