"""What stands below Table 1: BAPO's claims, what the baselines learn, what is replayed, and how to read the table."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from analysis import reading, results, text
from analysis.results import AVERAGE, BASE, ByMethod, Row
from analysis.study import Block, StudyFile, StudyRun, plain
from bapo.store.files import GROUPS

#: (a, b): the comparisons that the paper's claims rest on, one sentence each below the table
CLAIMS = (("bapo", "grpo"), ("bapo", "dapo"))
#: methods whose gain over the base is stated
LEARNERS = ("grpo", "dapo")
#: columns of what is replayed: percent of the responses trained on that were stored before the step or are an
#: expert's, steps in which some response was brought back, all steps; 0 steps where no run says
REPLAYS = ["replayed", "replaying_steps", "of_steps"]


def sentences(block: Block, rows: ByMethod, pairs: pd.DataFrame) -> list[str]:
    """Return everything that is said below a part of the table about one block."""
    lines = [_claim(block, rows, pairs, *pair) for pair in CLAIMS if rows.keys() >= {*pair}]
    for method in (m for m in LEARNERS if BASE in rows and m in rows):
        start, row = rows[BASE][AVERAGE]["mean"], rows[method][AVERAGE]
        gains = sorted(100 * mean - start for mean in row["result"].mean(AVERAGE).seed_means)
        ends = " to ".join(map(text.signed, gains[:: max(1, len(gains) - 1)]))  # the worst and the best seed
        lines += text.words("learned", title=row["title"].lstrip("+"), gains=ends)
    replayed = [
        "{} {replayed:.1f}% ({replaying_steps:.0f} of {of_steps:.0f} steps)".format(row["title"].lstrip("+"), **row)
        for row in (of[AVERAGE] for of in rows.values())
        if row["of_steps"]
    ]
    return lines + (text.words("replayed", methods=", ".join(replayed)) if replayed else [])


def _interval(row: Row) -> str:
    return f"{text.interval(*text.ends(row, 'difference')[1:])}, {text.p_value(row['p'])}"


def _verdict(row: Row, a: str, b: str) -> str:
    if row["these_models_differ"] and not row["real"]:
        return "these trained models differ; one training seed does not show that the methods do"
    return f"{a} is significantly {row['verdict']} {b}" if row["real"] else row["verdict"]


def _claim(block: Block, rows: ByMethod, pairs: pd.DataFrame, a: str, b: str) -> str:
    """Return one method against another: difference, interval, p, rollouts; and what the paper reports."""
    differences = {title: results.of_pair(pairs, block, a, b, name) for name, title in results.columns(block)}
    of_average = differences.pop("Avg")
    each = "; ".join(f"{t} {text.signed(d['difference'])} ({_interval(d)})" for t, d in differences.items())
    named = {"difference": text.signed(of_average["difference"]), "interval": _interval(of_average)}
    ours, theirs = rows[a][AVERAGE], rows[b][AVERAGE]
    titles = {"a": plain(ours["title"]), "b": plain(theirs["title"])}
    verdict, p = _verdict(of_average, **titles), text.p_value(of_average["p_holm"])
    lines = text.words("claim", **titles, verdict=verdict, each=each, **named, p=p)
    if np.isfinite(ours["rollouts"]) and theirs["rollouts"] > 0:
        amounts = {"ours": text.thousands(ours["rollouts"]), "theirs": text.thousands(theirs["rollouts"])}
        lines += text.words("rollouts", times=ours["rollouts"] / theirs["rollouts"], b=titles["b"], **amounts)
    if np.isfinite(lead := ours["paper"] - theirs["paper"]):
        lines += text.words("paper", points=text.signed(lead, 2), model=ours["paper_model"])
    return " ".join(lines)


# ------------------------------------------------------------------------------------------------ what is replayed


def replays(study: StudyFile) -> dict[tuple[str, ...], tuple[float, ...]]:
    """Return REPLAYS, means over seeds, by task, model and method: of those off policy, and any other that replays.

    A run without recorded groups (imported, or unpacked evidence) says nothing.
    """
    means: dict[tuple[str, ...], tuple[float, ...]] = {}
    for block, (method, cells) in ((b, item) for b in study.blocks for item in b.methods.items()):
        seeds = [seed for cell in cells if (cell.run / GROUPS).exists() and (seed := _of_seed(cell, study))]
        if seeds and (cells[0].kind == "off" or any(share for share, *_ in seeds)):
            means[block.task, block.model, method] = tuple(np.mean(seeds, axis=0).tolist())
    return means


def _of_seed(cell: StudyRun, study: StudyFile) -> tuple[float, float, float] | None:
    groups = reading.table(cell, GROUPS, study)
    if groups.empty or "replayed" not in groups:
        return None
    trained = groups[groups["used"]]
    share = trained["replayed"].sum() / max(1, trained["rewards"].map(len).sum())
    steps = trained.loc[trained["replayed"] > 0, "step"].nunique()
    return 100 * float(share), steps, reading.summary(cell.run, study)["steps"]


# ------------------------------------------------------------------------------------------------ how to read it


def notes(rows: Mapping[Block, ByMethod]) -> list[str]:
    """Return the lines below the table: cells, marks, what was chosen on held-out problems, the paper's part."""
    every = [row for of_method in rows.values() for of in of_method.values() for row in of.values()]
    single = [row for row in every if row["benchmark"] != AVERAGE]
    problems = dict.fromkeys(f"{row['problems']} problems of {row['benchmark_title']}" for row in single)
    fields = {
        "seeds": text.counted([row["seeds"] for row in every if row["method"] != BASE], "training seed"),
        "samples": text.span([row["samples"] for row in single]),
        "problems": ", ".join(problems),
        "level": results.LEVEL,
        "models": ", ".join(filter(None, dict.fromkeys(row["paper_model"] for row in every))),
    }
    tuned = []
    for block in rows:
        listed = [f"{block.plain_title(m)} ({', '.join(c[0].tuned)})" for m, c in block.methods.items() if c[0].tuned]
        tuned += [f"{block.title}: {', '.join(listed)}"] if listed else []
    keys = ["table1", "varies", "tuned" if tuned else "untuned", *(["printed"] if fields["models"] else [])]
    return text.words(*keys, **fields, rows="; ".join(tuned))
