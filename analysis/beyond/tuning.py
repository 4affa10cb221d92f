"""Tuning: every candidate of every method on held-out problems, and which of them is chosen: tuning.csv, .md and .tex.

A candidate is a method with variants; it is scored at the last step of its runs on the probe that training never sees.
No test benchmark is read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from analysis import probes, reading, statistics, text
from analysis.page import Page, PageCell, Table
from analysis.results import cost_cells, costs_of
from analysis.study import Block, StudyFile, row_order
from bapo.errors import UserError

#: the variants of a candidate; () is the method with the values of the setting
Variants = tuple[str, ...]


def behind(best: np.ndarray, other: np.ndarray) -> tuple[float, float]:
    """Return (difference, its standard error) of two candidates, [S, n] each, of the same seeds and prompts.

    The error is that of new problems and new training seeds, or of new problems alone where there is one seed.
    """
    d = statistics.mean_over_seeds(best - other)
    return d.mean, d.tested.se


def near(scores: Mapping[Variants, np.ndarray]) -> list[Variants]:
    """Return the candidates that are at most one standard error behind the highest mean, that one first.

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


def candidates(block: Block, study: StudyFile) -> list[list[dict[str, Any]]]:
    """Return each method's candidates, the plain one first: a row each, in percent and points.

    Raises UserError where a run is not finished, or the seeds of a candidate were probed on different prompts.
    """
    grouped: dict[str, dict[Variants, str]] = {}
    for candidate in sorted(block.methods, key=lambda m: m.count("+")):
        method, *variants = candidate.split("+")
        grouped.setdefault(method, {})[tuple(variants)] = candidate
    return [_rows(block, method, grouped[method], study) for method in row_order(grouped)]


def _rows(block: Block, method: str, listed: Mapping[Variants, str], study: StudyFile) -> list[dict[str, Any]]:
    scores = {variants: _solved(block, candidate, study) for variants, candidate in listed.items()}
    good, choice, setting = near(scores), choose(scores), study.chosen.get(block.task, {}).get(method, ())
    rows = []
    for variants, candidate in listed.items():
        cells, solved = block.methods[candidate], scores[variants]
        mean, (difference, se) = statistics.mean_over_seeds(solved), behind(scores[good[0]], solved)
        rows.append(
            {
                **block.keys(method),
                "candidate": candidate,
                "title": block.method_title(candidate).lstrip("+"),
                "learning_rate": reading.config(cells[0]).get("train", {}).get("learning_rate"),
                "problems": solved.shape[1],
                "seeds": len(cells),
                "mean": 100 * mean.mean,
                "seed_sd": 100 * mean.seed_sd,
                "minus_highest": -100 * difference,
                "minus_highest_se": 0.0 if variants == good[0] else 100 * se,
                "near": variants in good,
                "chosen": variants == choice,
                "named": set(setting) == set(variants),
                **costs_of(cells, study),
                **{f"seed_{c.seed}": 100 * v for c, v in zip(cells, mean.seed_means, strict=True)},
            }
        )
    return rows


def _solved(block: Block, candidate: str, study: StudyFile) -> np.ndarray:
    """Return the share of each held-out prompt's samples that are correct at the last step [S, n]."""
    probing = probes.read(block, candidate, study, "probe")
    if not probing.same_prompts:
        folder = block.methods[candidate][0].run.parent
        raise UserError(f"{folder}: its seeds were probed on different prompts; make them again")
    return np.stack(probing.at(probing.steps[-1])) / probing.samples


def _line(row: Mapping[str, Any]) -> dict[str, str | PageCell]:
    title, _, changed = row["title"].partition(", ")
    highest = row["near"] and row["minus_highest_se"] == 0
    place = "highest" if highest else "near" if row["near"] else ""
    behind_by = f"{text.signed(row['minus_highest'])} ({text.number(row['minus_highest_se'])})"
    return {
        "Method": title,
        "Candidate": PageCell(changed or "the setting's own values", mark=text.BOLD if row["chosen"] else ""),
        "Probe": PageCell(text.number(row["mean"]), text.number(row["seed_sd"]) if np.isfinite(row["seed_sd"]) else ""),
        "Minus the highest (SE)": text.MISSING if highest else behind_by,
        "Choice": ", ".join(filter(None, ["chosen" if row["chosen"] else "", place])),
        "Setting": "named" if row["named"] else "",
        **cost_cells(row),
    }


def sentences(block: Block, methods: Sequence[Sequence[Mapping[str, Any]]], study: StudyFile) -> list[str]:
    """Return which choices lie at the edge of what was tried, and the choices that Table 1 lacks."""
    lines, stale, choices = [], [], dict(study.chosen.get(block.task, {}))
    for rows in methods:
        choice, title = next(r for r in rows if r["chosen"]), rows[0]["title"].partition(", ")[0]
        rates = sorted({r["learning_rate"] for r in rows} - {None})
        if len(rates) > 1 and choice["learning_rate"] in (rates[0], rates[-1]):
            edge = "smallest" if choice["learning_rate"] == rates[0] else "largest"
            lines.append(f"The chosen learning rate is the {edge} tried: {title}.")
        stale += [] if choice["named"] else [title]
        method, *variants = choice["candidate"].split("+")
        choices.pop(method, None)
        choices[method] = tuple(variants)
    if stale:
        tuned = ", ".join(f"{m}: {'+'.join(variants)}" for m, variants in choices.items() if variants)
        where = f"experiments/study/table1.yaml, {study.scale}, {block.task}"
        lines.append(f"Table 1 has another choice for {', '.join(stale)}. {where}: tuned: {{{tuned}}}")
    return lines


def write(study: StudyFile, out: Path) -> list[Path]:
    """Write tuning.csv, .md and .tex. Raises UserError as :func:`candidates`."""
    every, tables = list[dict[str, Any]](), []
    for block in study.blocks:
        methods = candidates(block, study)
        every += [row for rows in methods for row in rows]
        lines = [line for rows in methods for line in ({}, *map(_line, rows))][1:]
        tables.append(Table.of(block.title, lines, "llrrllrrr", sentences(block, methods, study)))
    prompts = text.span([row["problems"] for row in every])
    seeds = text.counted([row["seeds"] for row in every], "training seed")
    notes = text.words("tuning", prompts=prompts, seeds=seeds)
    return Page.of(study, "Hyper-parameters on held-out problems", tables, notes).write(out, "tuning", every)
