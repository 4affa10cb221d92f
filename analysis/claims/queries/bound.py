"""Queries about Theorem 3.2: its constants, its premise on X2, and whether its bound can promise anything."""

from __future__ import annotations

import numpy as np

from analysis.audit import best_case
from analysis.claims.measures import Answer, Measure, Methods, NotTestable, alone, of_seeds, query
from analysis.claims.view import View
from bapo.store.files import GROUPS


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
