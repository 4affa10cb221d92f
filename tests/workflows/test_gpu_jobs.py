"""One machine with pretended GPUs: none is given twice, their jobs have their own environment, too few are told."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from itertools import combinations
from pathlib import Path

import pytest
from support.paths import ROOT
from support.world import TINY

GPU_PYTHON = shlex.join([sys.executable, str(ROOT / "tests/support/gpu_python.py")])
RUNS = "results/smoke-verl/countdown/qwen2-112k"
SIZES = [o for o in TINY if not o.startswith(("scale=", "tracking="))]


def snakemake(folder: Path, *words: str, gpus: int = 8, node: int = 8, **variables: str) -> subprocess.CompletedProcess:
    """Run Snakemake in ``folder`` on so many pretended GPUs, with training jobs that want ``node`` of them."""
    (folder / "jobs").mkdir(exist_ok=True)
    named = [f"gpus=[{','.join(map(str, range(gpus)))}]"] if gpus else []
    settings = ["scale=smoke", "engine=verl", "device=cuda", "tracking=none", *named]
    keys = f"set={json.dumps([*SIZES, f'verl.gpus_per_node={node}'])}"
    python = f"gpu_python={variables.pop('gpu_python', GPU_PYTHON)}"
    environment = {k: v for k, v in os.environ.items() if k != "CUDA_VISIBLE_DEVICES"}
    return subprocess.run(
        [sys.executable, "-m", "snakemake", "-s", str(ROOT / "Snakefile"), *words, "--config", *settings, keys, python],
        cwd=folder,
        env={**environment, "PYTHONPATH": str(ROOT), "PRETENDED": str(folder / "jobs"), **variables},
        capture_output=True,
        text=True,
        timeout=900,
    )


@pytest.mark.system
def test_no_gpu_is_given_twice(tmp_path: Path) -> None:
    """Two runs of 8 GPUs, a base model and evaluations of one, with cores for all of them at once."""
    wanted = [f"{RUNS}/{method}/seed1/{part}" for method in ("grpo", "bapo") for part in ("eval/summary.json",)]
    wanted += [f"{RUNS}/dapo/seed1/summary.json"]
    done = snakemake(tmp_path, "--cores", "8", *wanted, PRETENDED_SECONDS="2")
    assert done.returncode == 0, done.stderr[-3000:]
    jobs = [json.loads(path.read_text(encoding="utf-8")) for path in (tmp_path / "jobs").glob("*.json")]
    seen = sorted((job["command"], len(job["gpus"].split(","))) for job in jobs)
    assert seen == [("base", 1), ("evaluate", 1), ("evaluate", 1), ("train", 8), ("train", 8), ("train", 8)]
    for one, other in combinations(jobs, 2):
        if one["begun"] < other["ended"] and other["begun"] < one["ended"]:
            shared = set(one["gpus"].split(",")) & set(other["gpus"].split(","))
            assert not shared, (one, other)
    # the problems were made, by the interpreter that runs Snakemake and not by the one that records
    assert (tmp_path / "results/smoke-verl/countdown/data/summary.json").exists()
    assert "PRETENDED" not in (tmp_path / "results/smoke-verl/logs/data/countdown.log").read_text(encoding="utf-8")


#: records its arguments, one a line, drops `exec --nv IMG` and runs the rest with what the image has
APPTAINER = """#!/bin/sh
printf '%s\\n' "$@" > "$PRETENDED/$$.call"
[ "$1 $2" = "exec --nv" ] || exit 255
PATH="$3/bin:$PATH"
shift 3
exec "$@"
"""


def executable(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True)
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)


@pytest.mark.system
def test_jobs_on_gpus_run_in_the_image_and_the_others_do_not(tmp_path: Path) -> None:
    image = tmp_path / "an image"
    executable(tmp_path / "bin/apptainer", APPTAINER)
    executable(image / "bin/python", f'#!/bin/sh\nexec {GPU_PYTHON} "$@"\n')
    done = snakemake(
        tmp_path,
        *("--cores", "2", f"{RUNS}/grpo/seed1/eval/summary.json"),
        gpu_python=f"apptainer exec --nv '{image}' python",
        PATH=f"{tmp_path / 'bin'}:{os.environ['PATH']}",
        PRETENDED_SECONDS="0",
    )
    assert done.returncode == 0, done.stderr[-3000:]
    calls = [path.read_text(encoding="utf-8").splitlines() for path in (tmp_path / "jobs").glob("*.call")]
    assert all(call[:6] == ["exec", "--nv", str(image), "python", "-m", "bapo"] for call in calls), calls
    assert sorted(call[6] for call in calls) == ["base", "evaluate", "train"]
    jobs = [json.loads(path.read_text(encoding="utf-8")) for path in (tmp_path / "jobs").glob("*.json")]
    seen = sorted((job["command"], len(job["gpus"].split(","))) for job in jobs)
    assert seen == [("base", 1), ("evaluate", 1), ("train", 8)]  # what the image's interpreter was given
    # the problems need no GPU: made without the image
    assert (tmp_path / "results/smoke-verl/countdown/data/summary.json").exists()


@pytest.mark.system
@pytest.mark.parametrize(
    ("gpus", "said"),
    [(2, "error: 4 GPUs asked for, 2 here (CUDA_VISIBLE_DEVICES=0,1): set verl.gpus_per_node"), (0, "error: 4 GPUs")],
)
def test_too_few_gpus_are_told_before_anything_starts(tmp_path: Path, gpus: int, said: str) -> None:
    if not gpus and Path("/dev/nvidia0").exists():
        pytest.skip("this machine has a GPU")
    done = snakemake(tmp_path, "--cores", "2", f"{RUNS}/grpo/seed1/summary.json", gpus=gpus, node=4)
    assert done.returncode == 1
    (sentence,) = [line for line in done.stderr.splitlines() if line.startswith("error:")]
    assert sentence.startswith(said)
    assert not (tmp_path / "results").exists()


@pytest.mark.system
def test_a_command_that_does_not_exist_is_told(tmp_path: Path) -> None:
    target = f"{RUNS}/grpo/seed1/summary.json"
    done = snakemake(tmp_path, "--cores", "2", target, gpus=8, gpu_python="nowhere/apptainer exec --nv x.sif python")
    assert done.returncode == 1
    assert "error: --config gpu_python=nowhere/apptainer exec --nv x.sif python: there is no nowhere/app" in done.stderr


def test_a_dry_run_needs_no_gpu_and_shows_both_interpreters(tmp_path: Path) -> None:
    done = snakemake(
        tmp_path, "-n", "-p", f"{RUNS}/grpo/seed1/summary.json", gpus=0, gpu_python="apptainer exec 'a b' p"
    )
    assert done.returncode == 0, done.stderr
    calls = {
        line.partition(" -m bapo ")[2].split()[0]: line.partition(" -m bapo ")[0].rpartition("command: ")[2].strip()
        for line in done.stdout.splitlines()
        if " -m bapo " in line
    }
    assert calls == {"data": sys.executable, "base": "apptainer exec 'a b' p", "train": "apptainer exec 'a b' p"}
