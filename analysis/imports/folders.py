"""Imported tables as run directories, and the study file that names them all."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from analysis.imports.formats import Settings, Tables, detect, read
from bapo.store import manifest
from bapo.store.files import (
    CONFIG,
    GROUPS,
    MANIFEST,
    PROBE,
    STEPS,
    SUMMARY,
    fingerprints,
    sha256,
    write_json,
    write_parquet,
    write_text,
)

STUDY = "study.json"


def import_log(
    path: Path, out: Path, task: str, model: str, method: str, seed: int, settings: Settings, name: str | None = None
) -> Path:
    """Write ``out/<task>/<model>/<method>/seed<k>/`` from a log and the task's study anew; returns the run's folder.

    Raises UserError where the log is not readable in that format.
    """
    name = name or detect(path)
    tables = read(path, settings, name)
    folder = out / task / model / method / f"seed{seed}"
    source = {"file": path.name, "sha256": sha256(path), "format": name, **asdict(settings)}
    write(folder, tables, source, settings.batch)
    write_study(out / task)
    return folder


def write(folder: Path, tables: Tables, source: dict[str, Any], batch_size: int) -> None:
    """Write a finished run directory; its identity and manifest say that nothing in it was trained here."""
    frames = {STEPS: tables.steps, GROUPS: tables.groups, PROBE: tables.probe}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / SUMMARY).unlink(missing_ok=True)
    for file, frame in frames.items():
        write_parquet(folder / file, frame)
    write_text(folder / CONFIG, f"train:\n  batch_size: {batch_size}\n")
    write_json(folder / MANIFEST, {"imported": source, "notes": tables.notes, "code": manifest.git_state()})
    rollouts = tables.steps.get("fresh_rollouts")
    summary = {
        "identity": f"imported:{source['sha256'][:16]}" if "sha256" in source else "what-if",
        "steps": int(tables.steps["step"].max()),
        "totals": {"rollouts": None if rollouts is None else int(rollouts.sum())},
        "files": fingerprints(folder, list(frames)),
    }
    write_json(folder / SUMMARY, summary)


def write_study(folder: Path) -> Path:
    """Write ``folder/study.json`` with every run of the task, for ``python -m analysis figure ... --study``."""
    cells = []
    for summary in sorted(folder.glob(f"*/*/seed*/{SUMMARY}")):
        model, method, seed = summary.parent.relative_to(folder).parts
        cells.append(
            {
                "task": folder.name,
                "task_title": folder.name,
                "model": model,
                "model_title": model,
                "method": method,
                "method_title": method,
                "kind": "",
                "seed": int(seed.removeprefix("seed")),
                "run": str(summary.parent),
            }
        )
    note = "Imported: runs of others, from their published logs; manifest.json of each says what was assumed."
    benchmarks = {folder.name: [["none", "not evaluated"]]}
    content = {"scale": "imported", "note": note, "cells": cells, "bases": [], "benchmarks": benchmarks}
    write_json(folder / STUDY, content)
    return folder / STUDY
