"""A small results folder by hand, with hostile text wherever text may come from, for the tests of the report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from analysis import robustness
from analysis.text import MISSING
from bapo.store.files import write_json
from support.sweep_tables import sweep, table

HOSTILE = "<script>window.hacked = 1</script><img src=x onerror='window.hacked = 2'>"
COLOUR = "#D55E00"  # of the curve
VERDICTS = ("reproduced", "contradicted", "underpowered", "not testable at this scale")
MANIFEST = {
    "identity": "310b184a50e4aa32",
    "code": {"version": "0.1.0", "commit": "98b734390565697", "dirty": True},
    "packages": {"torch": "2.13.0"},
    "hardware": {"processor": "AMD EPYC", "cores": 2, "memory_bytes": 25276502016},
    "started": "2026-11-21T13:03:04Z",
    "ended": "2026-11-21T13:03:23Z",
    "resumed": 0,
}
TABLE = f"""\
# Table 1 at laptop scale

## (a) Countdown

| Method | CD-4<br>*CD-4* | Rollouts |
| :-- | --: | --: |
| **Qwen2** | 8.4 ± 0.9 | {MISSING} |
| *paper: Qwen2.5* | *0.37* | {MISSING} |
| +GRPO | 20.8 ± 2.4 | 38.4k |
| *paper* | *35.88* | *677k* |
| +DAPO | 9.5 ± 2.9 | 1.2M |
| <script>window.hacked = 3</script> | 100.0 ± 0.1 | 900 |

- A note with `code`, <u>a line below</u> and a | in it.
"""


def write_run(folder: Path, seed: int, method: dict[str, Any], seconds: float, rollouts: int) -> None:
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(yaml.safe_dump({"seed": seed, "train": {"steps": 150}, "method": method}))
    write_json(folder / "manifest.json", {**MANIFEST, "seed": seed})
    write_json(folder / "summary.json", {"totals": {"seconds": seconds, "rollouts": rollouts, "updates": 3}})
    (folder / "eval").mkdir()
    evaluated = {"seconds": 2.5, "benchmarks": {"cd4": {"accuracy": 0.25}, "cd34": {"accuracy": 0.5}}}
    write_json(folder / "eval" / "summary.json", evaluated)


def write_results(root: Path) -> Path:
    """GRPO with two seeds, BAPO with one of two, a base model whose manifest is damaged."""
    folder = root / "laptop"
    place = folder / "countdown" / "qwen2"
    write_run(place / "grpo" / "seed1", 1, {"name": "grpo", "kl_to": "reference"}, 60.0, 1000)
    write_run(place / "grpo" / "seed2", 2, {"name": "grpo", "kl_to": "reference"}, 30.0, 1000)
    write_run(place / "bapo" / "seed1", 1, {"name": "bapo", "kl_to": "rollout", "v": 5, "note": HOSTILE}, 45.5, 1100)
    (place / "base").mkdir()
    (place / "base" / "manifest.json").write_text("{")
    common = {"task": "countdown", "task_title": "Countdown", "model": "qwen2", "model_title": "Qwen2"}
    titles = {"grpo": "+GRPO", "bapo": f"+BAPO {HOSTILE}"}
    (folder / "studies").mkdir()
    write_json(
        folder / "studies" / "table1.json",
        {
            "name": "table1",
            "title": "Table 1",
            "scale": "laptop",
            "reference": "grpo",
            "config": ["seeds=[1,2]"],
            "note": "Made by hand: it shows nothing.",
            "cells": [
                {**common, "method": m, "method_title": titles[m], "seed": s, "run": str(place / m / f"seed{s}")}
                for m in titles
                for s in (1, 2)
            ],
            "bases": [{**common, "run": str(place / "base")}],
        },
    )
    write_tables(folder / "tables")
    write_figures(folder / "figures")
    write_sweeps(folder / "sweeps", root / "sweep_runs")
    (folder / "claims.json").write_text(json.dumps([claim(i) for i in range(8)]))
    return folder


def write_tables(folder: Path) -> None:
    folder.mkdir()
    (folder / "table1.md").write_text(TABLE)
    (folder / "table1.csv").write_text(
        "method,mean,note\n" + "".join(f"m{i},{(7 * i) % 250},\n" for i in range(249)) + f'last,,"a, ""b"" {HOSTILE}"\n'
    )
    (folder / "table1.tex").write_text("\\begin{tabular}{lr}\n")
    (folder / "table2.md").write_text("# Table 2\n\nNothing yet.\n")
    (folder / "checkpoint_choice.csv").write_text("rule,accuracy\nlast,24.5\nbest on test,25.5\n")


def write_figures(folder: Path) -> None:
    from matplotlib.figure import Figure

    folder.mkdir()
    fig = Figure(figsize=(4, 3))
    axes = fig.subplots()
    axes.plot([0, 1, 2], [0, 2, 1], color=COLOUR, linewidth=6)
    described = {"Description": f"A curve. {HOSTILE}", "Date": None}
    fig.savefig(folder / "figure4_training_curves.svg", metadata=described)
    fig.savefig(folder / "another.png")
    fig.savefig(folder.parent / "tables" / "table2_monitor.svg", metadata={"Title": "Monitor of <b>table 2</b>"})
    path = folder / "figure4_training_curves.svg"  # an SVG may carry scripts and ask for files
    extra = "<script>window.hacked = 4</script><image href='http://127.0.0.1:9/x.png' width='9' height='9'/></svg>"
    path.write_text(path.read_text().replace("</svg>", extra))
    (folder / "figure4_training_curves.csv").write_text("step,reward\n1,0.5\n")


def write_sweeps(folder: Path, runs_of_trials: Path) -> None:
    """A grid whose last trial failed; a sweep whose report was cut short; one that has only begun."""
    trials = [{"drawn": {"v": v}, "seeds": table(0.4 + 0.02 * v)} for v in (1, 5, 10)]
    trials.append({"drawn": {"v": 20}, "seeds": [], "state": "fail", "reason": HOSTILE})
    told = sweep(runs_of_trials, {"v": [1, 5, 10, 20]}, trials, title="Small <b>grid</b>")
    robustness.write(told, folder / "grid")
    for name in ("cut", "begun"):
        (folder / name).mkdir()
    (folder / "cut" / "robustness.md").write_text("# Cut short\n")
    (folder / "begun" / "journal.log").write_text("{}\n")


def claim(i: int) -> dict[str, Any]:
    """Verdicts and tasks in turn; the fourth and eighth have no estimate."""
    measured = i % 4 != 3
    return {
        "id": f"claim_{i}",
        "section": ("abstract", "5.1")[i % 2],
        "quote": f"Sentence {i} {HOSTILE if i == 2 else ''}",
        "paper_value": 12.5,
        "task": ("countdown", "mathematics", "overall")[i % 3],
        "query": "difference",
        "parameters": {"of": "bapo", "over": ["grpo", "dapo"]},
        "estimate": 10.0 - i if measured else None,
        "low": 1.25 if measured else None,
        "high": 11.5 if measured else None,
        "unit": "points",
        "n_seeds": 3 if measured else 0,
        "verdict": VERDICTS[i % 4],
        "reason": "needle" if i == 5 else "a reason",
        "runs": ["countdown/qwen2/bapo/seed1"],
        "command": "snakemake --cores all claims",
        "p_holm": 0.01234,
        "parts": [
            {"part": "against GRPO", "estimate": 1.0, "low": 0.5, "high": 1.5, "unit": "points"},
            {"part": "against DAPO", "estimate": 2.0, "low": 0.5, "high": 3.5, "unit": "points"},
        ],
    }
