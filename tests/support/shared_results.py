"""Two-seed results of three methods whose accuracies are chosen, for the tests of crates and comparisons."""

from __future__ import annotations

import json
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
    levels: Mapping[str, int] | None = None,
    written: str = "results/laptop",
    seeds: tuple[int, ...] = SEEDS,
    config: Mapping[str, object] | None = None,
    shift: int = 0,
    study: str = "table1",
) -> Path:
    """A scale's folder with a study, its runs, a table with its record and a ledger. written: where its file says."""
    cells = []
    for method, level in (levels or USUAL).items():
        for seed in (0,) if method == "base" else seeds:
            place = f"countdown/tiny/{method}" + ("" if method == "base" else f"/seed{seed}")
            folder, found = home / place, {"cd": bits(level, seed, shift)}
            if method == "base":
                write_evaluation(folder / "eval", found)
            else:
                settings = {"seed": seed, "method": {"algorithm": method, "v": 5}, **(config or {})}
                write_run(folder, found, {"rollouts": 100 * level, "updates": 10 + seed}, config=settings)
                times = {"started": f"2026-01-0{seed}T00:00:00Z", "ended": f"2026-01-0{seed}T01:00:00Z"}
                write_json(folder / MANIFEST, {"identity": "synthetic", "seed": seed, "code": CODE, **times})
                cells.append({"task": "countdown", "model": "tiny", "method": method, "seed": seed})
                cells[-1]["run"] = f"{written}/{place}"
    bases = [{"task": "countdown", "model": "tiny", "run": f"{written}/countdown/tiny/base"}]
    content = {
        "scale": "laptop",
        "name": study,
        "cells": cells,
        "bases": bases,
        "benchmarks": {"countdown": [["cd", "CD"]]},
    }
    file = home / "studies" / f"{study}.json"
    write_json(file, content)
    table = home / "tables" / f"{study}.csv"
    write_text(table, "method,mean\n" + "".join(f"{m},{v}\n" for m, v in (levels or USUAL).items()))
    summaries = [home / c["run"].removeprefix(f"{written}/") / "summary.json" for c in cells]
    provenance.record([table], ["analysis", study, "--study", str(file)], [file, *summaries])
    claim = {"id": "better", "task": "countdown", "model": "tiny", "verdict": "reproduced"}
    write_text(home / "claims.json", json.dumps({"claims": [claim]}))
    return home


def accuracy(level: int, shift: int = 0, seeds: tuple[int, ...] = SEEDS) -> float:
    """Percent of right answers over the seeds."""
    return 100 * float(np.mean([bits(level, s, shift) for s in seeds]))
