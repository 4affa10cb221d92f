"""A real verl run with a critic on the CPU, killed and resumed, against the torch engine."""

from __future__ import annotations

import os
import shutil
import signal
import time
from pathlib import Path

import numpy as np
import pytest
from test_verl_runs import (  # noqa: F401 (fixtures)
    LIMIT,
    VERL,
    assert_gone,
    assert_same_run,
    base,
    composed,
    finish,
    no_stray_jobs,
    pytestmark,
    results,
    run_command,
    tables,
    weights,
)

from bapo.experiments.places import base_directory, run_directory
from bapo.store.files import STEPS, verify_files


def test_a_killed_ba_ppo_run_goes_on_as_if_nothing_had_happened(results: Path, tmp_path: Path) -> None:  # noqa: F811
    """4 steps, kill -9, and 2 more equal 6 in one go of the torch engine: verl's critic, its optimiser, the buffers and
    the delayed policy are in the checkpoint."""
    from bapo.engines.torch.trainer import train

    method = [
        "method=ba_ppo",
        "method.v=2",
        "method.m=2",
        "method.bad_capacity=16",
        "train.steps=6",
        "checkpoint.every=4",
    ]
    other = tmp_path / "torch"
    shutil.copytree(results, other)
    summary = train(composed(other, *method))
    expected = tables(other, *method)
    steps = expected[STEPS]
    assert steps["x3"][4] > 0 and steps["reevaluated_prompts"][1] > 0 and steps["staleness"].max() > 0
    assert steps["value_loss"].notna().all() and steps["explained_variance"].notna().all()

    process = run_command(results, *method)
    folder = run_directory(composed(results, VERL, *method))
    saved = folder / "checkpoints" / "verl" / "global_step_4"
    deadline = time.monotonic() + LIMIT
    while not (saved / "checksums.json").exists():  # written last
        assert process.poll() is None, process.communicate()[1][-3000:]
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert any((saved / "critic").glob("optim*")), "the critic's optimiser is not saved"
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    assert_gone(process)

    process = run_command(results, *method)
    error = finish(process)
    assert process.returncode == 0, error[-3000:]
    assert "going on after step 4" in error
    assert_same_run(tables(results, VERL, *method), expected, tolerance=2e-3)
    found = verify_files(folder)
    assert found["totals"]["backward_flops"] == pytest.approx(summary["totals"]["backward_flops"], rel=1e-6)
    start = weights(base_directory(composed(results)) / "checkpoint")
    own = weights(folder / found["checkpoint"])
    expected_weights = weights(run_directory(composed(other, *method)) / summary["checkpoint"])
    assert np.linalg.norm(own - expected_weights) < 0.05 * np.linalg.norm(expected_weights - start)
