"""verl with real vLLM on CPU cores: every way of sampling, a kill and a resumption, and transfers that fail."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest
from support.paths import ROOT
from support.vllm_cpu import make_world, needs_vllm, settings
from test_verl_runs import STARTED, assert_gone, by_hand, finish, no_stray_jobs  # noqa: F401 (fixture)

from bapo.experiments import compose as configuration
from bapo.experiments.places import run_directory
from bapo.gpucheck.command import expected_ages
from bapo.store.files import STEPS, verify_files

pytestmark = [pytest.mark.verl, pytest.mark.slow, needs_vllm]

MORE = [
    # one update a step: tv_x1 compares the policy of the step's beginning with the one that vLLM sampled with
    "train.mini_batch_size=8",
    "train.learning_rate=1e-3",
    "train.warmup_updates=0",
    "checkpoint.every=2",
]
#: seconds in which a failed transfer must end the job, on a busy machine
SOON = 90
#: seconds that a run may take there
LIMIT = 3000


def composed(results: Path, *overrides: str):
    return configuration.compose_config([*settings(results), *MORE, *overrides])


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with data and a base model."""
    folder = tmp_path_factory.mktemp("vllm")
    make_world(folder)
    return folder


def start(results: Path, *overrides: str) -> subprocess.Popen:
    command = [sys.executable, "-m", "bapo", "train", *settings(results), *MORE, *overrides]
    paths = os.pathsep.join(map(str, (ROOT, ROOT / "tests")))
    environment = {**os.environ, "PYTHONPATH": paths, "VLLM_LOGGING_LEVEL": "WARNING"}
    STARTED.append(subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True))
    return STARTED[-1]


@pytest.mark.parametrize("kind", ["Failing", "Dying"])
def test_a_failed_transfer_ends_the_job_with_its_first_error(results: Path, kind: str) -> None:
    """vLLM's worker fails, or is killed, when weights come for the second time."""
    extension = f"support.failing_transfer.{kind}"
    rollout = f"{{engine_kwargs: {{vllm: {{worker_extension_cls: {extension}}}}}}}"
    method = ["method=grpo", f"verl.overrides={{actor_rollout_ref: {{rollout: {rollout}}}}}"]
    process = start(results, *method)
    error = finish(process, LIMIT)
    ended = time.time()
    assert process.returncode == 1, error[-3000:]
    folder = run_directory(composed(results, *method))
    log = (folder / "verl.log").read_text(encoding="utf-8")
    failed = re.search(r"(?:seen|killed) at ([\d.]+\d)", log)
    assert failed and ended - float(failed[1]) < SOON
    last = [line for line in error.splitlines() if "the verl job failed" in line]
    assert len(last) == 1
    if kind == "Failing":
        assert "vLLM's worker could not take the weights: ValueError: these weights are bad" in last[0]
        assert "in fail\n" in log and "Traceback" in log  # the worker's own
    else:
        assert "vLLM died while it was given weights" in last[0]
    assert_gone(process)
    print(f"\n{kind}: {ended - float(failed[1]):.0f} s: {last[0]}")
    shutil.rmtree(folder)


def wait_for(process: subprocess.Popen, path: Path, limit: float = LIMIT) -> None:
    deadline = time.monotonic() + limit
    while not path.exists():
        assert process.poll() is None, process.communicate()[1][-3000:]
        assert time.monotonic() < deadline
        time.sleep(0.1)


METHODS = {
    "grpo": [],
    "dapo": ["method.max_generation_batches=2"],
    "grpo_v5": ["method.v=2"],
    "repo": ["method.capacity=8", "method.min_cached=8", "train.batch_size=16", "train.mini_batch_size=16"],
    "bapo": ["method.v=2", "method.m=2"],
}


@pytest.mark.parametrize("name", [pytest.param(n, marks=[] if n == "bapo" else [by_hand], id=n) for n in METHODS])
def test_vllm_holds_the_policy_that_the_method_samples_with(results: Path, name: str) -> None:
    """vLLM's log-probabilities are the trainer's where alpha has just been refreshed, and clearly others between."""
    overrides = [f"method={name}", *METHODS[name]]
    begun = time.monotonic()
    process = start(results, *overrides)
    if name == "bapo":  # killed by force behind its first checkpoint, and given again
        wait_for(
            process, run_directory(composed(results, *overrides)) / "checkpoints/verl/global_step_2/checksums.json"
        )
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
        assert_gone(process)
        process = start(results, *overrides)
    error = finish(process, LIMIT)
    assert process.returncode == 0, error[-3000:]
    assert ("going on after step 2" in error) == (name == "bapo")
    folder = run_directory(composed(results, *overrides))
    verify_files(folder)
    steps = pd.read_parquet(folder / STEPS)
    assert steps["step"].tolist() == [1, 2, 3, 4] and steps["updates"].sum() > 0
    # of alpha as the trainer keeps it, whatever its age
    assert steps["mismatch_mean"].max() < 5e-6 and steps["mismatch_mean"].min() > 0
    ages = steps["staleness"].astype(int)
    assert ages.tolist() == expected_ages(composed(results, *overrides))
    refreshed, between = (steps.loc[fresh, "tv_x1"].dropna() for fresh in (ages == 0, ages > 0))
    assert len(refreshed) and refreshed.max() < 1e-4
    if METHODS[name] and "method.v=2" in METHODS[name]:
        assert len(between) and between.min() > 100 * refreshed.max()
    print(
        f"\n{name}: mismatch {steps['mismatch_mean'].mean():.1e}, tv at refresh {refreshed.mean():.1e}, between "
        f"{between.mean():.1e}, {time.monotonic() - begun:.0f} s, step {steps['seconds_total'].median():.1f} s"
    )
    shutil.rmtree(folder)
