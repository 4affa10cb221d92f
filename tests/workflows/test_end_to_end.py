"""The whole DAG through Snakemake, small: from nothing to the table, also after kill -9 of Snakemake itself."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest
from support.paths import ROOT

from bapo.experiments.studies import load_study
from bapo.store.files import verify_files

SET = (  # of all three tasks
    'set=["data.split_sizes.base=1000","data.split_sizes.train=48","data.split_sizes.probe=8","probe.prompts=8",'
    '"base.iterations=100","train.steps=6","train.batch_size=8","train.mini_batch_size=4","checkpoint.every=2"]'
)
TASKS = {"mathematics": "nested_3", "countdown": "cd34", "geometry": "diagrams_val"}  # a benchmark of each


def command(folder: Path) -> list[str]:
    settings = ["scale=smoke", "methods=[grpo,bapo]", "seeds=[1]", "tracking=none", f"results={folder / 'out'}", SET]
    return [
        sys.executable,
        "-m",
        "snakemake",
        "-s",
        str(ROOT / "Snakefile"),
        "--directory",
        str(folder),
        "--cores",
        "2",
        "--workflow-profile",
        str(ROOT / "workflows/profiles/default"),
        "table1",
        "--config",
        *settings,
    ]


def runs_in(process: Path, folder: Path) -> bool:
    """Return whether a process of /proc works in a folder."""
    try:
        return (process / "cwd").readlink() == folder
    except OSError:  # it has ended, or is another user's
        return False


def snakemake(folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(folder), capture_output=True, text=True, timeout=1200, env=environment())


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}


def test_from_nothing_to_the_table_through_a_kill(tmp_path: Path) -> None:
    out = tmp_path / "out" / "smoke"
    first = subprocess.Popen(
        command(tmp_path),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=environment(),
        start_new_session=True,
    )
    try:
        deadline = time.monotonic() + 600
        while not list(out.glob("*/*/*/seed1/manifest.json")):
            assert first.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
    finally:
        first.kill()  # Snakemake alone: the jobs that it started go on without it
        first.wait()

    second = snakemake(tmp_path)
    assert second.returncode == 0, second.stdout[-2000:] + second.stderr[-3000:]
    assert f"Table 1: {out / 'tables' / 'table1.md'}" in second.stdout
    assert f"Figures: {out / 'figures'}" in second.stdout
    text = (out / "tables" / "table1.md").read_text()
    assert "| +GRPO |" in text and "| +BAPO |" in text and "its numbers mean nothing" in text
    table = pd.read_csv(out / "tables" / "table1.csv")
    assert set(table["method"]) == {"base", "grpo", "bapo"} and set(table["task"]) == set(TASKS)
    assert "## (a) Mathematics" in text and "## (b) Planning and visual geometry" in text
    for figure in load_study("table1", "smoke").figures:
        if figure.endswith("_test_curves"):  # of the target `figures`
            continue
        assert (out / "figures" / f"{figure}.png").read_bytes()[:4] == b"\x89PNG"
        assert (out / "figures" / f"{figure}.pdf").stat().st_size > 1000
    summaries = {task: list(out.glob(f"{task}/*/*/seed*/summary.json")) for task in TASKS}
    assert [len(found) for found in summaries.values()] == [2, 2, 2]
    for task, summary in ((task, summary) for task, found in summaries.items() for summary in found):
        verify_files(summary.parent)
        bits = pd.read_parquet(summary.parent / "eval" / f"{TASKS[task]}.parquet")
        assert bits.groupby("problem_id")["sample"].apply(sorted).map(lambda s: s == list(range(32))).all()

    third = snakemake(tmp_path)
    assert third.returncode == 0 and "Nothing to be done" in third.stdout + third.stderr
    with pytest.raises(ProcessLookupError):  # the jobs of the killed Snakemake have ended as well
        os.killpg(first.pid, 0)
    warm = [p for p in Path("/proc").glob("[0-9]*") if runs_in(p, tmp_path)]
    assert warm == []  # and every warm process with them
