"""SmolLM2 from the registry, trained by verl while real vLLM samples on CPU cores: the pocket scale's other engine."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from support.verl_jobs import by_hand, finish, start
from support.vllm_cpu import needs_vllm

from bapo.experiments import compose as configuration
from bapo.experiments.places import base_directory, run_directory
from bapo.store.files import STEPS, read_json, verify_files

pytestmark = [pytest.mark.verl, pytest.mark.slow, needs_vllm, by_hand]

#: seconds of a job on a busy machine
LIMIT = 1800


def test_vllm_and_the_trainer_agree_on_smollm2(tmp_path: Path) -> None:
    words = ["scale=pocket_smoke", "task=countdown", "engine=verl", "device=cpu", "tracking=none"]
    words += ["verl.rollout=vllm", "method=grpo", "train.steps=2", f"paths.results={tmp_path}"]
    for command in ("data", "base", "train"):
        finish(start(*words, command=command), LIMIT)
    config = configuration.compose_config(words)
    run = run_directory(config)
    verify_files(run)
    steps = pd.read_parquet(run / STEPS)
    assert steps["step"].tolist() == [1, 2] and steps["updates"].tolist() == [2, 2]
    assert steps["kl"].iloc[-1] > 0 and not steps["overloaded"].any()
    assert steps["mismatch_mean"].between(0, 5e-5, inclusive="neither").all()
    base, trained = base_directory(config) / "checkpoint", run / read_json(run / "summary.json")["checkpoint"]
    assert (trained / "chat_template.jinja").read_bytes() == (base / "chat_template.jinja").read_bytes()
    print(steps[["mismatch_mean", "mismatch_max", "seconds_rollout", "seconds_update", "seconds_total"]].to_string())
