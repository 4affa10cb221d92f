"""BAPO minus GRPO in every study at once: what it depends on is the budget, the task and the base model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import rcParams
from matplotlib.figure import Figure

from analysis import paper, reading, results, statistics, style, text
from analysis.results import AVERAGE
from analysis.study import Block, StudyFile, evaluated

#: the fewest kinds of base model that are pooled: fewer say nothing of how much they differ
FEWEST = 3
BASES, DATA_SETS = "base models", "data sets"
STEM = "bapo_minus_grpo"
TITLE = "BAPO minus GRPO in every study"
REFERENCE, METHOD = "grpo", "bapo"
SAMPLES, LOWER = "As many samples", "As many samples, at a lower learning rate"
ONE_UPDATE = "As many samples, GRPO with the authors' one update a step"
#: BAPO's row, GRPO's row -> heading, learning rate where it is not 2e-4; in the order of the picture
PAIRS = {
    (METHOD, REFERENCE): ("As in the paper's Table 1: as many steps, a tenth more samples", ""),
    (f"{METHOD}+rollouts", REFERENCE): (SAMPLES, ""),
    (f"{METHOD}+rollouts+rate_1e-4", f"{REFERENCE}+rate_1e-4"): (LOWER, "1e-4"),
    (f"{METHOD}+rollouts+rate_5e-5", f"{REFERENCE}+rate_5e-5"): (LOWER, "5e-5"),
    (f"{METHOD}+rollouts+rate_25e-6", f"{REFERENCE}+rate_25e-6"): (LOWER, "2.5e-5"),
    (f"{METHOD}+rollouts", f"{REFERENCE}+whole_batch"): (ONE_UPDATE, ""),
    (f"{METHOD}+rollouts+rate_5e-5", f"{REFERENCE}+whole_batch+rate_5e-5"): (ONE_UPDATE, "5e-5"),
    (f"{METHOD}+rollouts+rate_25e-6", f"{REFERENCE}+whole_batch+rate_25e-6"): (ONE_UPDATE, "2.5e-5"),
    (f"{METHOD}+updates", REFERENCE): ("As many updates", ""),
    (f"{METHOD}+compute", REFERENCE): ("As much compute", ""),
}


def data(studies: Sequence[StudyFile]) -> pd.DataFrame:
    """Return a row a pair, task and base model, in points with the 95% interval, and the paper's difference.

    Bases of one kind are one row, and so are data sets, each with its base. Runs that two studies share are shown once,
    and of two studies of the same task, base model and pair the one with more base models, then with more runs. Three
    kinds of base of a task and more, on the same benchmarks, have a further row; pooled: their number, else 0.
    """
    best: dict[tuple[str, str, str], tuple[tuple[int, int], dict[str, Any]]] = {}
    for study in map(evaluated, studies):
        for kind, blocks in _kinds(study).items():
            for row in _rows(blocks, study):
                key = row["method"], row["reference"], kind
                size = len(blocks), row["runs"]
                if key not in best or size > best[key][0]:
                    best[key] = size, row

    def place(row: dict[str, Any]) -> tuple[int, str]:
        return list(PAIRS).index((row["method"], row["reference"])), row["task"]

    rows = []
    for _, group in groupby(sorted((row for _, row in best.values()), key=place), place):
        here = list(group)
        rows += here
        for benchmarks in dict.fromkeys(row["benchmarks"] for row in here):
            alike = [row for row in here if row["benchmarks"] == benchmarks and row["estimate"].se > 0]
            rows += [_pooled(alike)] if len(alike) >= FEWEST else []
    return pd.DataFrame(rows).drop(columns=["estimate", "benchmarks"], errors="ignore")


def _kinds(study: StudyFile) -> dict[str, list[Block]]:
    """Return the blocks of each row, by their kind of base model; data sets of one model are one kind."""
    blocks: dict[str, list[Block]] = {}
    for kind, of_kind in reading.kinds(study).items():
        of_data = f"{of_kind[0].task} {of_kind[0].model.partition('+')[0]} {study.name}"
        blocks.setdefault(of_data if _own_data(of_kind[0]) else kind, []).extend(of_kind)
    return blocks


def _own_data(block: Block) -> bool:
    """Return whether no other base model of the study has a block's problems."""
    return bool(reading.config(next(iter(block.methods.values()))[0]).get("data", {}).get("of_model"))


def _pooled(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the row of one pair and task over kinds of base model, which are random effects."""
    estimate, names = statistics.random_effects([row["estimate"] for row in rows]), ("method", "reference", "task")
    row = {name: rows[0][name] for name in names} | {"model": f"{len(rows)} kinds of base model"}
    row |= {"runs": sum(row["runs"] for row in rows), "pooled": len(rows), "paper": np.nan, "study": "pooled"}
    return row | text.columns("points", estimate) | text.points(estimate, "low", "high") | {"estimate": estimate}


def _rows(blocks: Sequence[Block], study: StudyFile) -> Iterator[dict[str, Any]]:
    """Yield a row of each pair that all of these blocks have, over the bases if several."""
    first, of_block, data_sets = blocks[0], [results.collect(b, study) for b in blocks], _own_data(blocks[0])
    printed = paper.of_block(first)
    for method, reference in PAIRS:
        if not all({method, reference} <= rows.keys() for rows in of_block):
            continue
        pairs = [results.difference(rows[method], rows[reference], AVERAGE) for rows in of_block]
        if not all(pair.difference.by_seed for pair in pairs):
            continue  # no run of each with the same seed
        if len(pairs) > 1 and data_sets:
            estimate = statistics.clustered(np.array([pair.difference.tested.mean for pair in pairs]))
        elif len(pairs) > 1:
            estimate = statistics.over_bases([pair.by_seed_and_problem for pair in pairs])
        elif len(pairs[0].difference.by_seed) > 1:
            estimate = pairs[0].difference.tested
        else:
            continue  # one run of each has no replicate
        theirs, other = (printed.value(name, AVERAGE) if printed else None for name in (METHOD, REFERENCE))
        yield {
            "method": method,
            "reference": reference,
            "task": first.task_title,
            "model": first.model_title if len(blocks) == 1 else f"{len(blocks)} {DATA_SETS if data_sets else BASES}",
            "runs": sum(len(pair.difference.by_seed) for pair in pairs),
            **text.columns("points", estimate),
            **text.points(estimate, "low", "high"),
            "pooled": 0,
            "estimate": estimate,
            "benchmarks": DATA_SETS if data_sets else first.benchmarks,  # each data set has problems of its own
            "paper": np.nan if theirs is None or other is None or method != METHOD else theirs - other,
            "study": study.name,
        }


def write(studies: Sequence[StudyFile], out: Path, stem: str = STEM, night: bool = False) -> list[Path]:
    """Write the picture and its data under the name ``stem``.

    night: also as STEM_dark, for pages with a dark background. Raises UserError naming a broken run.
    """
    frame, files = data(studies), []
    for dark in (False, True)[: 1 + night]:
        with style.settings(dark):
            empty = "No study here has two runs of BAPO and two of GRPO."
            fig = _figure(frame) if len(frame) else style.nothing(empty)[0]
            files += style.save(fig, frame, out, f"{stem}_dark" if dark else stem, TITLE)
    return files


def _figure(frame: pd.DataFrame) -> Figure:
    of_pair = [PAIRS[pair] for pair in zip(frame["method"], frame["reference"], strict=True)]
    headings = pd.Series([heading for heading, _ in of_pair])
    distinct = list(dict.fromkeys(headings))
    places = frame.index + 1.4 * headings.map(distinct.index) + 1  # a heading stands above its rows
    fig, [axes] = style.grid(" ".join(text.words("overview")), 1, 1, 0.9 + 0.17 * places.max())
    ink, background = rcParams["text.color"], rcParams["axes.facecolor"]
    axes.axvline(0, color=rcParams["axes.edgecolor"], linewidth=0.8, zorder=1)
    clear = (frame["low"] > 0) | (frame["high"] < 0)
    for of_bases, (mark, linewidth) in ((False, ("o", 1.2)), (True, ("s", 2.4))):
        for excludes_zero, colour in ((True, style.ORANGE), (False, style.GREY)):
            rows = frame[(clear == excludes_zero) & ((frame["pooled"] > 0) == of_bases)]
            look: dict[str, Any] = {"capsize": 0, "color": colour, "fmt": mark, "linewidth": linewidth}
            style.whiskers(axes, rows["points"], places[rows.index], (rows["low"], rows["high"]), **look)
    axes.plot(frame["paper"], places, linestyle="", marker="D", markersize=5, markerfacecolor="none", color=ink)
    for heading in distinct:
        axes.annotate(
            heading,
            (0, places[headings == heading].min() - 0.9),
            xycoords=("axes fraction", "data"),
            va="center",
            weight="bold",
            fontsize=7.5,
            bbox={"facecolor": background, "edgecolor": "none", "pad": 1},
        )
    rates = pd.Series([f", rate {rate}" if rate else "" for _, rate in of_pair])
    axes.set_yticks(places, frame["task"] + ", " + frame["model"] + rates + " (" + frame["runs"].astype(str) + ")")
    axes.set_ylim(places.max() + 0.7, places.min() - 1.5)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="y", visible=False)
    axes.set_xlabel("GRPO better  \N{LEFTWARDS ARROW}  points of accuracy  \N{RIGHTWARDS ARROW}  BAPO better")
    return fig
