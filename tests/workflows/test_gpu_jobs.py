"""What jobs ask a machine and a cluster for: on one with pretended GPUs none is given twice, and too few are told."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from itertools import combinations
from pathlib import Path

import pytest
from support import workflow
from support.paths import ROOT
from support.world import TINY

from bapo.experiments.studies import load_study

pytestmark = pytest.mark.system

RUNS = "results/smoke-verl/countdown/qwen2-112k"
SIZES = [o for o in TINY if not o.startswith(("scale=", "tracking="))]


@pytest.fixture(autouse=True)
def all_are_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def snakemake(
    folder: Path, *words: str, gpus: int = 8, node: int = 8, python: str = workflow.GPU_PYTHON, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run Snakemake in ``folder`` on so many pretended GPUs, with training jobs that want ``node`` of them; -n: dry."""
    (folder / "jobs").mkdir(exist_ok=True)
    settings = ["scale=smoke", "engine=verl", "device=cuda", "tracking=none", f"gpu_python={python}"]
    variables |= {"CUDA_VISIBLE_DEVICES": ",".join(map(str, range(gpus)))} if gpus else {}
    settings.append(f"set={json.dumps([*SIZES, f'verl.gpus_per_node={node}'])}")
    run = workflow.dry_run if "-n" in words else workflow.snakemake
    return run(folder, *words, "--config", *settings, PRETENDED=str(folder / "jobs"), **variables)


def test_no_gpu_is_given_twice(tmp_path: Path) -> None:
    """Two runs of 8 GPUs, a base model and evaluations of one, with cores for all of them at once."""
    wanted = [f"{RUNS}/{method}/seed1/eval/summary.json" for method in ("grpo", "bapo")]
    done = snakemake(tmp_path, "--cores", "8", *wanted, f"{RUNS}/dapo/seed1/summary.json", PRETENDED_SECONDS="2")
    assert done.returncode == 0, done.stderr[-3000:]
    jobs = [json.loads(path.read_text(encoding="utf-8")) for path in (tmp_path / "jobs").glob("*.json")]
    sizes = sorted((job["command"], len(job["gpus"].split(","))) for job in jobs)
    assert sizes == [("base", 1), ("evaluate", 1), ("evaluate", 1), *[("train", 8)] * 3]
    for one, other in combinations(jobs, 2):
        if one["begun"] < other["ended"] and other["begun"] < one["ended"]:
            assert not set(one["gpus"].split(",")) & set(other["gpus"].split(",")), (one, other)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"gpus": 2}, "4 GPUs asked for, 2 here (CUDA_VISIBLE_DEVICES=0,1)"),
        ({"gpus": 0}, "4 GPUs"),
        ({"python": "nowhere/apptainer exec x.sif python"}, "--config gpu_python=nowhere/apptainer"),
    ],
)
def test_what_is_not_there_is_told_before_anything_starts(tmp_path: Path, given: dict, said: str) -> None:
    if given.get("gpus") == 0 and Path("/dev/nvidia0").exists():
        pytest.skip("this machine has a GPU")
    done = snakemake(tmp_path, "--cores", "2", f"{RUNS}/grpo/seed1/summary.json", node=4, **given)
    (sentence,) = [line for line in done.stderr.splitlines() if line.startswith("error:")]
    assert done.returncode == 1 and sentence.startswith(f"error: {said}")
    assert not (tmp_path / "results").exists()


def test_a_dry_run_needs_no_gpu_and_shows_both_interpreters(tmp_path: Path) -> None:
    python = "apptainer exec 'a b' p"
    done = snakemake(tmp_path, "-n", "-p", f"{RUNS}/grpo/seed1/summary.json", gpus=0, python=python)
    assert done.returncode == 0, done.stderr
    calls = {command: used for used, command in re.findall(r"command: (.*?) -m bapo (\w+)", done.stdout)}
    assert calls == {"data": sys.executable, "base": python, "train": python}


@pytest.mark.parametrize(
    ("scale", "together", "alone"),
    [("laptop", {"start": 3, "runs": 11, "analysis": 1}, 0), ("pocket", {"start": 4, "analysis": 1}, 12)],
)
def test_table1_is_tens_of_slurm_jobs_not_hundreds(tmp_path: Path, scale: str, together: dict, alone: int) -> None:
    """By task the start; eight runs with their evaluations, or each alone where it takes a day; what is drawn."""
    profile = str(ROOT / "workflows" / "profiles" / "slurm")  # which names the file of partitions beside it
    words = ("--workflow-profile", profile, "table1", "--config", f"scale={scale}", "results=results")
    done = workflow.dry_run(tmp_path, *words)
    assert done.returncode == 0, done.stderr
    said = done.stdout + done.stderr
    assert Counter(re.findall(r"Group job (\w+) ", said)) == together
    assert len(re.findall(r"^Job \d+: Train", said, re.MULTILINE)) == alone
    assert len(load_study("table1", "laptop").cells) == 81
