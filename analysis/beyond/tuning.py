"""Tuning: every candidate of every method on held-out problems, and which of them is chosen: tuning.csv, .md and .tex.

A candidate is a method with variants; it is scored at the last step of its runs on the probe that training never sees.
No test benchmark is read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from analysis import reading, statistics, text
from analysis.page import RULE, Cell, Page, Table, at_scale
from analysis.probes import read as read_probes
from analysis.results import COST_HEADER, cost_cells, costs_of
from analysis.study import Block, Study, row_order
from bapo.errors import UserError

#: the probed set that no method trains on
HELD_OUT = "probe"
#: variants of a candidate, () for the method as the setting has it
Variants = tuple[str, ...]
HEADER = ("Method", "Candidate", "Probe", "Minus the highest (SE)", "Choice", "Setting", *COST_HEADER)


# ------------------------------------------------------------------------------------------------ the choice


def behind(best: np.ndarray, other: np.ndarray) -> tuple[float, float]:
    """Return (difference, its standard error) of two candidates, [S, n] each, of the same seeds and prompts.

    The error is that of new problems and new training seeds, or of new problems alone where there is one seed.
    """
    d = statistics.mean_over_seeds(best - other)
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


def candidates(block: Block, study: Study) -> list[list[dict[str, Any]]]:
    """Return each method's candidates, the plain one first: a row each, in percent and points."""
    grouped: dict[str, list[str]] = {}
    for candidate in sorted(block.methods, key=lambda m: m.count("+")):
        grouped.setdefault(candidate.split("+")[0], []).append(candidate)
    return [_rows(block, method, grouped[method], study) for method in row_order(grouped)]


def _rows(block: Block, method: str, listed: Sequence[str], study: Study) -> list[dict[str, Any]]:
    scores = {_variants(candidate): _solved(block, candidate, study) for candidate in listed}
    (best, *others), choice = near(scores), choose(scores)
    named = tuple(study.chosen.get(block.task, {}).get(method, ()))
    rows = []
    for candidate, (variants, solved) in zip(listed, scores.items(), strict=True):
        mean, (difference, se) = statistics.mean_over_seeds(solved), behind(scores[best], solved)
        cells = block.methods[candidate]
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
                "minus_highest_se": 0.0 if variants == best else 100 * se,
                "near": variants == best or variants in others,
                "chosen": variants == choice,
                "named": set(named) == set(variants),
                **costs_of(cells, study),
                **{f"seed_{c.seed}": 100 * v for c, v in zip(cells, mean.seed_means, strict=True)},
            }
        )
    return rows


def _variants(candidate: str) -> Variants:
    return tuple(candidate.split("+")[1:])


def _solved(block: Block, candidate: str, study: Study) -> np.ndarray:
    """Return the share of each prompt's samples that are correct at the last step [S, n]."""
    probes = read_probes(block, candidate, study, HELD_OUT)
    if not probes.same_prompts:
        folder = block.methods[candidate][0].run.parent
        raise UserError(f"{folder}: its seeds were probed on different prompts; make them again")
    return np.stack(probes.at(probes.steps[-1])) / probes.samples


# ------------------------------------------------------------------------------------------------ the table


def _line(row: Mapping[str, Any]) -> list[str | Cell]:
    title, _, changed = row["title"].partition(", ")
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


def sentences(block: Block, methods: Sequence[Sequence[Mapping[str, Any]]], study: Study) -> list[str]:
    """Return which choices lie at the edge of what was tried, and the choices that Table 1 lacks."""
    lines, stale = [], []
    named = dict(study.chosen.get(block.task, {}))
    for rows in methods:
        choice, title = next(r for r in rows if r["chosen"]), rows[0]["title"].partition(", ")[0]
        rates = sorted({r["learning_rate"] for r in rows} - {None})
        if len(rates) > 1 and choice["learning_rate"] in (rates[0], rates[-1]):
            edge = "smallest" if choice["learning_rate"] == rates[0] else "largest"
            lines.append(f"The chosen learning rate is the {edge} tried: {title}.")
        stale += [] if choice["named"] else [title]
        named.pop(choice["method"], None)
        named |= {choice["method"]: v} if (v := _variants(choice["candidate"])) else {}
    if stale:
        listed = ", ".join(f"{method}: {'+'.join((method, *variants))}" for method, variants in named.items())
        where = f"experiments/study/table1.yaml, {study.scale}, {block.task}"
        lines.append(f"Table 1 has another choice for {', '.join(stale)}. {where}: tuned: {{{listed}}}")
    return lines


def write(study: Study, out: Path) -> list[Path]:
    """Write the table in every format; returns the files."""
    import pandas as pd

    every, tables = list[dict[str, Any]](), []
    for block in study.blocks:
        methods, lines = candidates(block, study), list[Sequence[str | Cell]]()
        for rows in methods:
            lines += [*([RULE] if lines else []), *map(_line, rows)]
            every += rows
        tables.append(Table(block.title, HEADER, lines, "llrrllrrr", sentences(block, methods, study)))
    prompts = text.span([row["problems"] for row in every])
    seeds = text.counted([row["seeds"] for row in every], "training seed")
    notes = [*study.notes, *text.words("tuning", prompts=prompts, seeds=seeds)]
    page = Page(at_scale("Hyper-parameters on held-out problems", study.scale), tables, notes)
    return page.write(out, "tuning", pd.DataFrame(every))
