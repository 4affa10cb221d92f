"""How a dry run, a run and an analysis grow with seeds, methods and prompts: 1, 4 and 16 times as many.

    python benchmarks/growth.py [--rounds N] [--smallest]

An exponent p says that what comes on top of the smallest size grows as n ** p: 1 is linear, and the bar. It is taken
from the CPU times t at 1, 4 and 16: (t16 - t1) / (t4 - t1) = 4 ** p + 1. Each size is measured as often as asked, in
turns, and the least time counts, as other work only adds. A run is two steps, of which the probe reads all its prompts
before and after; seeds and methods are runs of their own. The runs that the analysis reads are made up by copying.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
from processes import Cost, cost

from bapo.experiments import places
from bapo.store.files import GROUPS, PROBE, STEPS, SUMMARY, TABLES, fingerprints, write_json, write_parquet

ROOT = Path(__file__).resolve().parent.parent
SIZES = (1, 4, 16)
BENCHMARKS = ("a", "b")


def dry_run(folder: Path, methods: int, seeds: int) -> Cost:
    """Measure ``snakemake -n table1`` at laptop scale for so many methods and seeds."""
    names = places.options("method")[:methods]
    settings = [f"methods=[{','.join(names)}]", f"seeds=[{','.join(map(str, range(1, seeds + 1)))}]", "results=none"]
    command = [sys.executable, "-m", "snakemake", "-s", str(ROOT / "Snakefile"), "-n", "table1", "--config", *settings]
    shutil.rmtree(folder / ".snakemake", ignore_errors=True)  # nothing is kept from the size before
    return cost(command, folder, ROOT)


#: a raw base in a second; a run of two steps with a probe before and after
TINY = ("data.split_sizes.base=1000", "base.iterations=20", "train.steps=2", "probe.points=2")


def run(folder: Path, prompts: int) -> Cost:
    """Measure ``python -m bapo train`` with 32 problems and 32 prompts of each probe, or so many times as many."""
    home = folder / f"run{prompts}"
    sizes = [f"data.split_sizes.train={32 * prompts}", f"data.split_sizes.probe={32 * prompts}"]
    words = ["task=countdown", "method=bapo", "tracking=none", "threads=1", *TINY, *sizes]
    words += [f"probe.prompts={32 * prompts}", f"paths.results={home}"]
    if not home.exists():
        for job in ("data", "base"):
            cost([sys.executable, "-m", "bapo", job, *words], folder, ROOT)
    for made in home.glob("*/*/*/bapo"):
        shutil.rmtree(made)
    return cost([sys.executable, "-m", "bapo", "train", *words], folder, ROOT)


def analysis(folder: Path, methods: int, seeds: int, prompts: int, command: str) -> Cost:
    """Measure ``python -m analysis`` on made-up runs."""
    home = folder / f"{methods}-{seeds}-{prompts}"
    study = home / "study.json"
    if not study.exists():
        make_study(home, study, methods, seeds, prompts)
    words = [sys.executable, "-m", "analysis", *command.split(), "--study", str(study), "--out", str(home / "out")]
    return cost(words, folder, ROOT)


def make_study(home: Path, study: Path, methods: int, seeds: int, prompts: int) -> None:
    """Write finished runs of made-up numbers, and the study file that lists them. prompts: of each benchmark."""
    generator = np.random.default_rng(0)
    cells = []
    for method in range(methods):
        for seed in range(1, seeds + 1):
            run = home / f"m{method}" / f"seed{seed}"
            make_run(run, prompts, generator)
            title = {"task_title": "Countdown", "model_title": "Tiny", "method_title": f"+M{method}"}
            names = {"task": "countdown", "model": "tiny", "method": f"m{method}", "seed": seed, "run": str(run)}
            cells.append(names | title)
    content = {"scale": "laptop", "note": "Made up.", "reference": "m0", "cells": cells}
    content["benchmarks"] = {"countdown": [[name, name.upper()] for name in BENCHMARKS]}
    study.write_text(json.dumps(content), encoding="utf-8")


def make_run(run: Path, prompts: int, generator: np.random.Generator) -> None:
    evaluation = run / "eval"
    evaluation.mkdir(parents=True)
    for name in BENCHMARKS:
        ids = np.repeat([f"p{i:05d}" for i in range(prompts)], 32)
        samples, correct = np.tile(np.arange(32), prompts), generator.random(32 * prompts) < 0.3
        frame = pd.DataFrame({"problem_id": ids, "sample": samples, "correct": correct, "parsed": True})
        write_parquet(evaluation / f"{name}.parquet", frame)
    files = fingerprints(evaluation, [f"{name}.parquet" for name in BENCHMARKS])
    write_json(evaluation / SUMMARY, {"identity": "made up", "files": files})
    phases = {f"seconds_{p}": 0.0 for p in ("rollout", "regenerate", "reward", "update", "probe", "total")}
    rows = [{"step": step, "reward_mean": generator.random(), **phases} for step in range(1, 51)]
    write_parquet(run / STEPS, pd.DataFrame(rows))
    write_parquet(run / GROUPS, pd.DataFrame({"step": [1]}))
    probe = [
        {"step": step, "set": "train", "prompt_id": f"t{i}", "correct": 4, "samples": 8, "mean": 0.5}
        for step in (0, 50)
        for i in range(prompts)
    ]
    write_parquet(run / PROBE, pd.DataFrame(probe))
    (run / "config.yaml").write_text("seed: 1\n", encoding="utf-8")
    content = {"identity": "made up", "steps": 50, "totals": {"rollouts": 1000}}
    write_json(run / SUMMARY, {**content, "files": fingerprints(run, TABLES)})


def report(name: str, measure: Callable[[int], Cost], sizes: tuple[int, ...], rounds: int) -> None:
    """Print times, memory and exponents of one part."""
    found: dict[int, list[Cost]] = {size: [] for size in sizes}
    for _ in range(rounds):
        for size in sizes:
            found[size].append(measure(size))
    seconds = [min(c.cpu for c in found[size]) for size in sizes]
    memory = [min(c.memory for c in found[size]) / 1e6 for size in sizes]
    text = f"{name:<28} CPU {' / '.join(f'{s:.2f}' for s in seconds)} s   {' / '.join(f'{m:.0f}' for m in memory)} MB"
    print(f"{text}   exponents {exponent(seconds)} {exponent(memory)}", flush=True)


def exponent(values: list[float]) -> str:
    """Return p of (v16 - v1) / (v4 - v1) = 4 ** p + 1, or why there is none."""
    if len(values) < 3:
        return "-"
    first, second = values[1] - values[0], values[2] - values[0]
    if second < 0.1 * values[0]:
        return "flat"  # within noise
    return f"{math.log(second / first - 1) / math.log(4):.2f}" if second > first > 0 else "?"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2, help="measurements of each size (default: 2)")
    parser.add_argument("--smallest", action="store_true", help="sizes 1 and 4 of three parts, once")
    options = parser.parse_args()
    sizes, rounds = (SIZES[:2], 1) if options.smallest else (SIZES, options.rounds)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        print(f"{' / '.join(map(str, sizes))} times as many; exponents of CPU time and memory")
        report("dry run, seeds", lambda n: dry_run(folder, 2, n), sizes, rounds)
        if not options.smallest:
            report("dry run, methods", lambda n: dry_run(folder, n, 1), sizes, rounds)
        report("run, prompts", lambda n: run(folder, n), sizes, rounds)
        report("Table 1, seeds", lambda n: analysis(folder, 2, n, 100, "table1"), sizes, rounds)
        if not options.smallest:
            report("Table 1, methods", lambda n: analysis(folder, n, 2, 100, "table1"), sizes, rounds)
            report("Table 1, prompts", lambda n: analysis(folder, 2, 2, 100 * n, "table1"), sizes, rounds)
            curves = "figure figure4_training_curves"
            report("Figure 4, seeds", lambda n: analysis(folder, 2, n, 100, curves), sizes, rounds)


if __name__ == "__main__":
    main()
