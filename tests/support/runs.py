"""Run directories and study files with chosen contents: the one builder of results for the tests of the analysis.

What a test does not give has a small default. Manifests and summaries say "synthetic", so that no number in such a
folder is taken for a result.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml

from analysis.claims import entries
from bapo.store import columns, provenance
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


def outcomes(counts: Iterable[int], samples: int = 8) -> list[list[int]]:
    """Return 0/1 of the samples of problems with these numbers of right answers."""
    return [[int(i < count) for i in range(samples)] for count in counts]


def without_a_line(table: str, names: Iterable[str]) -> list[str]:
    """Return those of a table's columns that bapo/store/columns.py has no line for."""
    return [name for name in names if re.sub(r"_x[123]$", "_xN", name) not in columns.TABLES[table]]


def write_evaluation(
    folder: Path, bits: Mapping[str, Bits], prefix: str = "p", problems: Sequence[str] | None = None
) -> None:
    """Write eval/: a table a benchmark, problems p00, p01, ... where they have no names."""
    for name, rows in bits.items():
        n, k = np.shape(rows)
        ids = np.repeat(problems or [f"{prefix}{i:02d}" for i in range(n)], k)
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
    summary = {"identity": f"synthetic {folder.name}", "steps": len(steps), "totals": dict(totals or {})}
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


# ------------------------------------------------------------------------------------------------ shared results

N, K, SEEDS = 30, 8, (1, 2)
#: correct answers of K on problem i, before what a seed adds
USUAL = {"base": 1, "grpo": 3, "bapo": 5}
CODE = {"version": "1", "commit": "a" * 40, "dirty": False}


def bits(level: int, seed: int, shift: int = 0) -> list[list[int]]:
    """0/1 [N][K]: problems differ, and a seed answers a few of them differently."""
    return outcomes(max(0, min(K, level + i % 3 - 1 + int((i * 7 + seed * 3 + shift) % 10 == 0))) for i in range(N))


def write_results(
    home: Path,
    levels: Mapping[str, int] = USUAL,
    seeds: tuple[int, ...] = SEEDS,
    config: Mapping[str, object] | None = None,
    shift: int = 0,
) -> Path:
    """A scale's folder with a study, its runs, and a table with its record; the study says results/laptop."""
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
    return home


def accuracy(level: int, shift: int = 0, seeds: tuple[int, ...] = SEEDS) -> float:
    """Percent of right answers over the seeds."""
    return 100 * float(np.mean([bits(level, s, shift) for s in seeds]))


# ------------------------------------------------------------------------------------------------ sweeps

PROBLEMS = 8


def run(folder: Path, means: list[float]) -> str:
    """A finished run whose held-out problems end at ``means``; before and beside them stands what must not be read."""
    rows = [(0, "probe", f"p{i}", 0.0) for i in range(len(means))] + [(6, "train", f"p{i}", 1.0) for i in range(3)]
    rows += [(6, "probe", f"p{i}", mean) for i, mean in enumerate(means)]
    return str(write_run(folder, probe=pd.DataFrame(rows, columns=["step", "set", "prompt_id", "mean"])))


def distribution(choices: list[Any] | None, low: float = 1, high: float = 30) -> str:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, distribution_to_json

    return distribution_to_json(CategoricalDistribution(choices) if choices else FloatDistribution(low, high))


def sweep(folder: Path, parameters: dict[str, list[Any] | None], trials: list[dict[str, Any]], **changes: Any) -> Path:
    """``trials.json`` of trials given by their values and the accuracy of every problem of each seed."""
    rows = []
    for number, t in enumerate(trials):
        places = {
            str(s): {"run": run(folder / f"t{number}" / f"seed{s}", table), "accuracy": float(np.mean(table))}
            for s, table in enumerate(t["seeds"], 1)
        }
        value = float(np.mean([p["accuracy"] for p in places.values()])) if places else None
        row = {"slot": number, "number": number, "state": "complete", "reason": "", "value": value}
        rows.append(row | t | {"seeds": places})
    seeds = [1, 2]
    grpo = {
        str(s): run(folder / "grpo" / f"seed{s}", [0.3 + 0.02 * i + 0.01 * s for i in range(PROBLEMS)]) for s in seeds
    }
    content = {
        "title": "Small",
        "scale": "smoke",
        "note": "Its numbers mean nothing.",
        "model_title": "Model M",
        "method_title": "+BAPO",
        "seeds": seeds,
        "validation": {"set": "probe", "samples": 4},
        "parameters": [
            {"name": n, "title": f"the {n}", "choices": c, "distribution": distribution(c)}
            for n, c in parameters.items()
        ],
        "reference": {"title": "+GRPO", "runs": grpo},
        "trials": rows,
    }
    path = folder / "trials.json"
    write_json(path, content | changes)
    return path


def table(mean: float, shift: float = 0.01) -> list[list[float]]:
    """Two seeds, ``shift`` above and below ``mean``, on problems that spread around it alike."""
    spread = [0.02 * (i - (PROBLEMS - 1) / 2) for i in range(PROBLEMS)]
    return [[mean + s + x for x in spread] for s in (shift, -shift)]


# ------------------------------------------------------------------------------------------------ claims

CLAIM = {
    "id": "a_claim",
    "section": "5.1",
    "quote": "DAPO needs more",
    "paper": 2.5,
    "studies": ["table1"],
    "query": {"name": "cost_ratio", "of": "dapo", "over": "bapo"},
    "rule": {"near": 0.2},
}


def write_claims(folder: Path, *given: dict[str, Any]) -> list[entries.Claim]:
    """Write a file of the ledger with an entry of each of the changes to ``CLAIM``, and read it."""
    folder.mkdir(exist_ok=True)
    (folder / "mine.yaml").write_text(yaml.safe_dump([{**CLAIM, **g} for g in given]))
    return entries.read(folder)
