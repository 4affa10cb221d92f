"""Tuning: every candidate of every method on held-out problems, and which of them is chosen: tuning.csv, .md and .tex.

A candidate is a method with variants; it is scored at the last step of its runs on the probe that training never sees.
No test benchmark is read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from analysis import reading, statistics, text
from analysis.page import RULE, Cell, Page, Table, at_scale
from analysis.results import COST_HEADER, cost_cells, costs_of
from analysis.study import Block, Study, row_order
from bapo.errors import UserError

#: the probed set that no method trains on
HELD_OUT = "probe"
#: variants of a candidate, () for the method as the setting has it
Variants = tuple[str, ...]
HEADER = ("Method", "Candidate", "Probe", "Minus the highest (SE)", "Choice", "Setting", *COST_HEADER)
NOTES = (
    "Probe: percent correct at the last step on {prompts} held-out problems, mean over {seeds}; sd: between them.",
    "Minus the highest: difference in points to the method's highest mean (standard error over problems and seeds, "
    "paired); near: behind by no more than that.",
    "chosen: of the highest and those near it the one with fewest changes, then the higher mean; named: Table 1's.",
    "Rollouts, updates, FLOPs (forward and backward): totals of a run, mean over seeds.",
)


@dataclass(frozen=True)
class Candidate:
    """A method with variants. solved [S, n]: share of each prompt's samples that are correct; costs: means over seeds.

    rate: its learning rate, None where a run has no configuration.
    """

    method: str
    title: str
    seeds: tuple[int, ...]
    solved: np.ndarray
    costs: Mapping[str, float]
    rate: float | None

    @property
    def variants(self) -> Variants:
        return tuple(self.method.split("+")[1:])


# ------------------------------------------------------------------------------------------------ the choice


def behind(best: np.ndarray, other: np.ndarray) -> tuple[float, float]:
    """Return (difference, its standard error) of two candidates, [S, n] each, of the same seeds and prompts.

    The error is that of new problems and new training seeds, or of new problems alone where there is one seed.
    """
    d = statistics.paired_over_seeds([best - other])
    return d.mean, d.tested.se


def near(scores: Mapping[Variants, np.ndarray]) -> list[Variants]:
    """Return the candidates that are less than one standard error behind the highest mean, that one first.

    scores: of one method, [S, n] each, on the same prompts.
    """
    best = max(scores, key=lambda variants: scores[variants].mean())
    distances = {v: behind(scores[best], s) for v, s in scores.items() if v != best}
    return [best, *(v for v, (difference, se) in distances.items() if difference <= se)]


def choose(scores: Mapping[Variants, np.ndarray]) -> Variants:
    """Return, of those :func:`near` the best, the candidate nearest to the setting: fewest variants, then highest mean.

    So a value other than the setting's is chosen only where the data speak for it. scores: as in :func:`near`.
    """
    return min(near(scores), key=lambda variants: (len(variants), -scores[variants].mean()))


@dataclass(frozen=True)
class Tuned:
    """The candidates of one method. named: what the setting names."""

    method: str
    candidates: Mapping[Variants, Candidate]
    named: Variants

    @property
    def scores(self) -> dict[Variants, np.ndarray]:
        return {variants: candidate.solved for variants, candidate in self.candidates.items()}

    @property
    def title(self) -> str:
        return next(iter(self.candidates.values())).title.partition(", ")[0]

    @property
    def choice(self) -> Candidate:
        return self.candidates[choose(self.scores)]

    @property
    def edge(self) -> str:
        """Return "smallest" or "largest" where the chosen learning rate is the end of those tried, else ""."""
        rates = sorted({c.rate for c in self.candidates.values() if c.rate is not None})
        ends = {rates[0]: "smallest", rates[-1]: "largest"} if len(rates) > 1 else {}
        return ends.get(self.choice.rate or 0.0, "")


def tune(block: Block, study: Study) -> list[Tuned]:
    """Return every method of a block with its candidates, the plain one first."""
    named = study.chosen.get(block.task, {})
    grouped: dict[str, list[Candidate]] = {}
    for method in sorted(block.methods, key=lambda m: m.count("+")):
        grouped.setdefault(method.split("+")[0], []).append(_candidate(block, method, study))
    return [Tuned(m, {c.variants: c for c in grouped[m]}, tuple(named.get(m, ()))) for m in row_order(grouped)]


def _candidate(block: Block, method: str, study: Study) -> Candidate:
    cells = block.methods[method]
    frames = {seed: frame.sort_index() for seed, frame in reading.probes(block, method, study, HELD_OUT).items()}
    prompts = [tuple(frame.index) for frame in frames.values()]
    if any(p != prompts[0] for p in prompts):
        raise UserError(f"{cells[0].run.parent}: its seeds were probed on different prompts; make them again")
    solved = [frame[frame.columns.max()].to_numpy() / frame.attrs["samples"] for frame in frames.values()]
    rate = reading.config(cells[0], study).get("train", {}).get("learning_rate")
    title = block.method_title(method).lstrip("+")
    return Candidate(method, title, tuple(frames), np.stack(solved), costs_of(cells, study), rate)


# ------------------------------------------------------------------------------------------------ the table


def rows(block: Block, tuned: Tuned) -> list[dict[str, Any]]:
    """Return one row a candidate, in percent and points."""
    scores, choice = tuned.scores, tuned.choice
    best, *others = near(scores)
    found = []
    for variants, c in tuned.candidates.items():
        mean, (difference, se) = statistics.mean_over_seeds(c.solved), behind(scores[best], scores[variants])
        found.append(
            {
                **block.keys(tuned.method),
                "candidate": c.method,
                "title": c.title,
                "learning_rate": c.rate,
                "problems": c.solved.shape[1],
                "seeds": len(c.seeds),
                "mean": 100 * mean.mean,
                "seed_sd": 100 * mean.seed_sd,
                "minus_highest": -100 * difference,
                "minus_highest_se": 0.0 if variants == best else 100 * se,
                "near": variants == best or variants in others,
                "chosen": c is choice,
                "named": set(tuned.named) == set(variants),
                **c.costs,
                **{f"seed_{s}": 100 * v for s, v in zip(c.seeds, mean.seed_means, strict=True)},
            }
        )
    return found


def _line(title: str, row: Mapping[str, Any]) -> list[str | Cell]:
    changed = row["title"].partition(", ")[2]
    highest = row["near"] and row["minus_highest_se"] == 0
    place = "highest" if highest else "near" if row["near"] else ""
    behind_by = f"{text.signed(row['minus_highest'])} ({text.number(row['minus_highest_se'])})"
    return [
        title,
        Cell(changed or "the setting's own values", mark=text.BOLD if row["chosen"] else ""),
        Cell(text.number(row["mean"]), text.number(row["seed_sd"]) if np.isfinite(row["seed_sd"]) else ""),
        text.MISSING if highest else behind_by,
        ", ".join(filter(None, ["chosen" if row["chosen"] else "", place])),
        "named" if row["named"] else "",
        *cost_cells(row),
    ]


def sentences(block: Block, methods: Sequence[Tuned], study: Study) -> list[str]:
    """Return the choices as a setting names them, where Table 1 has others, and those at the edge of what was tried."""
    lines = [f"The chosen learning rate is the {t.edge} tried: {t.title}." for t in methods if t.edge]
    stale = [t.title for t in methods if set(t.named) != set(t.choice.variants)]
    if stale:
        named = {m: v for m, v in study.chosen.get(block.task, {}).items() if m not in {t.method for t in methods}}
        named |= {t.method: t.choice.variants for t in methods if t.choice.variants}
        listed = ", ".join(f"{method}: {'+'.join((method, *variants))}" for method, variants in named.items())
        where = f"experiments/study/table1.yaml, {study.scale}, {block.task}"
        lines.append(f"Table 1 has another choice for {', '.join(stale)}. {where}: tuned: {{{listed}}}")
    return lines


def write(study: Study, out: Path) -> list[Path]:
    """Write the table in every format; returns the files."""
    import pandas as pd

    every, tables = list[dict[str, Any]](), []
    for block in study.blocks:
        methods, lines = tune(block, study), list[Sequence[str | Cell]]()
        for tuned in methods:
            found = rows(block, tuned)
            lines += [*([RULE] if lines else []), *(_line(tuned.title, row) for row in found)]
            every += found
        tables.append(Table(block.title, HEADER, lines, "llrrllrrr", sentences(block, methods, study)))
    prompts = text.span([row["problems"] for row in every])
    seeds = text.counted([row["seeds"] for row in every], "training seed")
    notes = [*study.notes, *(note.format(prompts=prompts, seeds=seeds) for note in NOTES)]
    page = Page(at_scale("Hyper-parameters on held-out problems", study.scale), tables, notes)
    return page.write(out, "tuning", pd.DataFrame(every))
