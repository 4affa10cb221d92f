"""Run directories and study files with chosen contents: the one builder of results for the tests of the analysis.

What a test does not give has a small default. Manifests and summaries say "synthetic", so that no number in such a
folder is taken for a result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml

from bapo.store.files import (
    CONFIG,
    GROUPS,
    MANIFEST,
    PROBE,
    STEPS,
    SUMMARY,
    TABLES,
    fingerprints,
    read_json,
    write_json,
    write_parquet,
    write_text,
)

PHASES = ("rollout", "regenerate", "reward", "update", "probe")
#: 0/1 outcomes [n][K] of a benchmark
Bits = Sequence[Sequence[int]] | np.ndarray


def write_evaluation(folder: Path, bits: Mapping[str, Bits], prefix: str = "p") -> None:
    """Write eval/: a table a benchmark, problems p00, p01, ..."""
    for name, rows in bits.items():
        n, k = np.shape(rows)
        ids = np.repeat([f"{prefix}{i:02d}" for i in range(n)], k)
        columns = {"problem_id": ids, "sample": np.tile(np.arange(k), n), "correct": np.ravel(rows).astype(bool)}
        write_parquet(folder / f"{name}.parquet", pd.DataFrame(columns | {"parsed": True}), durable=False)
    found = {name: {"accuracy": float(np.mean(rows))} for name, rows in bits.items()}
    files = fingerprints(folder, [f"{name}.parquet" for name in bits])
    write_json(folder / SUMMARY, {"identity": "synthetic", "benchmarks": found, "files": files}, durable=False)


def write_curve(
    folder: Path, steps: Sequence[int], correct: Mapping[str, Bits], samples: int, validation: str | None = None
) -> None:
    """Write curve/: correct answers [T][n] of ``samples`` at each step, a table a benchmark."""
    for name, counts in correct.items():
        rows = [
            {"step": step, "problem_id": f"p{i:02d}", "samples": samples, "correct": int(c)}
            for step, line in zip(steps, counts, strict=True)
            for i, c in enumerate(line)
        ]
        write_parquet(folder / f"{name}.parquet", pd.DataFrame(rows), durable=False)
    files = fingerprints(folder, [f"{name}.parquet" for name in correct])
    content = {"identity": "synthetic", "steps": list(steps), "validation": validation, "files": files}
    write_json(folder / SUMMARY, content, durable=False)


def probe_rows(correct: Mapping[int, Sequence[int]], samples: int = 8, probed: str = "train") -> pd.DataFrame:
    """Return rows of probe.parquet. correct: step -> correct answers of each prompt t0, t1, ..."""
    rows = [
        {"step": step, "set": probed, "prompt_id": f"t{i}", "correct": int(c), "samples": samples, "mean": c / samples}
        for step, counts in correct.items()
        for i, c in enumerate(counts)
    ]
    return pd.DataFrame(rows)


def write_run(
    folder: Path,
    bits: Mapping[str, Bits] | None = None,
    totals: Mapping[str, float] | None = None,
    steps: Sequence[Mapping[str, float]] | pd.DataFrame = (),
    config: Mapping[str, Any] | None = None,
    probe: pd.DataFrame | None = None,
    groups: pd.DataFrame | None = None,
    budget: Mapping[str, Any] | None = None,
) -> Path:
    """Write a finished run, with its evaluation where ``bits`` are given. steps: the columns that matter.

    budget: of summary.json.
    """
    times = {**{f"seconds_{p}": 0.0 for p in PHASES}, "seconds_total": 0.0}
    if not isinstance(steps, pd.DataFrame):
        steps = pd.DataFrame([{"step": i, **times, **row} for i, row in enumerate(steps or [{}], start=1)])
    probe = probe_rows({0: (0, 4), len(steps): (0, 4)}) if probe is None else probe
    groups = pd.DataFrame({"step": [1]}) if groups is None else groups
    for name, frame in ((STEPS, steps), (GROUPS, groups), (PROBE, probe)):
        write_parquet(folder / name, frame, durable=False)
    settings = dict(config or {"seed": 1})
    write_text(folder / CONFIG, yaml.safe_dump(settings, sort_keys=False), durable=False)
    write_json(folder / MANIFEST, {"identity": "synthetic", "synthetic": True}, durable=False)
    summary = {"identity": "synthetic", "steps": len(steps), "totals": dict(totals or {})}
    summary |= {"budget": dict(budget)} if budget else {}
    write_json(folder / SUMMARY, {**summary, "files": fingerprints(folder, TABLES)}, durable=False)
    if bits:
        write_evaluation(folder / "eval", bits)
    return folder


def rewrite(folder: Path, **tables: pd.DataFrame) -> None:
    """Put other tables into a finished run, by their names without a suffix; its summary agrees with them."""
    for name, frame in tables.items():
        write_parquet(folder / f"{name}.parquet", frame, durable=False)
    summary = read_json(folder / SUMMARY)
    write_json(folder / SUMMARY, summary | {"files": fingerprints(folder, list(summary["files"]))}, durable=False)


def place(root: Path, method: str, seed: int, task: str = "countdown", model: str = "tiny") -> Path:
    """Return where :func:`write_study` looks for a run."""
    return root / "results" / "laptop" / task / model / method / f"seed{seed}"


def write_study(
    root: Path,
    cells: Sequence[tuple[str, str, int]],
    benchmarks: Sequence[str] = ("a", "b"),
    task: str = "countdown",
    **extra: Any,
) -> Path:
    """Write the study file of (model, method, seed), whose runs are where :func:`place` says."""
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
    names = {task: [[name, name.upper()] for name in benchmarks]}
    path = root / "study.json"
    write_json(path, {"scale": "laptop", "note": "Made up.", "cells": listed, "benchmarks": names, **extra}, False)
    return path
