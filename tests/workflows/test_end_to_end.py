"""The whole DAG through Snakemake, small: from nothing to the table, also after kill -9 of Snakemake itself."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

import pandas as pd
import pytest
from support.paths import ROOT
from support.workflow import PATIENCE, SMALL, command, environment, snakemake

from analysis.products import FIGURES
from bapo.experiments.studies import load_study
from bapo.store.files import verify_files

CHECKOUT = ("bapo", "analysis", "experiments", "workflows", "Snakefile", "profiles")
RESULTS = "my results/it's $(touch run)"
SET = f"set={[*SMALL, 'base.iterations=100', 'train.steps=6']}"
WORDS = (
    "--cores",
    "2",
    "table1",
    "--config",
    "scale=smoke",
    "methods=[grpo,bapo]",
    "seeds=[1]",
    "tracking=none",
    SET,
    f"results={RESULTS}",
)
TASKS = {"mathematics": "nested_3", "countdown": "cd34", "geometry": "diagrams_val"}  # a benchmark of each


def runs_in(process: Path, folder: Path) -> bool:
    """Return whether a process of /proc works in a folder."""
    try:
        return (process / "cwd").readlink() == folder
    except OSError:  # it has ended, or is another user's
        return False


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout in a folder whose name a shell must not read."""
    folder = tmp_path / "a b'cé $(touch run)"
    for name in CHECKOUT:
        place, of = folder / name, ROOT / name
        if of.is_dir() and not of.is_symlink():
            shutil.copytree(of, place, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(of, place, follow_symlinks=False)
    return folder


@pytest.mark.system
def test_from_nothing_to_the_table_through_a_kill(checkout: Path) -> None:
    """In a checkout and results whose names have spaces, quotes, an accent and a command in them."""
    out, silent = checkout / RESULTS / "smoke", {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    place = {"file": checkout / "Snakefile", "PYTHONPATH": str(checkout)}
    known = environment(PYTHONPATH=str(checkout))
    words = command(*WORDS, file=checkout / "Snakefile")
    first = subprocess.Popen(words, cwd=checkout, env=known, start_new_session=True, **silent)
    try:
        deadline = time.monotonic() + PATIENCE
        while not list(out.glob("*/*/*/seed1/manifest.json")):
            assert first.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
    finally:
        first.kill()  # Snakemake alone: the jobs that it started go on without it
        first.wait()

    second = snakemake(checkout, *WORDS, **place)
    assert second.returncode == 0, second.stdout[-2000:] + second.stderr[-3000:]
    assert "starts by itself" not in second.stdout + second.stderr  # every job is a child of the warm process
    text = (out / "tables" / "table1.md").read_text()
    assert "| +GRPO |" in text and "| +BAPO |" in text and "its numbers mean nothing" in text
    table = pd.read_csv(out / "tables" / "table1.csv")
    assert set(table["method"]) == {"base", "grpo", "bapo"} and set(table["task"]) == set(TASKS)
    for figure in load_study("table1", "smoke").file.figures:
        if not FIGURES[figure].curves:  # those are of the target `figures`
            assert (out / "figures" / f"{figure}.png").read_bytes()[:4] == b"\x89PNG"
            assert (out / "figures" / f"{figure}.pdf").stat().st_size > 1000
    for task, benchmark in TASKS.items():
        summaries = list(out.glob(f"{task}/*/*/seed*/summary.json"))
        assert len(summaries) == 2
        for summary in summaries:
            verify_files(summary.parent)
            bits = pd.read_parquet(summary.parent / "eval" / f"{benchmark}.parquet")
            assert bits.groupby("problem_id")["sample"].apply(sorted).map(lambda s: s == list(range(32))).all()

    third = snakemake(checkout, *WORDS, **place)
    assert third.returncode == 0 and "Nothing to be done" in third.stdout + third.stderr
    with pytest.raises(ProcessLookupError):  # the jobs of the killed Snakemake have ended as well
        os.killpg(first.pid, 0)
    assert [p for p in Path("/proc").glob("[0-9]*") if runs_in(p, checkout)] == []  # and every warm process
    assert {path.name for path in checkout.iterdir()} <= {*CHECKOUT, ".snakemake", "my results"}
