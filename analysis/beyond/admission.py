"""X2's admission against sampling alone: how often a re-evaluated hard prompt passes eq. 6, and how often it would if
the policy had not changed since the prompt was stored.

A prompt enters B_bad because a fresh group of it had at most c1 G correct answers, often by bad luck: sampled again
from the same policy, some of these prompts pass c1 < mu < 1. What they would show follows from the distribution of
success rates p over the prompts of that rollout policy, fitted to its fresh groups by maximum likelihood (EM over a
grid of p), and from Bayes' rule. G answers a prompt determine the first G moments of p and no more, so the expected
share rests on the fit too: a grid and a start that favour no p.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from analysis import reading, style, text
from analysis.statistics import Estimate
from analysis.study import Block, StudyFile
from bapo.algorithm.rollouts import FRESH, REEVALUATED, above, between
from bapo.store.files import GROUPS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GRID = np.linspace(0, 1, 41)
#: rounds of EM; the expected share moves by less than 0.002 after them
ROUNDS = 200
#: the fewest fresh groups that a distribution is fitted to; those of the next rollout policies are added if needed
FEWEST = 128
#: draws of prompts and seeds behind an interval
DRAWS = 200
#: share of re-evaluated prompts -> (column of the figure's data, colour, marker, shift in rows)
SHOWN = {
    "admitted as X2": ("admitted", style.VERMILLION, "o", -0.14),
    "expected of the unchanged policy": ("expected", style.GREY, "s", 0.14),
}
COLUMNS = ("step", "prompt_id", "origin", "version", "generated_step", "rewards")


# ------------------------------------------------------------------------------------------------ the distribution


def binomial(tries: int) -> np.ndarray:
    """Return P(k correct of ``tries`` | p) for p in GRID: [tries + 1, P]."""
    from scipy.stats import binom

    return binom.pmf(np.arange(tries + 1)[:, None], tries, GRID)


def fit(histograms: np.ndarray, rounds: int = ROUNDS) -> np.ndarray:
    """Return the distributions of p [..., P] that explain histograms [..., G + 1] of prompts by correct answers."""
    histograms = np.asarray(histograms, dtype=np.float64)
    likelihood = binomial(histograms.shape[-1] - 1)
    shares = histograms / histograms.sum(axis=-1, keepdims=True)
    weights = np.full((*shares.shape[:-1], len(GRID)), 1 / len(GRID))
    for _ in range(rounds):
        weights = weights * ((shares / (weights @ likelihood.T)) @ likelihood)
    return weights


def passing(group_size: int, c1: float) -> np.ndarray:
    """Return which numbers of correct answers [G + 1] eq. 6 admits: c1 < k / G < 1."""
    means = [k / group_size for k in range(group_size + 1)]
    return np.array([above(mean, c1) and not between(mean, 1, 1) for mean in means])


def expected(weights: np.ndarray, correct: np.ndarray, tries: np.ndarray, group_size: int, c1: float) -> np.ndarray:
    """Return the chance [..., N] that eq. 6 admits each prompt if its policy is still the same.

    weights: its policy's distribution of p [..., P]; correct, tries [N]: what the prompt has shown since it was stored;
    group_size, c1: G and the threshold of eq. 6.
    """
    likelihood = GRID ** correct[:, None] * (1 - GRID) ** (tries - correct)[:, None]  # [N, P]
    again = passing(group_size, c1) @ binomial(group_size)
    return (weights @ (likelihood * again).T) / (weights @ likelihood.T)


# ------------------------------------------------------------------------------------------------ the runs


@dataclass(frozen=True)
class Tries:
    """The re-evaluations of one run. size: G; c1: of its method; prompts: ids [U].

    fresh: how many fresh groups each prompt has in each window of steps, by correct answers [U, W, G + 1]. table: a row
    a re-evaluation: the ``window`` that stored the prompt, ``stored``, the correct answers of the group that did,
    ``correct`` and ``tries``, of the prompt from that group on, whether eq. 6 ``admitted`` it, and the place of its
    ``prompt``.
    """

    size: int
    c1: float
    prompts: tuple[str, ...]
    fresh: np.ndarray
    table: pd.DataFrame

    def chances(self, weights: np.ndarray) -> np.ndarray:
        """Return the chance of each re-evaluation under an unchanged policy [..., N]. weights: of prompts [..., U]."""
        histograms = np.einsum("...u,uwk->...wk", weights, self.fresh)
        fitted = fit(histograms + 1e-9)  # a window without one of the drawn prompts says nothing
        chance = np.empty((*weights.shape[:-1], len(self.table)))
        for window, rows in self.table.groupby("window"):
            answers = rows["correct"].to_numpy(), rows["tries"].to_numpy()
            chance[..., rows.index] = expected(fitted[..., window, :], *answers, self.size, self.c1)
        return chance


def windows(version: np.ndarray, fewest: int = FEWEST) -> np.ndarray:
    """Return the window [M] of each fresh group: rollout policies in a row with at least ``fewest`` groups together."""
    _, place, counts = np.unique(version, return_inverse=True, return_counts=True)
    names, current, held = np.zeros(len(counts), int), 0, 0
    for i, count in enumerate(counts):
        if held >= fewest:
            current, held = current + 1, 0
        names[i] = current
        held += count
    if held < fewest and current:  # too few are left for a window of their own
        names = np.minimum(names, current - 1)
    return names[place]


def tries_of(groups: pd.DataFrame, c1: float) -> Tries | None:
    """Return the re-evaluations of one run's groups.parquet.

    None where there is none, or where fresh groups are not whole (a filter that keeps single responses).
    """
    correct = groups["rewards"].map(lambda r: round(float(np.sum(r)))).to_numpy()
    origin, step = groups["origin"].to_numpy(), groups["step"].to_numpy()
    sizes = groups["rewards"].map(len).to_numpy()
    is_fresh, is_again = origin == FRESH, origin == REEVALUATED
    if not is_again.any() or len(set(sizes[is_fresh])) != 1:
        return None
    size = int(sizes[is_fresh][0])
    names, place = np.unique(groups["prompt_id"].to_numpy(str), return_inverse=True)
    window = np.full(len(groups), -1)
    window[is_fresh] = windows(groups["version"].to_numpy()[is_fresh])
    hard = correct <= c1 * size + 1e-9
    rows, entries = [], dict[int, tuple[int, int, int]]()  # prompt -> the group that stored it, correct, tries
    # a step re-evaluates before it stores its own hard prompts (Algorithm 1)
    for i in np.lexsort((is_fresh, step)):
        if is_fresh[i] and hard[i]:
            entries[place[i]] = (i, correct[i], size)
        elif is_again[i] and place[i] in entries:
            first, right, tries = entries[place[i]]
            rows.append((window[first], correct[first], right, tries, passing(size, c1)[correct[i]], place[i]))
            entries[place[i]] = (first, right + correct[i], tries + size)
    if not rows:
        return None
    fresh = np.zeros((len(names), int(window.max()) + 1, size + 1))
    np.add.at(fresh, (place[is_fresh], window[is_fresh], correct[is_fresh]), 1)
    columns = ["window", "stored", "correct", "tries", "admitted", "prompt"]
    return Tries(size, c1, tuple(names), fresh, pd.DataFrame(rows, columns=columns))


def of_method(block: Block, method: str, study: StudyFile) -> dict[int, Tries]:
    """Return the re-evaluations of each seed that has any. Raises UserError for a broken run or one without groups."""
    runs = {}
    for cell in block.methods[method]:
        c1 = reading.config(cell).get("method", {}).get("c1")
        if c1 is not None and (tries := tries_of(reading.table(cell, GROUPS, study, COLUMNS), float(c1))):
            runs[cell.seed] = tries
    return runs


# ------------------------------------------------------------------------------------------------ the measure


#: shares of re-evaluations, with a standard error over prompts and seeds
SHARES = ("admitted", "expected", "difference")


def admissions(runs: Mapping[int, Tries], draws: int = DRAWS) -> list[dict[str, Any]]:
    """Return a row for each number of correct answers of the stored group, and last one over all; none without runs.

    stored: that number, None for all; count, prompts: re-evaluations and their prompts over all seeds; by_seed: the
    difference of each seed; SHARES: estimates with S - 1 degrees of freedom, or one less than prompts for one seed.
    runs: by seed.

    The error is a bootstrap's that draws seeds and prompts at once (Owen 2007): one draw of the prompts holds for all
    seeds, which share them, and the distributions of p are fitted anew to each.
    """
    if not runs:
        return []
    names, rng = sorted({p for t in runs.values() for p in t.prompts}), np.random.default_rng(0)

    def times_drawn(count: int) -> np.ndarray:
        """Return how often each of ``count`` things counts [draws + 1, count]; the first line is what was seen."""
        again = rng.multinomial(count, np.full(count, 1 / count), draws) if count > 1 else np.ones((draws, count))
        return np.vstack([np.ones(count), again])

    weights, seeds = times_drawn(len(names)), times_drawn(len(runs))
    tables, counts, chances = [], [], []
    for (seed, t), times in zip(runs.items(), seeds.T, strict=True):
        mine, place = weights[:, np.searchsorted(names, t.prompts)], t.table["prompt"]
        tables.append(t.table.assign(seed=seed, prompt=np.array(t.prompts)[place]))
        counts.append(times[:, None] * mine[:, place])
        chances.append(t.chances(mine))
    table, count, chance = pd.concat(tables, ignore_index=True), np.hstack(counts), np.hstack(chances)
    return [_admission(kind, table, count, chance) for kind in (*sorted(set(table["stored"])), None)]


def _admission(stored: int | None, table: pd.DataFrame, counts: np.ndarray, chances: np.ndarray) -> dict[str, Any]:
    """counts: how often each re-evaluation counts in each draw [draws + 1, N]; a draw without one says nothing."""
    mine = table if stored is None else table[table["stored"] == stored]
    n, prompts = counts[:, mine.index], mine["prompt"].nunique()
    parts = np.stack([n, n * mine["admitted"].to_numpy(), n * chances[:, mine.index]])
    total, passed, chance = parts.sum(axis=-1)  # [draws + 1] each
    shares = np.stack([passed, chance]) / np.where(total > 0, total, np.nan)
    numbers = np.stack([*shares, shares[0] - shares[1]])
    sums = pd.DataFrame(parts[:, 0].T).groupby(mine["seed"].to_numpy()).sum()
    by_seed = ((sums[1] - sums[2]) / sums[0]).to_dict()
    df = (len(by_seed) if len(by_seed) > 1 else prompts) - 1
    errors = np.nanstd(numbers[:, 1:], axis=1, ddof=1)
    estimates = [Estimate(float(m), float(e), df) for m, e in zip(numbers[:, 0], errors, strict=True)]
    row = {"stored": stored, "count": len(mine), "prompts": prompts, "by_seed": by_seed}
    return row | dict(zip(SHARES, estimates, strict=True))


def x2_admission(study: StudyFile) -> tuple[Figure, pd.DataFrame]:
    """Return the figure and its data, in percent. Raises UserError where a run is unfinished or lacks its groups."""
    reading.require_runs(study)
    rows = []
    for block in study.blocks:
        for method in block.methods:
            runs = of_method(block, method, study)
            where = [block.title] if len(study.blocks) > 1 else []
            title = "\n".join([*textwrap.wrap(block.plain_title(method), 33), *where])
            for one in admissions(runs):
                size, seeds = next(iter(runs.values())).size, one["by_seed"]
                kind = "all" if one["stored"] is None else f"{one['stored']}/{size}"
                row = {**block.keys(method), "title": title, "stored": kind, "reevaluations": one["count"]}
                row |= {"prompts": one["prompts"], "seeds": len(seeds)}
                for name in SHARES:
                    row |= text.columns(name, one[name], "low", "high")
                rows.append(row | {f"difference_seed_{s}": 100 * d for s, d in seeds.items()})
    if not rows:
        return style.nothing("No run of this study re-evaluates a stored prompt, so there is no X2 to show.")
    frame = pd.DataFrame(rows)
    kinds, titles = list(dict.fromkeys(frame["stored"])), list(dict.fromkeys(frame["title"]))
    caption = text.words("admission", note=study.note)[0]
    fig, panels = style.grid(caption, len(kinds), len(kinds), 0.3 * (len(titles) + 2), sharey=True)
    for axes, kind in zip(panels, kinds, strict=True):
        here = frame[frame["stored"] == kind]
        for label, (column, colour, marker, shift) in SHOWN.items():
            places = [titles.index(t) + shift for t in here["title"]]
            ends = here[f"{column}_low"].clip(lower=0), here[f"{column}_high"]
            style.whiskers(axes, here[column], places, ends, color=colour, fmt=marker, label=label)
        axes.set_xlim(left=0)
        axes.set_xlabel("% of re-evaluations")
        axes.set_title(f"stored at {kind}" if kind != "all" else "all")
    panels[0].set_ylim(len(titles) - 0.5, -0.5)
    panels[0].set_yticks(range(len(titles)), titles, fontsize=7)
    style.legend(fig, panels)
    return fig, frame.assign(title=frame["title"].str.replace("\n", " "))
