"""Real verl runs on the CPU of the off-policy systems and of a critic, against the torch engine."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from test_verl_runs import (  # noqa: F401 (fixtures)
    TWO_RANKS,
    VERL,
    assert_same_run,
    assert_same_weights,
    base,
    by_hand,
    cases,
    composed,
    kill_behind,
    no_stray_jobs,
    on_torch,
    on_verl,
    pytestmark,
    results,
    run_command,
)

from bapo.algorithm.rollouts import DEMONSTRATED
from bapo.experiments.places import run_directory
from bapo.store.files import GROUPS, PROBE, STEPS, verify_files


def test_a_killed_remix_run_goes_on_with_its_reference(results: Path, tmp_path: Path) -> None:  # noqa: F811
    """Two passes over mixed batches until step 3; then the reference is pi_3, also after kill -9 behind step 4. Two
    processes share the model and the reference by FSDP2."""
    remix = ["method=remix", "method.switch_step=3", "train.steps=6", "checkpoint.every=4"]
    other, expected = on_torch(results, tmp_path, *remix)
    steps = expected[STEPS]
    assert steps["updates"].tolist()[2:4] == [4, 2] and steps["x3"].tolist()[1] > 0

    saved = run_directory(composed(results, VERL, *remix)) / "checkpoints" / "verl" / "global_step_4"
    kill_behind(run_command(results, *remix, TWO_RANKS), saved)
    assert (saved / "bapo" / "reference_rank1_of_2.safetensors").is_file()
    found = on_verl(results, *remix, TWO_RANKS)
    assert_same_run(found, expected)
    # the KL to pi_3 begins near 0, that to the base does not
    np.testing.assert_allclose(found[STEPS]["kl"], steps["kl"], rtol=0.02, atol=1e-6)
    assert_same_weights(results, other, *remix)


def test_a_killed_ba_ppo_run_goes_on_as_if_nothing_had_happened(results: Path, tmp_path: Path) -> None:  # noqa: F811
    """4 steps, kill -9, and 2 more equal 6 in one go of the torch engine: verl's critic, its optimiser, the buffers and
    the delayed policy are in the checkpoint."""
    method = ["method=ba_ppo", "method.v=2", "method.m=2", "method.bad_capacity=16", "train.steps=6"]
    method += ["checkpoint.every=4"]
    other, expected = on_torch(results, tmp_path, *method)
    steps = expected[STEPS]
    assert steps["x3"][4] > 0 and steps["reevaluated_prompts"][1] > 0 and steps["staleness"].max() > 0
    assert steps["value_loss"].notna().all() and steps["explained_variance"].notna().all()

    folder = run_directory(composed(results, VERL, *method))
    saved = folder / "checkpoints" / "verl" / "global_step_4"
    kill_behind(run_command(results, *method), saved)
    assert any((saved / "critic").glob("optim*")), "the critic's optimiser is not saved"
    assert_same_run(on_verl(results, *method, says="going on after step 4"), expected)
    assert_same_weights(results, other, *method)
    own, theirs = (verify_files(run)["totals"] for run in (folder, run_directory(composed(other, *method))))
    assert own["backward_flops"] == pytest.approx(theirs["backward_flops"], rel=1e-6)


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
    assert_same_run(found, expected)
    assert_same_weights(results, other, *relift)


def test_partial_rollouts_go_on_where_they_were_cut_off(results: Path, tmp_path: Path) -> None:  # noqa: F811
    """Responses of several policies, stitched together over steps and over a checkpoint."""
    partial = ["method=partial_rollouts", "method.share=0.2"]
    other, expected = on_torch(results, tmp_path, *partial)
    steps = expected[STEPS]
    assert steps["resumed_groups"].max() > 0 and steps["earlier_tokens"].max() > 0
    assert_same_run(on_verl(results, *partial), expected)
    assert_same_weights(results, other, *partial)


BY_HAND = {"exgrpo": ["method.start_reward=0.01"], "luffy": [], "grpo_random_reward": [], "dots": []}


@pytest.mark.parametrize("method", cases(BY_HAND, by_hand))
def test_verl_repeats_the_torch_engine(results: Path, tmp_path: Path, method: list[str]) -> None:  # noqa: F811
    other, expected = on_torch(results, tmp_path, *method)
    if "method=grpo_random_reward" not in method:
        assert expected[GROUPS]["replayed"].max() > 0
    assert_same_run(on_verl(results, *method), expected)
    assert_same_weights(results, other, *method)
