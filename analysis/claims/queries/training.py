"""Queries over the steps of training: costs, what the batches are made of, series such as reward, Theorem 3.2."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

import numpy as np

from analysis import text
from analysis.audit import best_case
from analysis.claims.measures import Answer, Measure, Methods, NotTestable, alone, compare, of_seeds, query, ratios
from analysis.claims.view import View
from analysis.results import has_reference_pass
from analysis.statistics import Estimate
from bapo.store.files import GROUPS

if TYPE_CHECKING:
    import pandas as pd


# ------------------------------------------------------------------------------------------------ costs

#: wall-clock time, which depends on what else the machine does: shown, never judged (entries.py); without the probes
SECONDS = "seconds"
FLOPS, WITHOUT_REFERENCE = "flops", "flops_without_reference"
Quantity = Literal[
    "rollouts", "generated_tokens", "trained_tokens", "updates", "flops", "flops_without_reference", "seconds"
]
#: quantities that a pass of a reference model is part of
HOLDS_REFERENCE = (FLOPS, SECONDS)


def _cost(view: View, method: str, quantity: str) -> dict[int, float]:
    operations = quantity in (FLOPS, WITHOUT_REFERENCE)
    parts = ("forward_flops", "backward_flops") if operations else (quantity,)
    totals = view.totals(method)
    if any(p not in t for t in totals.values() for p in parts):
        raise NotTestable(f"the runs of {view.title(method)} do not record {quantity.replace('_', ' ')}")
    less = 0.0
    if quantity == WITHOUT_REFERENCE and has_reference_pass(view.config(method)):
        if "value_clip" in view.config(method)["method"]:
            raise NotTestable(f"{view.title(method)} has a critic, whose operations hide those of the reference")
        less = 0.5  # forwards over the trained tokens: 2 operations a parameter and token against 4 backwards
    return {s: float(sum(t[p] for p in parts) - less * t.get("backward_flops", 0.0)) for s, t in totals.items()}


def _references(view: View, *methods: str) -> str:
    """Return which of the methods pay for a reference model, where not all or none do."""
    paying = [m for m in methods if has_reference_pass(view.config(m))]
    if len(paying) in (0, len(methods)):
        return ""
    return f"; a reference model's forward pass is in the cost of {' and '.join(view.title(m) for m in paying)} alone"


def _times(view: View, a: str, b: str) -> str:
    """Return the mean seconds of the two, where their runs record them."""
    means = [np.mean([t.get(SECONDS, np.nan) for t in view.totals(m).values()]) for m in (a, b)]
    if not np.isfinite(means).all():
        return ""
    shown = [f"{view.title(m)} {_amount(float(x), SECONDS)}" for m, x in zip((a, b), means, strict=True)]
    return f"; seconds on the machine, not judged: {', '.join(shown)}"


@query()
def cost_ratio(view: View, *, of: Methods, over: Methods, quantity: Quantity = "rollouts") -> Answer:
    """of / over in a quantity.

    flops_without_reference: without the forward pass of the reference model that some methods' KL penalty needs.
    """

    def against(a: str, b: str) -> Measure:
        x, y = _cost(view, a, quantity), _cost(view, b, quantity)
        common = sorted(set(x) & set(y))
        shown = [_amount(float(np.mean([v[s] for s in common])), quantity) for v in (x, y)] if common else ["", ""]
        note = f"{quantity.replace('_', ' ')}: {view.title(a)} {shown[0]}, {view.title(b)} {shown[1]}"
        note += _times(view, a, b) if quantity in (FLOPS, WITHOUT_REFERENCE) else ""
        note += _references(view, a, b) if quantity in HOLDS_REFERENCE else ""
        return of_seeds(ratios(x, y), "x", note)

    return compare(view, of, over, against)


def _amount(value: float, quantity: str) -> str:
    if quantity in (FLOPS, WITHOUT_REFERENCE):
        return f"{value:.2e}"
    return f"{value:.1f}" if quantity == SECONDS else text.thousands(value)


# ------------------------------------------------------------------------------------------------ the batch


def _shares(view: View, of: Methods, columns: list[str], share: Callable[[pd.DataFrame, int], float]) -> Answer:
    """share(frame, B) in percent, of each seed."""

    def of_one(method: str) -> Measure:
        size = view.setting(method, "train", "batch_size")
        values = [100 * float(share(f, size)) for f in view.steps(method, columns).values()]
        return of_seeds(values, "%", f"B = {size} groups")

    return alone(view, of, of_one)


@query()
def batch_fill(view: View, *, of: Methods) -> Answer:
    """Groups in the training batch as a share of the configured batch B, mean over the steps."""
    return _shares(view, of, ["batch_groups"], lambda f, size: f["batch_groups"].mean() / size)


@query()
def steps_below_capacity(view: View, *, of: Methods) -> Answer:
    """Return the share of the steps whose batch holds fewer groups than B."""
    return _shares(view, of, ["batch_groups"], lambda f, size: (f["batch_groups"] < size).mean())


@query()
def batch_part(view: View, *, of: Methods, part: Literal["x1", "x2", "x3"]) -> Answer:
    """Return the share of the trained groups that come from x1, x2 or x3, over the whole run."""
    return _shares(view, of, [part, "batch_groups"], lambda f, _: f[part].sum() / max(1, f["batch_groups"].sum()))


@query()
def fresh_kept(view: View, *, of: Methods) -> Answer:
    """Return the share of the fresh groups that the online filter keeps as X1."""
    return _shares(view, of, ["x1", "groups_fresh"], lambda f, _: f["x1"].sum() / max(1, f["groups_fresh"].sum()))


@query()
def x2_admission(view: View, *, of: Methods, stored: int | None = None) -> Answer:
    """Share of re-evaluated hard prompts that eq. 6 admits, minus an unchanged policy's (analysis/beyond/admission.py).

    stored: only prompts whose stored group had this many correct answers.
    """

    def of_one(method: str) -> Measure:
        found = {a.stored: a for a in view.admissions(method)}
        if stored not in found:
            raise NotTestable(f"{view.title(method)} re-evaluates no prompt stored at {stored} correct answers")
        a, seeds = found[stored], len(found[stored].by_seed)
        note = f"{a.count} re-evaluations of {a.prompts} prompts: admitted {text.percent(a.admitted)}%, "
        note += f"expected of the unchanged policy {text.percent(a.expected)}%"
        e = Estimate(100 * a.difference.mean, 100 * a.difference.se, a.difference.df)
        return Measure(e, "points", seeds, 0.0, e.se**2 * seeds / 2, note, freedom=1.0, prompts=True)

    return alone(view, of, of_one)


# ------------------------------------------------------------------------------------------------ series

REDUCE = {
    "mean": lambda x: float(np.mean(x)),
    "max": lambda x: float(np.max(x)),
    "roughness": lambda x: float(np.abs(np.diff(x)).mean()),  # mean change from one step to the next
}


@query()
def series_ratio(
    view: View,
    *,
    of: Methods,
    over: Methods,
    column: str,
    window: list[float] | None = None,
    reduce: Literal["mean", "max", "roughness"] = "mean",
) -> Answer:
    """of / over in the mean, max or roughness of a column of steps.parquet. window: from, to, as shares of the run."""

    def reduced(method: str) -> dict[int, float]:
        by_seed = {}
        for seed, frame in view.steps(method, [column]).items():
            values = frame[column].to_numpy(np.float64)
            first, last = (round(share * len(values)) for share in window or (0, 1))
            part = values[first:last]
            part = part[np.isfinite(part)]  # a step without an update has no gradient and no entropy
            if len(part) < 2:
                raise NotTestable(f"the runs of {view.title(method)} do not record {column}")
            by_seed[seed] = REDUCE[reduce](part)
        return by_seed

    def against(a: str, b: str) -> Measure:
        x, y = reduced(a), reduced(b)
        if any(v == 0 for v in y.values()):
            raise NotTestable(f"{column} of {view.title(b)} is 0")
        means = [np.mean(list(v.values())) for v in (x, y)]
        note = f"{column.replace('_', ' ')}: {view.title(a)} {means[0]:.3g}, {view.title(b)} {means[1]:.3g}"
        return of_seeds(ratios(x, y), "x", note)

    return compare(view, of, over, against)


@query()
def series_growth(view: View, *, of: Methods, column: str, share: float = 0.1) -> Answer:
    """Mean of a column of steps.parquet over the last ``share`` of a run, divided by that over the first."""

    def of_one(method: str) -> Measure:
        ends: dict[str, dict[int, float]] = {"first": {}, "last": {}}
        for seed, frame in view.steps(method, [column]).items():
            values = frame[column].to_numpy(np.float64)
            count = max(1, round(share * len(values)))
            for end, part in (("first", values[:count]), ("last", values[-count:])):
                part = part[np.isfinite(part)]
                if not len(part):
                    raise NotTestable(f"the runs of {view.title(method)} do not record {column}")
                ends[end][seed] = float(part.mean())
        means = [np.mean(list(side.values())) for side in ends.values()]
        note = f"{column.replace('_', ' ')}: first {means[0]:.3g}, last {means[1]:.3g}"
        return of_seeds(ratios(ends["last"], ends["first"]), "x", note)

    return alone(view, of, of_one)


# ------------------------------------------------------------------------------------------------ Theorem 3.2


@query()
def constants_finite(view: View, *, of: Methods) -> Answer:
    """Return the share of the steps at which K1, K2 and K3, as printed, are finite and positive."""

    def share(method: str) -> Measure:
        shares, largest = [], np.zeros(3)
        for frame in view.steps(method, ["k1", "k2", "k3"]).values():
            k = frame.dropna().to_numpy(np.float64)
            if not len(k):
                raise NotTestable(f"the runs of {view.title(method)} record no constants")
            shares.append(100 * float((np.isfinite(k) & (k > 0)).all(axis=1).mean()))
            largest = np.maximum(largest, k.max(axis=0))
        return of_seeds(shares, "%", ", ".join(f"K{i} at most {v:.3f}" for i, v in enumerate(largest, 1)))

    return alone(view, of, share)


@query()
def x2_premise(view: View, *, of: Methods) -> Answer:
    """Return the share of groups admitted to X2 whose reward variance is at least c1 (1 - c1) (eq. 30: all)."""

    def share(method: str) -> Measure:
        c1 = view.setting(method, "method", "c1")
        shares, count, broken = [], 0, 0
        for frame in view.tables(method, GROUPS, ["origin", "mean", "used"]).values():
            mean = frame.loc[(frame["origin"] == "re-evaluated") & frame["used"], "mean"].to_numpy(np.float64)
            if len(mean):
                holds = mean * (1 - mean) >= c1 * (1 - c1) - 1e-9
                shares.append(100 * float(holds.mean()))
                count, broken = count + len(mean), broken + int((~holds).sum())
        if not shares:
            raise NotTestable("no re-evaluated group was admitted")
        return of_seeds(shares, "%", f"{broken} of {count} admitted groups are below it")

    return alone(view, of, share)


@query()
def bound_can_be_positive(view: View, *, of: Methods) -> Answer:
    """Return the share of trained groups for which eq. 20's bound, at its best over all new policies, is above 0.

    At its best: the new policy gains all that a total-variation distance allows and alpha is the current policy.
    """

    def share(method: str) -> Measure:
        shares, best = [], -np.inf
        for frame in view.tables(method, GROUPS, ["mean", "used"]).values():
            mean = frame.loc[frame["used"] & (frame["mean"] > 0) & (frame["mean"] < 1), "mean"].to_numpy(np.float64)
            if not len(mean):
                raise NotTestable("no group with a reward variance was trained on")
            values = np.array([best_case(float(m), 2.0) for m in mean])
            shares.append(100 * float((values > 1e-9).mean()))
            best = max(best, float(values.max()))
        return of_seeds(shares, "%", f"the bound is at most {best + 0.0:.3g} TV(pi, alpha)")

    return alone(view, of, share)
