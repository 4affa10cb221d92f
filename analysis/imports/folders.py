"""Imported tables as run directories, and the study file that names them all."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from analysis.imports import evaluations
from analysis.imports.formats import Settings, Tables, detect, read_log
from analysis.imports.lines import NAMED, Log
from bapo.errors import UserError, unknown
from bapo.store.files import (
    CONFIG,
    GROUPS,
    MANIFEST,
    PROBE,
    STEPS,
    SUMMARY,
    fingerprints,
    read_json,
    sha256,
    write_json,
    write_parquet,
    write_text,
)
from bapo.store.provenance import git_state

STUDY = "study.json"
#: folder of an evaluation in that of its run, as in own runs
EVALUATION = "eval"


@dataclass(frozen=True)
class Imported:
    """What an import wrote. folder: of the run; log: with what was refused; records: how many were not."""

    folder: Path
    log: Log
    records: int


def import_file(
    path: Path,
    out: Path,
    names: tuple[str, str, str, int],
    settings: Settings,
    format: str | None = None,
    metric: str = "",
    renamed: Mapping[str, str] | None = None,
) -> Imported:
    """Import a training log, or an evaluation where the file is one, as ``names``: task, model, method and seed.

    metric, renamed: of an evaluation, as in :func:`import_evaluation`. Raises UserError where nothing can be read, a
    name is none of a folder, or an option does not go with the kind of file.
    """
    for option, name in zip(("task", "model", "method"), names, strict=False):
        _check_name(f"--{option}", name)
    if format is None and evaluations.reader_of(path):
        if settings.reward:
            raise UserError(f"{path}: is an evaluation, --reward is for training logs; leave it out")
        return import_evaluation(path, out, *names, metric, renamed or {})
    if metric or renamed:
        raise UserError(f"{path}: is no evaluation, for which --metric and --benchmark are; leave them out")
    return _import_log(path, out, *names, settings, format)


def _check_name(option: str, name: str) -> None:
    """Raise UserError where a name is not one folder's."""
    if name in ("", ".", "..") or "/" in name or "\\" in name:
        plain = "--".join(part for part in re.split(r"[/\\]", name) if part not in ("", ".", ".."))
        raise UserError(f"{option} '{name}': must be the name of one folder, for example {plain or 'qwen2.5-7b'}")


def _import_log(
    path: Path, out: Path, task: str, model: str, method: str, seed: int, settings: Settings, name: str | None
) -> Imported:
    """Write ``out/<task>/<model>/<method>/seed<k>/`` from a log, and the task's study anew."""
    name = name or detect(path)
    tables, log = read_log(path, settings, name)
    folder = out / task / model / method / f"seed{seed}"
    source = {"file": path.name, "sha256": sha256(path), "format": name, **asdict(settings), **refusals(log)}
    write(folder, tables, source, settings.batch)
    write_study(out / task)
    return Imported(folder, log, len(log.records))


def refusals(log: Log) -> dict[str, Any]:
    """Return what a manifest says of refused records: their number and the first of them."""
    named = [{"place": place, "reason": reason} for place, reason in log.refused[:NAMED]]
    return {"refused": len(log.refused), "refused_first": named, "passed_over": log.passed}


def import_evaluation(
    path: Path, out: Path, task: str, model: str, method: str, seed: int, metric: str, renamed: Mapping[str, str]
) -> Imported:
    """Add a published evaluation to ``out/<task>/<model>/<method>/seed<k>/eval/``; those of other files there stay.

    metric: which to take; renamed: a benchmark's name in the file -> here, for example that of one's own runs.
    """
    found, log = evaluations.read(path, metric)
    lost = sorted(set(renamed) - set(found.scores))
    if lost:
        raise UserError(unknown(f"{path}: --benchmark", f"no benchmark '{lost[0]}'", lost[0], list(found.scores)))
    folder = out / task / model / method / f"seed{seed}" / EVALUATION
    sources = read_json(folder / MANIFEST)["imported"] if (folder / MANIFEST).exists() else []
    kept = read_json(folder / SUMMARY) if (folder / SUMMARY).exists() else {"benchmarks": {}, "files": {}}
    digest = sha256(path)
    benchmarks = {name: score for name, score in kept["benchmarks"].items() if score.get("sha256") != digest}
    files = dict(kept["files"])
    for name, score in found.scores.items():
        ours = renamed.get(name, name)
        benchmarks[ours] = {**asdict(score), "source": path.name, "sha256": digest}
        if name in found.values:
            _write_problems(folder / _table(ours), found.values[name])
            files |= fingerprints(folder, [_table(ours)])
    left = {_table(name) for name in benchmarks}
    files = {file: seal for file, seal in files.items() if file in left}
    source = {"file": path.name, "sha256": digest, "format": found.format, "model": found.model, **refusals(log)}
    sources = [*(s for s in sources if s["sha256"] != digest), source]
    write_json(folder / MANIFEST, {"imported": sources, "code": git_state()})
    content = {"identity": f"imported:{digest[:16]}", "benchmarks": benchmarks, "files": files}
    write_json(folder / SUMMARY, content)
    for file in kept["files"].keys() - files.keys():  # of this file under a name that it no longer has
        (folder / file).unlink(missing_ok=True)
    return Imported(folder, log, len(found.scores) + sum(map(len, found.values.values())))


def _table(benchmark: str) -> str:
    """Return the file of a benchmark's problems."""
    return f"{re.sub(r'[^A-Za-z0-9_.-]+', '_', benchmark)}.parquet"


def _write_problems(path: Path, values: Mapping[str, float]) -> None:
    import pandas as pd

    write_parquet(path, pd.DataFrame({"problem_id": list(values), "mean": list(values.values())}))


def write(folder: Path, tables: Tables, source: dict[str, Any], batch_size: int) -> None:
    """Write a finished run directory; its identity and manifest say that nothing in it was trained here."""
    frames = {STEPS: tables.steps, GROUPS: tables.groups, PROBE: tables.probe}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / SUMMARY).unlink(missing_ok=True)
    for file, frame in frames.items():
        write_parquet(folder / file, frame)
    write_text(folder / CONFIG, f"train:\n  batch_size: {batch_size}\n")
    write_json(folder / MANIFEST, {"imported": source, "notes": tables.notes, "code": git_state()})
    rollouts = tables.steps.get("fresh_rollouts")
    summary = {
        "identity": f"imported:{source['sha256'][:16]}" if "sha256" in source else "what-if",
        "steps": int(tables.steps["step"].max()),
        "totals": {"rollouts": None if rollouts is None else int(rollouts.sum())},
        "files": fingerprints(folder, list(frames)),
    }
    write_json(folder / SUMMARY, summary)


def write_study(folder: Path) -> None:
    """Write ``folder/study.json`` with every run of the task, for ``python -m analysis figure ... --study``.

    Nothing is written where there is no run: a study needs one.
    """
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
    if not cells:
        return
    note = "Imported: runs of others, from their published logs; manifest.json of each says what was assumed."
    benchmarks = {folder.name: [["none", "not evaluated"]]}
    content = {"scale": "imported", "note": note, "cells": cells, "bases": [], "benchmarks": benchmarks}
    write_json(folder / STUDY, content)
