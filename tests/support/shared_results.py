"""Two-seed results of three methods whose accuracies are chosen, for the tests of crates and comparisons."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from bapo.store import provenance
from bapo.store.files import MANIFEST, write_json, write_text
from support.runs import write_evaluation, write_run

N, K, SEEDS = 30, 8, (1, 2)
#: correct answers of K on problem i, before what a seed adds
USUAL = {"base": 1, "grpo": 3, "bapo": 5}
CODE = {"version": "1", "commit": "a" * 40, "dirty": False}


def bits(level: int, seed: int, shift: int = 0) -> list[list[int]]:
    """0/1 [N][K]: problems differ, and a seed answers a few of them differently."""
    right = [max(0, min(K, level + i % 3 - 1 + int((i * 7 + seed * 3 + shift) % 10 == 0))) for i in range(N)]
    return [[int(k < r) for k in range(K)] for r in right]


def write_results(
    home: Path,
    levels: Mapping[str, int] = USUAL,
    seeds: tuple[int, ...] = SEEDS,
    config: Mapping[str, object] | None = None,
    shift: int = 0,
) -> Path:
    """A scale's folder with a study, its runs, a table with its record and a ledger; runs stand in results/laptop."""
    cells, names = [], {"task": "countdown", "model": "tiny"}
    for method, level in levels.items():
        if method == "base":
            write_evaluation(home / "countdown/tiny/base/eval", {"cd": bits(level, 0, shift)})
            continue
        for seed in seeds:
            place = f"countdown/tiny/{method}/seed{seed}"
            settings = {"seed": seed, "method": {"algorithm": method, "v": 5}, **(config or {})}
            write_run(home / place, {"cd": bits(level, seed, shift)}, {"rollouts": 100 * level}, config=settings)
            times = {"started": f"2026-01-0{seed}T00:00:00Z", "ended": f"2026-01-0{seed}T01:00:00Z"}
            write_json(home / place / MANIFEST, {"identity": "synthetic", "seed": seed, "code": CODE, **times})
            cells.append({**names, "method": method, "seed": seed, "run": f"results/laptop/{place}"})
    file, table = home / "studies" / "table1.json", home / "tables" / "table1.csv"
    bases, benchmarks = [{**names, "run": "results/laptop/countdown/tiny/base"}], {"countdown": [["cd", "CD"]]}
    write_json(file, {"scale": "laptop", "name": "table1", "cells": cells, "bases": bases, "benchmarks": benchmarks})
    write_text(table, "method,mean\n" + "".join(f"{m},{v}\n" for m, v in levels.items()))
    summaries = [home.joinpath(*Path(c["run"]).parts[2:], "summary.json") for c in cells]
    provenance.record([table], ["analysis", "table1", "--study", str(file)], [file, *summaries])
    write_json(home / "claims.json", {"claims": []})
    return home


def accuracy(level: int, shift: int = 0, seeds: tuple[int, ...] = SEEDS) -> float:
    """Percent of right answers over the seeds."""
    return 100 * float(np.mean([bits(level, s, shift) for s in seeds]))
