"""Synthetic studies for the tests of the figures: Table 1's three tasks, and those of Figures 6 and 10."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from analysis import figures, products, style
from analysis.study import Study, load
from bapo.store.files import TABLES, fingerprints, read_json, write_json, write_parquet
from support.run_directories import METHODS, write_study

#: the figures that tests/analysis/test_curves.py is about
OTHERS = ("figure5_test_curves", "figure12_test_curves", "figure16_ppo")
NAMES = [name for name, figure in products.FIGURES.items() if figure.number and name not in OTHERS]
THREE = ("grpo", "dapo", "bapo")
TASKS = {  # of Table 1: title and methods
    "mathematics": ("Mathematics", (*METHODS, "mopps", "remix")),
    "countdown": ("Countdown", THREE),
    "geometry": ("Visual geometry", THREE),
}
PERIODS, PARTS, THRESHOLDS = ("bapo+v10", "bapo+m1"), ("bapo_without_x2", "bapo_without_x3"), ("bapo+fixed_0_2",)
FILTERS = ("bapo+gaussian", "bapo+uniform", "bapo")
SIZES = {"problems": 4, "samples": 2}


def write_table1(root: Path, seeds: Sequence[int] = (1, 2)) -> Path:
    """The study file of three tasks; mathematics with all methods, the others with three."""
    parts = []
    for task, (title, methods) in TASKS.items():
        path = write_study(root, methods, seeds, task=task, task_title=title, extra={"name": "table1"}, **SIZES)
        parts.append(json.loads(path.read_text()))
    content = parts[0]
    for other in parts[1:]:
        content["cells"] += other["cells"]
        content["bases"] += other["bases"]
        content["benchmarks"] |= other["benchmarks"]
    path.write_text(json.dumps(content))
    return path


def write_other(root: Path, name: str, methods: Sequence[str], task: str, title: str) -> Path:
    path = write_study(root, methods, (1, 2), task=task, task_title=title, extra={"name": name}, **SIZES)
    for seed in (1, 2):  # the synthetic configuration has no method of its own
        config = root / "results/laptop" / task / "synthetic-112k/bapo" / f"seed{seed}" / "config.yaml"
        content = yaml.safe_load(config.read_text()) | {"method": {"name": "bapo", "v": 5, "m": 5}}
        config.write_text(yaml.safe_dump(content))
    return path


def write_figure6(root: Path, methods: Sequence[str] = (*PERIODS, *PARTS, *THRESHOLDS, "bapo")) -> Path:
    return write_other(root, "figure6", methods, "countdown", "Countdown")


def write_all(base: Path) -> dict[str, Path]:
    """study name -> its file; written once, however many test files ask for them."""
    root = base / "figure_studies"
    if not root.exists():
        write_table1(root / "table1")
        write_figure6(root / "figure6")
        write_other(root / "figure10", "figure10", FILTERS, "mathematics", "Mathematics")
    return {name: root / name / "study.json" for name in ("table1", "figure6", "figure10")}


def figure(name: str, study: Study) -> tuple[Any, pd.DataFrame]:
    """(Figure, DataFrame of its data)"""
    with style.settings():
        return figures.function(name)(study)


@cache
def drawn(name: str, file: Path) -> tuple[Any, pd.DataFrame]:
    """The same of a study file, drawn once."""
    return figure(name, load(file))


def run_of(study: Study, task: str, method: str, seed: int) -> Path:
    block = next(b for b in study.blocks if b.task == task)
    return next(c.run for c in block.methods[method] if c.seed == seed)


def rewrite_steps(run: Path, **columns: object) -> None:
    """Other values in a run's steps.parquet, with a summary that agrees."""
    frame = pd.read_parquet(run / "steps.parquet").assign(**columns)
    write_parquet(run / "steps.parquet", frame)
    summary = read_json(run / "summary.json")
    write_json(run / "summary.json", summary | {"files": fingerprints(run, TABLES)})
