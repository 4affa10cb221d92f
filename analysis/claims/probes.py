"""Queries over probes: a fixed set of prompts, sampled G times from the policy at some steps, step 0 being the base.

A prompt at 0/G has rarely a chance of exactly 0: an UNCHANGED model sampled again also "solves" some, and loses others.
`over: chance` compares with that. Prompts are then chosen, or starting points taken, from ANOTHER seed's probe of the
same base, and what happened is read from the seed's own probes: at the last step for the trained model, at step 0 for
the unchanged one. Neither side then owes anything to the samples that the prompts were chosen by. (The probes of one
run share their random numbers, so two probes of one run would show too little chance.)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from analysis import statistics
from analysis.claims.measures import NotTestable, of_two, share_table
from analysis.claims.registry import BASE, CHANCE, Answer, answers, pairs, query, there

if TYPE_CHECKING:
    from analysis.claims.view import View

#: probed prompts: of the training set, or held out
SETS = ("train", "probe")
#: fewer chosen prompts than this tell nothing about a share
FEWEST = 10


class Counts:
    """Correct answers [S, n] of the probed prompts of one method. start: the base; samples: G."""

    def __init__(self, view: View, method: str, probed: str):
        frames = view.probes(method, probed)
        self.steps = sorted(set.intersection(*(set(f.columns) for f in frames.values())))
        if len(self.steps) < 2 or self.steps[0] != 0:
            raise NotTestable("the probe has no step 0 and a later one in common")
        self.prompts = sorted(set.intersection(*(set(f.index) for f in frames.values())))
        self.by_step = {s: np.stack([f.loc[self.prompts, s].to_numpy() for f in frames.values()]) for s in self.steps}
        self.samples = next(iter(frames.values())).attrs["samples"]
        self.start, self.end = self.by_step[0], self.by_step[self.steps[-1]]

    def over_others(self, value: Callable[[int, int], np.ndarray]) -> np.ndarray:
        """[S, n]: the mean over the other seeds o of value(seed, o), for every seed."""
        seeds = range(len(self.start))
        if len(seeds) < 2:
            raise NotTestable("one seed: what chance alone shows needs a second sampling of the base")
        if any(np.array_equal(self.start[s], self.start[o]) for s in seeds for o in seeds if o < s):
            raise NotTestable("the seeds share their samples of the base, so chance cannot be told")
        return np.stack([np.mean([value(s, o) for o in seeds if o != s], axis=0) for s in seeds])


@dataclass(frozen=True)
class Share:
    """A share of prompts. own(counts): [S, n] as the paper counts it, start and end from the same run; across(counts,
    now): start from the other seeds' probes, ``now`` [S, n] the end, or the start of the unchanged model."""

    own: Callable[[Counts], np.ndarray]
    across: Callable[[Counts, np.ndarray], np.ndarray]
    same: bool = False  # own is across


def _answer(view: View, of: Any, over: Any, probed: str, share: Share) -> Answer:
    """The share of each method, alone or minus another's."""

    def alone(method: str):
        counts = Counts(view, method, probed)
        note = f"{len(counts.prompts)} probed prompts"
        return of_two(statistics.mean_over_seeds(share.own(counts)), view.seeds(method), "%", 100, note)

    def against(a: str, b: str):
        counts = Counts(view, a, probed)
        note = ""
        if b == CHANCE:
            x, y = share.across(counts, counts.end), share.across(counts, counts.start)
            note = (
                ""
                if share.same
                else f"; counted within a run, as the paper does: {100 * share.own(counts).mean():.1f}%"
            )
        else:
            x, y = share.own(counts), share.own(Counts(view, b, probed))
        note = f"{view.title(a)} {100 * x.mean():.1f}%, {view.title(b)} {100 * y.mean():.1f}%{note}"
        return of_two(statistics.difference_over_seeds([x], [y]), view.seeds(a, b), "points", 100, note)

    return answers(there(view, of), alone) if over is None else answers(pairs(view, of, over), against)


def _among(chosen: np.ndarray, hit: np.ndarray, what: str) -> np.ndarray:
    """The share of hits among the chosen, as a table [S, n]; with too few of them there is none."""
    count = int((chosen.sum(axis=0) > 0).sum())
    if count < FEWEST:
        raise NotTestable(f"{count or 'no'} prompt{'s' * (count > 1)} of the base {what}, too few for a share")
    return share_table(chosen, hit, what)


@query(probed=SETS)
def hard_improved(view: View, *, of: Any, over: Any = None, probed: str = "train") -> Answer:
    """Share of the base's 0/G prompts with at least one correct answer at the last step (the paper's Figure 7)."""
    return _answer(view, of, over, probed, Share(
        lambda c: _among(c.start == 0, c.end > 0, f"at 0/{c.samples}"),
        lambda c, now: _among(c.over_others(lambda s, o: c.start[o] == 0), now > 0, f"at 0/{c.samples}"),
    ))  # fmt: skip


@query(probed=SETS)
def consistent_failures(view: View, *, of: Any, over: Any, probed: str = "train", at_least: int = 1) -> Answer:
    """Share of the prompts that the base fails in every OTHER seed's probe with ``at_least`` right in the end."""

    def across(c: Counts, now: np.ndarray) -> np.ndarray:
        fails = c.over_others(lambda s, o: c.start[o] == 0) == 1
        return _among(fails, now >= at_least, f"at 0/{(len(c.start) - 1) * c.samples}")

    return _answer(view, of, over, probed, Share(lambda c: across(c, c.end), across, same=True))


@query(probed=SETS)
def degraded_prompts(view: View, *, of: Any, over: Any = None, probed: str = "train", bins: int = 1) -> Answer:
    """Share of the prompts with at least ``bins`` correct answers fewer at the last step than the base had."""
    return _answer(view, of, over, probed, Share(
        lambda c: (c.end <= c.start - bins).astype(float),
        lambda c, now: c.over_others(lambda s, o: now[s] <= c.start[o] - bins),
    ))  # fmt: skip


@query(probed=SETS)
def solved_stay(view: View, *, of: Any, over: Any = None, probed: str = "train", at_least: int = 6) -> Answer:
    """Share of the base's G/G prompts with ``at_least`` correct answers at the last step."""

    def across(c: Counts, now: np.ndarray) -> np.ndarray:
        return _among(
            c.over_others(lambda s, o: c.start[o] == c.samples), now >= at_least, f"at {c.samples}/{c.samples}"
        )

    own = Share(lambda c: _among(c.start == c.samples, c.end >= at_least, f"at {c.samples}/{c.samples}"), across)
    return _answer(view, of, over, probed, own)


@query(probed=SETS, at=("first", "last"))
def probe_difference(view: View, *, of: Any, over: Any, probed: str = "probe", at: str = "last") -> Answer:
    """of minus over in accuracy on the probed prompts (held out: probed = probe), in points.

    at: last, or first (the first probed step after the base). over = base: step 0 of the same runs.
    """

    def against(a: str, b: str):
        x = Counts(view, a, probed)
        y = x if b == BASE else Counts(view, b, probed)
        step = x.steps[1] if at == "first" else x.steps[-1]
        if step not in y.by_step:
            raise NotTestable(f"{view.title(b)} was not probed at step {step}")
        p, q = x.by_step[step] / x.samples, (x.start if b == BASE else y.by_step[step]) / x.samples
        note = f"step {step}: {view.title(a)} {100 * p.mean():.1f}, {view.title(b)} {100 * q.mean():.1f}"
        difference = statistics.difference_over_seeds([p], [q], (False, b == BASE))
        return of_two(difference, view.seeds(a, b), "points", 100, note)

    return answers(pairs(view, of, over), against)
