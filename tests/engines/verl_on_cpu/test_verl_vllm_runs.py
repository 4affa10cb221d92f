"""verl with real vLLM on CPU cores: every way of sampling, a kill and a resumption."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest
from support.paths import ROOT
from support.vllm_cpu import make_world, needs_vllm, settings
from test_verl_runs import STARTED, by_hand, finish, kill_behind, no_stray_jobs  # noqa: F401 (fixture)

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
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "VLLM_LOGGING_LEVEL": "WARNING"}
    STARTED.append(subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True))
    return STARTED[-1]


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
        kill_behind(process, run_directory(composed(results, *overrides)) / "checkpoints/verl/global_step_2")
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
