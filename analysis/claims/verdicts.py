"""From an estimate and its interval to a verdict.

A claim about a direction is reproduced where the whole 95% interval lies on the claimed side, and contradicted where
all of it lies on the other. Else, if it is about accuracy and two one-sided tests at 5% reject an effect of the margin
of equivalence, there is no effect larger than that; otherwise it is underpowered. A claim with several parts ("above
EVERY baseline") is reproduced where each part is (no correction is needed for that), and contradicted where at least
one is, at 5% over all its parts. One training seed makes one model: whatever its interval shows, no claim about a
method is more than underpowered.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from analysis.claims import CONTRADICTED, NO_EFFECT, REPRODUCED, UNDERPOWERED
from analysis.claims.entries import Rule
from analysis.claims.measures import MOST_SEEDS, Measure
from analysis.statistics import CONFIDENCE, Estimate

#: the lowest and the highest value that a claim allows
Band = tuple[float, float]


@dataclass(frozen=True)
class Judgement:
    """A verdict. part: the comparison that decides; p: two-sided, of its distance to the rule's number, NaN where
    nothing varies; size: "", "as stated", "smaller", "larger" (than the paper's number, by the rule's tolerance)."""

    verdict: str
    reason: str
    part: str = ""
    p: float = float("nan")
    size: str = ""


def band(rule: Rule, paper: float | None, margin: float = math.nan) -> Band:
    """Return low and high of what the claim allows, infinite if open. paper: its number; margin: of equivalence."""
    if rule.equal:
        return -margin, margin
    if rule.above is not None:
        return float(rule.above), math.inf
    if rule.below is not None:
        return -math.inf, float(rule.below)
    if rule.within is not None:
        return rule.within
    if rule.near is not None and paper is not None:
        ends = paper * (1 - rule.near), paper * (1 + rule.near)
        return min(ends), max(ends)
    return 100.0, 100.0


def side(estimate: Estimate, low: float, high: float) -> int:
    """Return +1 if the interval lies inside, -1 if outside, 0 if neither or if there is no interval."""
    if estimate.se == 0:  # without spread the number decides, which must exceed the bound of an open band
        closed = math.isfinite(low) and math.isfinite(high)
        return 1 if low < estimate.mean < high or (closed and low <= estimate.mean <= high) else -1
    if not (math.isfinite(estimate.low) and math.isfinite(estimate.high)):
        return 0
    if low <= estimate.low and estimate.high <= high:
        return 1
    return -1 if estimate.high < low or estimate.low > high else 0


def _gap(value: float, low: float, high: float) -> float:
    """Return the distance to the finite edge that decides."""
    return min((value - edge for edge in (low, high) if math.isfinite(edge)), key=abs)


def p_value(estimate: Estimate, low: float, high: float) -> float:
    """Return the two-sided p of "the true value is the nearest edge"; 0 without any spread."""
    gap = _gap(estimate.mean, low, high)
    return 0.0 if estimate.se == 0 else Estimate(gap, estimate.se, estimate.df).p


def judge(measures: Mapping[str, Measure], rule: Rule, paper: float | None = None) -> Judgement:
    """Return the verdict on a claim's parts (at least one)."""
    if rule.always:
        part, m = min(measures.items(), key=lambda item: item[1].estimate.mean)
        exceptions = 100 - m.estimate.mean
        holds = exceptions <= 1e-9
        return Judgement(REPRODUCED if holds else CONTRADICTED, "" if holds else f"exceptions: {exceptions:.2g}%", part)
    # with one training seed the interval is that of new problems: it compares two models, not two methods
    bands = {part: band(rule, paper, m.margin) for part, m in measures.items()}
    sides = {part: side(m.estimate, *bands[part]) if m.seeds > 1 else 0 for part, m in measures.items()}
    ps = {part: p_value(m.estimate, *bands[part]) for part, m in measures.items()}
    if rule.equal:  # two one-sided tests say what is inside
        inside = {part for part, m in measures.items() if _equivalent(m)}
        sides = {part: 1 if part in inside else min(0, s) for part, s in sides.items()}
        ps = {part: p / 2 if part in inside else p for part, p in ps.items()}
    against = {part: min(1.0, ps[part] * len(ps)) for part, s in sides.items() if s < 0}
    worst = min(against, key=lambda part: against[part], default="")
    if worst and against[worst] < 1 - CONFIDENCE:
        reason = "the interval excludes the claim" + (f"; worst of {len(ps)} parts" if len(ps) > 1 else "")
        return Judgement(CONTRADICTED, reason, worst, against[worst] or math.nan)
    weakest = max(ps, key=lambda part: (sides[part] <= 0, ps[part] if math.isfinite(ps[part]) else 2))
    if all(s > 0 for s in sides.values()):
        size = _size(measures[weakest].estimate.mean, rule, paper)
        return Judgement(REPRODUCED, "the interval lies where the claim says", weakest, ps[weakest] or math.nan, size)
    undecided = {part: measures[part] for part, s in sides.items() if s <= 0}
    if 0 in (rule.above, rule.below) and all(map(_equivalent, undecided.values())):
        ps = {part: p_value(m.estimate, -m.margin, m.margin) / 2 for part, m in undecided.items()}
        last = max(ps, key=lambda part: ps[part])
        m = measures[last]
        return Judgement(
            NO_EFFECT, f"the 90% interval lies within ±{m.margin:.2g} {m.unit}", last, ps[last] or math.nan
        )
    p = ps[weakest] if measures[weakest].seeds > 1 else math.nan
    reason = f"{len(undecided)} of {len(sides)} parts open; " if len(sides) > 1 else ""
    return Judgement(UNDERPOWERED, reason + _missing(undecided, bands), weakest, p)


def _equivalent(measure: Measure) -> bool:
    return measure.seeds > 1 and measure.estimate.p_equivalent(measure.margin) < 1 - CONFIDENCE


def _size(mean: float, rule: Rule, paper: float | None) -> str:
    if rule.tolerance is None or paper is None:
        return ""
    sign = 1 if rule.above is not None else -1
    if sign * mean < sign * paper - rule.tolerance:
        return "smaller"
    return "larger" if sign * mean > sign * paper + rule.tolerance else "as stated"


def _missing(undecided: Mapping[str, Measure], bands: Mapping[str, Band]) -> str:
    """Return what would decide the open parts."""
    if any(m.seeds < 2 for m in undecided.values()):
        sides = {side(m.estimate, *bands[part]) for part, m in undecided.items()}
        words = {1: "holds", -1: "does not hold"}.get(sides.pop(), "is open") if len(sides) == 1 else "differs by part"
        return f"one training seed says nothing of methods; for these trained models the claim {words}"
    if not all(math.isfinite(m.estimate.half_width + m.seed_variance) for m in undecided.values()):
        return "seeds that would settle it: not known"
    needed = [m.seeds_needed(_gap(m.estimate.mean, *bands[part])) for part, m in undecided.items()]
    counts = [seeds for seeds in needed if seeds is not None]
    enough = f"about {max(counts)}" if len(counts) == len(needed) else f"more than {MOST_SEEDS}, on these problems"
    return f"seeds of each method that would settle it, if the true value is the one seen: {enough}"
