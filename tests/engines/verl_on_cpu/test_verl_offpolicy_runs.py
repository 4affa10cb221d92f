"""Real verl runs on the CPU of the off-policy systems, against the torch engine."""

from __future__ import annotations

import os
import shutil
import signal
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from test_verl_runs import (  # noqa: F401 (fixtures)
    LIMIT,
    TWO_RANKS,
    VERL,
    assert_gone,
    assert_same_run,
    base,
    by_hand,
    cases,
    composed,
    finish,
    no_stray_jobs,
    pytestmark,
    results,
    run_command,
    tables,
    weights,
)

from bapo.algorithm.rollouts import DEMONSTRATED
from bapo.experiments.places import base_directory, run_directory
from bapo.store.files import GROUPS, PROBE, STEPS, verify_files


def on_torch(results: Path, tmp_path: Path, *overrides: str) -> tuple[Path, dict[str, pd.DataFrame]]:  # noqa: F811
    """(results folder, tables) of the torch engine's run."""
    from bapo.engines.torch.trainer import train

    other = tmp_path / "torch"
    if not other.exists():
        shutil.copytree(results, other)
    train(composed(other, *overrides))
    return other, tables(other, *overrides)


def on_verl(results: Path, *overrides: str) -> dict[str, pd.DataFrame]:  # noqa: F811
    process = run_command(results, *overrides)
    error = finish(process)
    assert process.returncode == 0, error[-3000:]
    return tables(results, VERL, *overrides)


def assert_same_weights(results: Path, other: Path, *overrides: str) -> None:  # noqa: F811
    """The engines' models are much nearer to each other than training went."""

    def last(folder: Path) -> np.ndarray:
        return weights(folder / verify_files(folder)["checkpoint"])

    start = weights(base_directory(composed(results)) / "checkpoint")
    own = last(run_directory(composed(results, VERL, *overrides)))
    expected = last(run_directory(composed(other, *overrides)))
    assert np.linalg.norm(own - expected) < 0.05 * np.linalg.norm(expected - start)


def test_a_killed_remix_run_goes_on_with_its_reference(results: Path, tmp_path: Path) -> None:  # noqa: F811
    """Two passes over mixed batches until step 3; then the reference is pi_3, also after kill -9 behind step 4. Two
    processes share the model and the reference by FSDP2."""
    remix = ["method=remix", "method.switch_step=3", "train.steps=6", "checkpoint.every=4"]
    other, expected = on_torch(results, tmp_path, *remix)
    steps = expected[STEPS]
    assert steps["updates"].tolist()[2:4] == [4, 2] and steps["x3"].tolist()[1] > 0

    process = run_command(results, *remix, TWO_RANKS)
    saved = run_directory(composed(results, VERL, *remix)) / "checkpoints" / "verl" / "global_step_4"
    deadline = time.monotonic() + LIMIT
    while not (saved / "checksums.json").exists():  # written last
        assert process.poll() is None, process.communicate()[1][-3000:]
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert (saved / "bapo" / "reference_rank1_of_2.safetensors").is_file()
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    assert_gone(process)

    found = on_verl(results, *remix, TWO_RANKS)
    assert_same_run(found, expected, tolerance=2e-3)
    # the KL to pi_3 begins near 0, that to the base does not
    kl = found[STEPS]["kl"].to_numpy()
    np.testing.assert_allclose(kl, steps["kl"], rtol=0.02, atol=1e-6)
    assert_same_weights(results, other, *remix)


def test_relift_ends_with_the_rollouts_of_grpo(results: Path, tmp_path: Path) -> None:  # noqa: F811
    """Expert solutions in mini-batches of their own; the run stops when it has used what GRPO's three steps did."""
    grpo = ["method=grpo", "train.steps=3"]
    other, _ = on_torch(results, tmp_path, *grpo)
    like = run_directory(composed(other, *grpo))
    shutil.copytree(like, run_directory(composed(results, VERL, *grpo)))
    relift = ["method=relift", "method.buffer_share=0.25", "train.budget={unit: rollouts, like: grpo, most: 2}"]
    other, expected = on_torch(results, tmp_path, *relift)
    steps, groups = expected[STEPS], expected[GROUPS]
    assert steps["step"].tolist() == [1, 2, 3]  # of 8 at most
    assert (groups["origin"] == DEMONSTRATED).any() and steps["updates"].max() > 2
    assert sorted(expected[PROBE]["step"].unique()) == [0, 2, 3]

    found = on_verl(results, *relift)
    assert_same_run(found, expected, tolerance=2e-3)
    assert_same_weights(results, other, *relift)


def test_partial_rollouts_go_on_where_they_were_cut_off(results: Path, tmp_path: Path) -> None:  # noqa: F811
    """Responses of several policies, stitched together over steps and over a checkpoint."""
    partial = ["method=partial_rollouts", "method.share=0.2"]
    other, expected = on_torch(results, tmp_path, *partial)
    steps = expected[STEPS]
    assert steps["resumed_groups"].max() > 0 and steps["earlier_tokens"].max() > 0
    assert_same_run(on_verl(results, *partial), expected, tolerance=2e-3)
    assert_same_weights(results, other, *partial)


BY_HAND = {"exgrpo": ["method.start_reward=0.01"], "luffy": [], "grpo_random_reward": [], "dots": []}


@pytest.mark.parametrize("method", cases(BY_HAND, by_hand))
def test_verl_repeats_the_torch_engine(results: Path, tmp_path: Path, method: list[str]) -> None:  # noqa: F811
    other, expected = on_torch(results, tmp_path, *method)
    if "method=grpo_random_reward" not in method:
        assert expected[GROUPS]["replayed"].max() > 0
    assert_same_run(on_verl(results, *method), expected, tolerance=2e-3)
    assert_same_weights(results, other, *method)
