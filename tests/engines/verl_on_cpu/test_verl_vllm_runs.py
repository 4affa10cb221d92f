"""verl with real vLLM on CPU cores: every way of sampling, a kill and a resumption."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from support.verl_jobs import by_hand, finish, kill_behind, start
from support.vllm_cpu import make_world, needs_vllm, settings

from bapo.experiments.compose import compose_config
from bapo.experiments.places import base_directory, run_directory
from bapo.gpucheck.command import expected_ages
from bapo.store.files import STEPS, read_json, verify_files

pytestmark = [pytest.mark.verl, pytest.mark.slow, needs_vllm]

MORE = [
    # one update a step: tv_x1 compares the policy of the step's beginning with the one that vLLM sampled with
    "train.mini_batch_size=8",
    "checkpoint.every=2",
]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with data and a base model."""
    folder = tmp_path_factory.mktemp("vllm")
    make_world(folder)
    return folder


METHODS = {
    "grpo": [],
    "dapo": ["method.max_generation_batches=2"],
    "grpo_v5": ["method.v=2"],
    "repo": ["method.capacity=8", "method.min_cached=8", "train.batch_size=16", "train.mini_batch_size=16"],
    "bapo": ["method.v=2", "method.m=2"],
}


@pytest.mark.parametrize("name", [pytest.param(n, marks=[] if n == "bapo" else [by_hand], id=n) for n in METHODS])
def test_vllm_holds_the_policy_that_the_method_samples_with(world: Path, name: str) -> None:
    """vLLM's log-probabilities are the trainer's where alpha has just been refreshed, and clearly others between."""
    words = [*settings(world), *MORE, f"method={name}", *METHODS[name]]
    config = compose_config(words)
    folder = run_directory(config)
    if name == "bapo":  # killed by force behind its first checkpoint, and given again
        kill_behind(start(*words), folder / "checkpoints/verl/global_step_2")
    assert ("going on after step 2" in finish(start(*words))) == (name == "bapo")
    verify_files(folder)
    steps = pd.read_parquet(folder / STEPS)
    assert steps["step"].tolist() == [1, 2, 3, 4] and steps["updates"].sum() > 0
    # of alpha as the trainer keeps it, whatever its age
    assert steps["mismatch_mean"].max() < 5e-6 and steps["mismatch_mean"].min() > 0
    ages = steps["staleness"].astype(int)
    assert ages.tolist() == expected_ages(config)
    refreshed, between = (steps.loc[fresh, "tv_x1"].dropna() for fresh in (ages == 0, ages > 0))
    assert len(refreshed) and refreshed.max() < 1e-4
    if "method.v=2" in METHODS[name]:
        assert len(between) and between.min() > 100 * refreshed.max()


@by_hand
def test_vllm_and_the_trainer_agree_on_smollm2(tmp_path: Path) -> None:
    """SmolLM2 from the registry: the pocket scale's other engine."""
    words = ["scale=pocket_smoke", "task=countdown", "engine=verl", "device=cpu", "tracking=none"]
    words += ["verl.rollout=vllm", "method=grpo", "train.steps=2", f"paths.results={tmp_path}"]
    for command in ("data", "base", "train"):
        finish(start(*words, command=command))
    config = compose_config(words)
    run = run_directory(config)
    verify_files(run)
    steps = pd.read_parquet(run / STEPS)
    assert steps["step"].tolist() == [1, 2] and steps["updates"].tolist() == [2, 2]
    assert steps["kl"].iloc[-1] > 0 and not steps["overloaded"].any()
    assert steps["mismatch_mean"].between(0, 5e-5, inclusive="neither").all()
    base, trained = base_directory(config) / "checkpoint", run / read_json(run / "summary.json")["checkpoint"]
    assert (trained / "chat_template.jinja").read_bytes() == (base / "chat_template.jinja").read_bytes()
