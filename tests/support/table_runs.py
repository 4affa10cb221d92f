"""Run directories with numbers chosen by hand, for the tests of the tables; the contract is ``bapo.store.runs``'s."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml

from bapo.store.files import CONFIG, GROUPS, PROBE, STEPS, SUMMARY, TABLES, fingerprints, write_json, write_parquet

PHASES = ("rollout", "regenerate", "reward", "update", "probe")


def write_evaluation(folder: Path, bits: Mapping[str, Sequence[Sequence[int]]]) -> None:
    """eval/ from 0/1 outcomes [n][K] by benchmark."""
    folder.mkdir(parents=True)
    for name, rows in bits.items():
        n, k = np.shape(rows)
        frame = pd.DataFrame(
            {
                "problem_id": np.repeat([f"p{i:02d}" for i in range(n)], k),
                "sample": np.tile(np.arange(k), n),
                "correct": np.ravel(rows).astype(bool),
                "parsed": True,
            }
        )
        write_parquet(folder / f"{name}.parquet", frame)
    files = fingerprints(folder, [f"{name}.parquet" for name in bits])
    write_json(folder / SUMMARY, {"identity": "synthetic", "files": files})


def write_run(
    folder: Path,
    bits: Mapping[str, Sequence[Sequence[int]]] | None = None,
    totals: Mapping[str, float] | None = None,
    steps: Sequence[Mapping[str, float]] = (),
    config: Mapping[str, Any] | None = None,
    start: Sequence[int] = (0, 4),
    budget: Mapping[str, Any] | None = None,
) -> Path:
    """A finished run. steps: columns of steps.parquet that matter; start: correct answers of 8 at step 0, by prompt;
    budget: of summary.json."""
    folder.mkdir(parents=True)
    rows = [
        {"step": i, **{f"seconds_{p}": 0.0 for p in PHASES}, "seconds_total": 0.0, **row}
        for i, row in enumerate(steps or [{}], start=1)
    ]
    write_parquet(folder / STEPS, pd.DataFrame(rows))
    write_parquet(folder / GROUPS, pd.DataFrame({"step": [1]}))
    probe = [
        {"step": step, "set": "train", "prompt_id": f"t{i}", "correct": c, "samples": 8, "mean": c / 8}
        for step in (0, len(rows))
        for i, c in enumerate(start)
    ]
    write_parquet(folder / PROBE, pd.DataFrame(probe))
    (folder / CONFIG).write_text(yaml.safe_dump(dict(config or {"seed": 1}), sort_keys=False), encoding="utf-8")
    summary = {"identity": "synthetic", "steps": len(rows), "totals": dict(totals or {})}
    summary |= {"budget": dict(budget)} if budget else {}
    write_json(folder / SUMMARY, {**summary, "files": fingerprints(folder, TABLES)})
    if bits:
        write_evaluation(folder / "eval", bits)
    return folder


def place(root: Path, method: str, seed: int, task: str = "countdown", model: str = "tiny") -> Path:
    return root / "results" / "laptop" / task / model / method / f"seed{seed}"


def write_study(
    root: Path,
    cells: Sequence[tuple[str, str, int]],
    benchmarks: Sequence[str] = ("a", "b"),
    task: str = "countdown",
    **extra: Any,
) -> Path:
    """The study file of (model, method, seed), whose runs are where :func:`place` says."""
    listed = [
        {
            "task": task,
            "task_title": task.title(),
            "model": model,
            "model_title": model.title(),
            "method": method,
            "method_title": f"+{method.upper()}",
            "seed": seed,
            "run": str(place(root, method, seed, task, model)),
        }
        for model, method, seed in cells
    ]
    content = {
        "scale": "laptop",
        "note": "Made up.",
        "cells": listed,
        "benchmarks": {task: [[name, name.upper()] for name in benchmarks]},
        **extra,
    }
    path = root / "study.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    return path
