"""Queries over probes: a fixed set of prompts, sampled G times from the policy at some steps, step 0 being the base.

Methods are compared by what is counted within each run, as the paper does. `over: chance` compares across seeds, with
the unchanged base: analysis/probes.py says how, and why a run's own step 0 would not be fair.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from analysis import statistics
from analysis.claims.measures import (
    BASE,
    CHANCE,
    Answer,
    Measure,
    Methods,
    NotTestable,
    alone,
    compare,
    names,
    of_two,
    query,
    share_table,
)
from analysis.claims.view import View
from analysis.probes import Probes, Value

#: probed prompts: of the training set, or held out
Set = Literal["train", "probe"]
#: fewer chosen prompts than this tell nothing about a share
FEWEST = 10


def _probes(view: View, method: str, probed: str) -> Probes:
    """Raises NotTestable where there is no table [S, n] of them at step 0 and a later step."""
    probes = Probes.of(view.probes(method, probed))
    if len(probes.steps) < 2 or probes.steps[0] != 0:
        raise NotTestable("the probe has no step 0 and a later one in common")
    if not probes.same_prompts:
        raise NotTestable("the seeds were probed on different prompts")
    view.require_same(method, f"the probed set {probed}", probes.prompts[0])
    return probes


def _across(probes: Probes, step: int, value: Value) -> np.ndarray:
    if probes.obstacle:
        raise NotTestable(probes.obstacle)
    return probes.across(step, value)


def _correct(probes: Probes, step: int) -> np.ndarray:
    """[S, n]"""
    return np.stack(probes.at(step))


@dataclass(frozen=True)
class Share:
    """A share of prompts, as a table [S, n] at a step. own: start and end from the same run, as the paper counts it;
    across: start from the other seeds' probes (step 0 is the unchanged model)."""

    own: Callable[[Probes, int], np.ndarray]
    across: Callable[[Probes, int], np.ndarray]
    same: bool = False  # own is across


def _answer(view: View, of: Methods, over: Methods | None, probed: str, share: Share) -> Answer:
    """Return the share of each method, alone or minus another's."""

    def own(p: Probes) -> np.ndarray:
        return share.own(p, p.steps[-1])

    def of_one(method: str) -> Measure:
        probes = _probes(view, method, probed)
        note = f"{len(probes.prompts[0])} probed prompts{_beside(probes, share)}"
        return of_two(statistics.mean_over_seeds(own(probes)), view.seeds(method), "%", 100, note)

    def against(a: str, b: str) -> Measure:
        probes = _probes(view, a, probed)
        note = ""
        if b == CHANCE:
            x, y = share.across(probes, probes.steps[-1]), share.across(probes, 0)
            if not share.same:
                note = f"; counted within a run, as the paper does: {100 * own(probes).mean():.1f}%"
        else:
            x, y = own(probes), own(_probes(view, b, probed))
        note = f"{view.title(a)} {100 * x.mean():.1f}%, {view.title(b)} {100 * y.mean():.1f}%{note}"
        return of_two(statistics.difference_over_seeds([x], [y]), view.seeds(a, b), "points", 100, note)

    return alone(view, of, of_one) if over is None else compare(view, of, over, against)


def _beside(probes: Probes, share: Share) -> str:
    """Say what to read a share within a run beside: the same across seeds, and of the unchanged base."""
    try:
        now, chance = (100 * share.across(probes, step).mean() for step in (probes.steps[-1], 0))
    except NotTestable as reason:
        return f"; what sampling alone shows is not known ({reason})"
    return f"; start taken from another seed's probe: {now:.1f}%, the unchanged base sampled again: {chance:.1f}%"


def _among(chosen: np.ndarray, hit: np.ndarray, what: str) -> np.ndarray:
    """Return the share of hits among the chosen, as a table [S, n]; with too few of them there is none."""
    count = int((chosen.sum(axis=0) > 0).sum())
    if count < FEWEST:
        raise NotTestable(f"{count or 'no'} prompt{'s' * (count > 1)} of the base {what}, too few for a share")
    return share_table(chosen, hit, what)


def _of_chosen(what: str, choose: Callable[[np.ndarray, int], np.ndarray], at_least: int) -> Share:
    """Return the share with ``at_least`` correct answers at a step of the prompts that choose(base's answers, G) picks.

    what: those prompts in words, with {G} for G.
    """

    def among(count: Callable[..., np.ndarray], p: Probes, step: int) -> np.ndarray:
        chosen = count(step, lambda base, now: choose(base, p.samples))
        return _among(chosen, _correct(p, step) >= at_least, what.format(G=p.samples))

    return Share(
        lambda p, step: among(p.within, p, step),
        lambda p, step: among(lambda *arguments: _across(p, *arguments), p, step),
    )


@query(beside=(CHANCE,))
def hard_improved(view: View, *, of: Methods, over: Methods | None = None, probed: Set = "train") -> Answer:
    """Return the share of the base's 0/G prompts with a correct answer at the last step (the paper's Figure 7)."""
    return _answer(view, of, over, probed, _of_chosen("at 0/{G}", lambda base, samples: base == 0, 1))


@query(beside=(CHANCE,))
def consistent_failures(view: View, *, of: Methods, over: Methods, probed: Set = "train", at_least: int = 1) -> Answer:
    """Return the share with ``at_least`` right in the end of the prompts that the base fails in all OTHER seeds."""

    def across(p: Probes, step: int) -> np.ndarray:
        fails = _across(p, step, lambda base, now: base == 0) == 1
        return _among(fails, _correct(p, step) >= at_least, f"at 0/{(len(p.seeds) - 1) * p.samples}")

    return _answer(view, of, over, probed, Share(across, across, same=True))


@query(beside=(CHANCE,))
def degraded_prompts(
    view: View,
    *,
    of: Methods,
    over: Methods | None = None,
    probed: Set = "train",
    bins: int = 1,
    noise: float | None = None,
) -> Answer:
    """Return the share of the prompts with at least ``bins`` correct answers fewer at the last step than the base had.

    noise: no number where two samplings of the UNCHANGED base already show more than this many percent, or where that
    is not known. It cannot be subtracted: a model that improves elsewhere has fewer falls by chance, which would hide
    what it forgets.
    """

    def fewer(base: np.ndarray, now: np.ndarray) -> np.ndarray:
        return (now <= base - bins).astype(float)

    share = Share(lambda p, step: p.within(step, fewer), lambda p, step: _across(p, step, fewer))
    if noise is not None:
        for method in (m for m in names(of) if m in view.block.methods):
            probes = _probes(view, method, probed)
            chance = 100 * share.across(probes, 0).mean()
            if chance > noise:
                raise NotTestable(
                    f"sampling alone takes {chance:.1f}% of the unchanged base's prompts {bins} of {probes.samples} "
                    f"down (at most {noise:g}% for a verdict); {view.title(method)}, counted as the paper does: "
                    f"{100 * share.own(probes, probes.steps[-1]).mean():.1f}%"
                )
    return _answer(view, of, over, probed, share)


@query(beside=(CHANCE,))
def solved_stay(
    view: View, *, of: Methods, over: Methods | None = None, probed: Set = "train", at_least: int = 6
) -> Answer:
    """Return the share of the base's G/G prompts with ``at_least`` correct answers at the last step."""
    share = _of_chosen("at {G}/{G}", lambda base, samples: base == samples, at_least)
    return _answer(view, of, over, probed, share)


@query(beside=(BASE,))
def probe_difference(
    view: View, *, of: Methods, over: Methods, probed: Set = "probe", at: Literal["first", "last"] = "last"
) -> Answer:
    """of minus over in accuracy on the probed prompts (held out: probed = probe), in points.

    at: last, or first (the first probed step after the base). over = base: step 0 of the same runs.
    """

    def against(a: str, b: str) -> Measure:
        x = _probes(view, a, probed)
        y = x if b == BASE else _probes(view, b, probed)
        step = x.steps[1] if at == "first" else x.steps[-1]
        if step not in y.steps:
            raise NotTestable(f"{view.title(b)} was not probed at step {step}")
        p, q = _correct(x, step) / x.samples, _correct(y, 0 if b == BASE else step) / y.samples
        note = f"step {step}: {view.title(a)} {100 * p.mean():.1f}, {view.title(b)} {100 * q.mean():.1f}"
        difference = statistics.difference_over_seeds([p], [q], (False, b == BASE))
        return of_two(difference, view.seeds(a, b), "points", 100, note, one_freedom=b == BASE)

    return compare(view, of, over, against)
