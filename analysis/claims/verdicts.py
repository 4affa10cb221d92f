"""From an estimate and its interval to a verdict.

A claim about a direction is reproduced where the whole 95% interval lies on the claimed side, contradicted where all
of it lies on the other, and underpowered otherwise. A claim with several parts ("above EVERY baseline") is reproduced
where each part is (no correction is needed for that), and contradicted where at least one is, at 5% over all its parts.
One training seed makes one model: whatever its interval shows, no claim about a method is more than underpowered.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from analysis import text
from analysis.claims import CONTRADICTED, REPRODUCED, UNDERPOWERED
from analysis.claims.entries import Rule
from analysis.claims.measures import Measure
from analysis.statistics import CONFIDENCE, MOST_SEEDS, Estimate, seeds_needed


@dataclass(frozen=True)
class Verdict:
    """part: the comparison that decides; p: two-sided, of its distance to the rule's number, NaN where nothing varies;
    size: "", "as stated", "smaller", "larger" (against the paper's number, where the rule has a tolerance)."""

    verdict: str
    reason: str
    part: str = ""
    p: float = float("nan")
    size: str = ""


def band(rule: Rule, paper: float | None) -> tuple[float, float]:
    """(low, high) of what the claim allows; infinite on an open side."""
    if rule.kind == "above":
        return float(rule.value), math.inf
    if rule.kind == "below":
        return -math.inf, float(rule.value)
    if rule.kind == "within":
        return rule.value
    if rule.kind == "near":
        ends = paper * (1 - rule.value), paper * (1 + rule.value)
        return min(ends), max(ends)
    return 100.0, 100.0


def side(estimate: Estimate, low: float, high: float) -> int:
    """Return +1 if the interval lies inside, -1 if outside, 0 if neither or if there is no interval."""
    if estimate.se == 0:  # no spread: the number itself; a bound of an open band must be exceeded
        inside = low < estimate.mean < high or (
            math.isfinite(low) and math.isfinite(high) and low <= estimate.mean <= high
        )
        return 1 if inside else -1
    if not (math.isfinite(estimate.low) and math.isfinite(estimate.high)):
        return 0
    if low <= estimate.low and estimate.high <= high:
        return 1
    return -1 if estimate.high < low or estimate.low > high else 0


def _nearest(value: float, low: float, high: float) -> float:
    """Return the finite edge that decides."""
    edges = [e for e in (low, high) if math.isfinite(e)]
    return min(edges, key=lambda e: abs(value - e))


def p_value(estimate: Estimate, low: float, high: float) -> float:
    """Two-sided p of "the true value is the nearest edge"; without any spread 0."""
    gap = estimate.mean - _nearest(estimate.mean, low, high)
    return 0.0 if estimate.se == 0 else Estimate(gap, estimate.se, estimate.df).p


def judge(measures: dict[str, Measure], rule: Rule, paper: float | None = None) -> Verdict:
    """Return the verdict on a claim's parts (at least one)."""
    low, high = band(rule, paper)
    if rule.kind == "always":
        part, m = min(measures.items(), key=lambda item: item[1].estimate.mean)
        holds = m.estimate.mean >= 100 - 1e-9
        return Verdict(
            REPRODUCED if holds else CONTRADICTED,
            "no exception" if holds else f"{part}: {100 - m.estimate.mean:.2g}% exceptions",
            part,
        )
    # with one training seed the interval is that of new problems: it tells two models apart, not two methods
    sides = {part: side(m.estimate, low, high) if m.seeds > 1 else 0 for part, m in measures.items()}
    ps = {part: p_value(m.estimate, low, high) for part, m in measures.items()}
    against = {part: min(1.0, ps[part] * len(ps)) for part, s in sides.items() if s < 0}
    worst = min(against, key=against.get) if against else None
    if worst is not None and against[worst] < 1 - CONFIDENCE:
        return Verdict(CONTRADICTED, _against(worst, measures, len(ps)), worst, _told(against[worst]))
    weakest = max(ps, key=lambda part: (sides[part] <= 0, ps[part] if math.isfinite(ps[part]) else 2))
    if all(s > 0 for s in sides.values()):
        size = _size(measures[weakest].estimate.mean, rule, paper)
        return Verdict(REPRODUCED, _for(size, paper, measures[weakest]), weakest, _told(ps[weakest]), size)
    p = ps[weakest] if measures[weakest].seeds > 1 else float("nan")
    return Verdict(UNDERPOWERED, _undecided(measures, sides, low, high), weakest, p)


def _told(p: float) -> float:
    return p if p > 0 else float("nan")


def _size(mean: float, rule: Rule, paper: float | None) -> str:
    if rule.tolerance is None or paper is None:
        return ""
    sign = 1 if rule.kind == "above" else -1
    if sign * mean < sign * paper - rule.tolerance:
        return "smaller"
    return "larger" if sign * mean > sign * paper + rule.tolerance else "as stated"


def _for(size: str, paper: float | None, measure: Measure) -> str:
    if not size:
        return "the interval lies where the claim says"
    if size == "as stated":
        return "direction and size reproduced"
    return f"direction reproduced, size {size}: {measure.estimate.mean:.3g} against {paper:g} {measure.unit}"


def _against(part: str, measures: dict[str, Measure], count: int) -> str:
    of = "" if count == 1 else f" (worst of {count} parts: {part})"
    return f"the interval excludes the claim{of}"


def _undecided(measures: dict[str, Measure], sides: dict[str, int], low: float, high: float) -> str:
    open_parts = {part: measures[part] for part, s in sides.items() if s <= 0}
    without = [m for m in open_parts.values() if not np.isfinite(m.estimate.half_width)]
    if without:
        return f"one {'training seed' if any(m.seeds < 2 for m in without) else 'problem'} gives no interval"
    if any(m.seeds < 2 for m in open_parts.values()):
        return _of_these_models({part: side(m.estimate, low, high) for part, m in open_parts.items()})
    needed = []
    for m in open_parts.values():
        gap = m.estimate.mean - _nearest(m.estimate.mean, low, high)
        enough = math.isfinite(m.seed_variance)
        seeds = seeds_needed(gap, m.problem_variance, m.seed_variance, freedom=m.freedom) if enough else 0
        needed.append(seeds)
    if 0 in needed:
        return "how many seeds would settle it cannot be told"
    names = "" if len(sides) == 1 else f" ({len(open_parts)} of {len(sides)} parts open)"
    if None in needed:
        enough = f"not even {text.thousands(MOST_SEEDS)} seeds would settle it on these problems"
    else:
        enough = f"about {_seeds(max(needed))} would settle it"
    return f"the interval holds both{names}; if the true value is the one seen, {enough}"


def _of_these_models(sides: dict[str, int]) -> str:
    """Return what can be said of one trained model a method."""
    results = set(sides.values())
    if results == {1}:
        shown = "holds for these trained models"
    elif results == {-1}:
        shown = "does not hold for these trained models"
    else:
        shown = "is open for these trained models too" if results == {0} else "holds for some of these trained models"
    return (
        f"the claim {shown}; one training seed: the interval is that of new problems for them, and says nothing of "
        "methods"
    )


def _seeds(count: int) -> str:
    return f"{text.thousands(count) if count >= 1000 else count} seeds of each method"
