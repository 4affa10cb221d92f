"""Real verl runs on CPU cores with tiny models against the torch engine: each start of Ray takes about a minute.

One run serves several promises: what a method needs of verl, and one way in which a job ends before its run does.
"""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import signal
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from omegaconf import OmegaConf
from support import verl_jobs
from support.processes import wait_for
from support.runs import without_a_line
from support.verl_jobs import SETTINGS, finish, kill_behind
from support.world import start_of

from bapo.algorithm.rollouts import DEMONSTRATED
from bapo.engines.verl import checkpoints
from bapo.engines.verl.verl_config import BASE
from bapo.experiments.compose import compose_config
from bapo.experiments.places import base_directory, run_directory
from bapo.store.files import GROUPS, PROBE, STEPS, TABLES, TIME_COLUMNS, fingerprints, verify_files

pytestmark = [
    pytest.mark.verl,
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("verl") is None, reason="verl is not installed (extra `verl`)"),
]
VERL = "engine=verl"
Tables = dict[str, pd.DataFrame]


class Run:
    """One run in both engines: the torch engine's in this process, verl's in processes of its own."""

    def __init__(self, results: Path, other: Path, *words: str, settings: list[str] = SETTINGS) -> None:
        """results, other: the folders of verl's results and of the torch engine's, each with data and base model."""
        self.words = [*settings, *words, VERL, f"paths.results={results}"]
        self.config = compose_config(self.words)
        self.torch = compose_config([*settings, *words, f"paths.results={other}"])
        self.folder = run_directory(self.config)
        self.root = checkpoints.root_of(self.folder)

    def expected(self) -> Tables:
        """Train in the torch engine; return the tables."""
        from bapo.engines.torch.trainer import train

        train(self.torch)
        return tables(run_directory(self.torch))

    def start(self, *words: str):
        return verl_jobs.start(*self.words, *words)

    def stopped_after(self, step: int, of: int) -> int:
        """Start the job and send it SIGTERM when it has saved a step; return the step after which it stopped."""
        process = self.start()
        wait_for(process, (self.saved(step) / "checksums.json").exists)
        process.send_signal(signal.SIGTERM)
        stopped = re.search(rf"stopped after step (\d) of {of}", finish(process, status=130))
        last = int(stopped[1]) if stopped else 0
        assert step < last < of
        assert pd.read_parquet(self.folder / STEPS)["step"].tolist() == list(range(1, last + 1))
        assert not (self.folder / ".stop").exists()
        return last

    def saved(self, step: int) -> Path:
        return checkpoints.folder_of(self.root, step)

    def assert_ends_like(self, expected: Tables, says: str = "", *words: str) -> Tables:
        """Start the job, (again,) and compare its run with the torch engine's: what happened, and the weights.

        Adam turns the rounding of gradients near zero (a token that never occurs) into whole steps, so the distance
        between the engines is compared with the distance that training went.
        """
        assert says in finish(self.start(*words))
        found = tables(self.folder)
        assert_same_tables(found, expected)
        assert without_a_line(STEPS, found[STEPS].columns) == []
        start = weights(base_directory(self.config) / "checkpoint")
        own, theirs = (weights(f / verify_files(f)["checkpoint"]) for f in (self.folder, run_directory(self.torch)))
        assert np.linalg.norm(own - theirs) < 0.05 * np.linalg.norm(theirs - start)
        totals, others = (verify_files(f)["totals"] for f in (self.folder, run_directory(self.torch)))
        for total in ("rollouts", "trained_tokens", "backward_flops"):
            assert totals[total] == pytest.approx(others[total], rel=1e-6) and totals[total] > 0
        return found


def tables(folder: Path) -> Tables:
    return {name: pd.read_parquet(folder / name) for name in TABLES}


def weights(folder: Path) -> np.ndarray:
    from safetensors.torch import load_file

    tensors = load_file(folder / "model.safetensors")
    tensors.pop("lm_head.weight", None)
    return np.concatenate([tensors[name].float().numpy().ravel() for name in sorted(tensors)])


def assert_same_tables(found: Tables, expected: Tables, tolerance: float = 2e-3) -> None:
    """The torch engine has no second one to compare log-probabilities with, and does not count a GPU's memory.

    verl's metrics have no percentiles. tolerance: of the numbers in steps.parquet.
    """
    alone = (TIME_COLUMNS, "mismatch", "memory", "ratio_p99")
    own, theirs = (t[STEPS][[name for name in t[STEPS] if not name.startswith(alone)]] for t in (found, expected))
    pd.testing.assert_frame_equal(own, theirs, rtol=tolerance, atol=tolerance)
    for name in (GROUPS, PROBE):
        order = ["step", "prompt_id", "origin"] if name == GROUPS else ["step", "set", "prompt_id"]
        pd.testing.assert_frame_equal(
            *(t[name].sort_values(order, kind="stable").reset_index(drop=True) for t in (found, expected))
        )


#: what the others do happens in runs of other methods below, too
METHODS = {
    "grpo": [],
    "grpo_v5": ["method.v=2"],
    "repo": ["method.capacity=8", "method.min_cached=8", "train.batch_size=32"],  # replays from step 3 on
    "areal": ["method.staleness=2"],  # draws three batches at first, and trains on old ones
    "bapo_released": ["train.steps=5"],  # replays responses with the log-probabilities of their own step
    "exgrpo": ["method.start_reward=0.01"],
    "luffy": [],
    "grpo_random_reward": [],
    "dots": [],
}


@pytest.mark.full
@pytest.mark.parametrize("name", METHODS)
def test_verl_repeats_the_torch_engine(results: Path, base: Path, tmp_path: Path, name: str) -> None:
    """Same prompts, same random numbers, same loss: the two engines' runs agree to rounding."""
    run = Run(results, shutil.copytree(base, tmp_path / "torch"), f"method={name}", *METHODS[name])
    expected = run.expected()
    last = len(expected[STEPS])
    assert_measures(run, run.assert_ends_like(expected, f"step {last}/{last}  reward", "tracking.kind=wandb"))


def assert_measures(run: Run, found: Tables) -> None:
    """What verl alone measures is in the tables, and in wandb's file."""
    steps = found[STEPS]
    assert (steps[["seconds_reward", "seconds_push"]] > 0).all(axis=None)
    assert steps["memory_peak_gb"].isna().all()  # no GPU
    stale = steps["rollout_version"] < steps["step"] - 1
    compared = steps[~stale | (stale.cumsum() == 1)]  # alpha behind the trained policy: once a job
    assert steps["mismatch_mean"].count() == len(compared) and (compared["seconds_compare"] > 0).all()
    assert (compared["mismatch_mean"] < 1e-4).all() and (compared["mismatch_max"] > 0).all()
    written = next((run.folder / "wandb").glob("offline-run-*/run-*.wandb")).read_bytes()
    assert b"reward_mean" in written and b"verl/actor/grad_norm" in written


@pytest.mark.full
def test_relift_ends_with_the_rollouts_of_grpo(results: Path, base: Path, tmp_path: Path) -> None:
    """Expert solutions in mini-batches of their own; the run stops when it has used what GRPO's three steps did."""
    other = shutil.copytree(base, tmp_path / "torch")
    like = Run(results, other, "method=grpo", "train.steps=3")
    like.expected()
    shutil.copytree(run_directory(like.torch), like.folder)
    budget = "train.budget={unit: rollouts, like: grpo, most: 2}"
    run = Run(results, other, "method=relift", "method.buffer_share=0.25", budget)
    expected = run.expected()
    assert expected[STEPS]["step"].tolist() == [1, 2, 3]  # of 8 at most
    assert (expected[GROUPS]["origin"] == DEMONSTRATED).any() and expected[STEPS]["updates"].max() > 2
    assert sorted(expected[PROBE]["step"].unique()) == [0, 2, 3]
    run.assert_ends_like(expected)


#: how the model computes on GPUs, but for flash-attn
AS_ON_GPUS = [
    f"verl.overrides.actor_rollout_ref.model.{key}={value}"
    for key, value in {
        **OmegaConf.load(BASE)["cuda"]["actor_rollout_ref"]["model"],
        "override_config": "{attn_implementation: sdpa}",
    }.items()
]


@pytest.mark.parametrize("ranks", [2, pytest.param(8, marks=pytest.mark.full)])
def test_bapo_on_several_ranks_goes_on_behind_kill_9(results: Path, base: Path, tmp_path: Path, ranks: int) -> None:
    """Buffers, the delayed policy and its phase are in the checkpoint. The processes share the model by FSDP2, so the
    delayed policy is kept and pushed by shards. Eight are a node of the paper's: two responses each in an update. The
    passes are a GPU's, in float32: packed rows, fused log-probabilities, checkpointed gradients."""
    from safetensors.torch import load_file

    bapo = ["method=bapo", "method.v=2", "method.m=2", "train.steps=7", "checkpoint.every=4"]
    bapo += [f"verl.gpus_per_node={ranks}", *AS_ON_GPUS]
    run = Run(results, shutil.copytree(base, tmp_path / "torch"), *bapo)
    expected = run.expected()
    steps = expected[STEPS]
    assert steps["rollout_version"].tolist() == [0, 1, 1, 3, 3, 5, 5]  # v = 2: step 5 samples with what is saved
    assert steps["reevaluated_prompts"].tolist()[1] > 0  # m = 2
    assert steps["high_buffer"][3] > 0 and steps["x3"][4] > 0  # replayed after the checkpoint, stored before it
    kill_behind(run.start(), run.saved(4))
    names = [f"rollout_policy_rank{rank}_of_{ranks}.safetensors" for rank in range(ranks)]
    shards = [load_file(run.saved(4) / "bapo" / name) for name in names]
    share = sum(t.numel() for t in shards[0].values())
    assert share < 1.2 / ranks * sum(t.numel() for s in shards for t in s.values())
    run.assert_ends_like(expected, "going on after step 4")


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "again", "compared"),
    [
        ("bapo", "true", [1, 3, 6]),
        ("grpo_v5", "true", [1, 3, 6]),
        ("bapo", "false", [1, 3, 5, 6]),  # step by step from there on
    ],
)
def test_steps_that_are_sampled_at_once_have_the_same_bits(
    results: Path, tmp_path: Path, name: str, again: str, compared: list[int]
) -> None:
    """v = 3: the policies of steps 1, 3 and 6 sample what is trained on until the next one. The run is killed behind
    step 4, whose checkpoint holds the rollout of step 5. One response at a time has the same bits in any company."""
    words = [f"method={name}", "method.v=3", "train.steps=7", "checkpoint.every=4"]
    words += ["method.m=2"] if name == "bapo" else []
    words += ["verl.overrides.actor_rollout_ref.rollout.max_num_seqs=1"]
    ahead = Run(shutil.copytree(results, tmp_path / "ahead"), tmp_path, *words, "verl.rollout_window=true")
    by_step = Run(results, tmp_path, *words)
    undisturbed = by_step.start()
    kill_behind(ahead.start(), ahead.saved(4))
    assert (ahead.saved(4) / "bapo" / "rollouts.safetensors").exists()
    finish(undisturbed)
    assert "going on after step 4" in finish(ahead.start(f"verl.rollout_window={again}"))
    found, expected = tables(ahead.folder), tables(by_step.folder)
    if name == "bapo":  # X2 and X3 in steps that were sampled before
        assert (expected[STEPS].loc[[1, 3], "reevaluated_prompts"] > 0).all()
        assert (expected[STEPS].loc[[1, 3, 4], "x3"] > 0).all()
    # vLLM's log-probabilities are compared where alpha is the current policy, and once a job where it is not
    for steps, expected_steps in ((found[STEPS], compared), (expected[STEPS], [1, 2, 3, 6])):
        assert steps.loc[steps["mismatch_mean"].notna(), "step"].tolist() == expected_steps
    assert_same_tables(found, expected, tolerance=0)
    own, theirs = (weights(run.folder / verify_files(run.folder)["checkpoint"]) for run in (ahead, by_step))
    assert (own == theirs).all()


@pytest.mark.full
def test_ba_ppo_goes_on_from_an_intact_checkpoint_behind_the_death_of_a_worker(
    results: Path, base: Path, tmp_path: Path
) -> None:
    """A rollout worker dies, whose prompts would stay "running" for ever. The newest checkpoint is damaged, so the run
    goes on from the one before: verl's critic, its optimiser, the buffers and the delayed policy are in it."""
    method = ["method=ba_ppo", "method.v=2", "method.m=2", "method.bad_capacity=16", "train.steps=6"]
    run = Run(results, shutil.copytree(base, tmp_path / "torch"), *method, "checkpoint.every=1")
    expected = run.expected()
    steps = expected[STEPS]
    assert steps["x3"][4] > 0 and steps["reevaluated_prompts"][1] > 0 and steps["staleness"].max() > 0
    assert steps["value_loss"].notna().all() and steps["explained_variance"].notna().all()

    import psutil

    process = run.start()
    wait_for(process, (run.saved(2) / "checksums.json").exists)
    family = psutil.Process(process.pid).children(recursive=True)
    next(p for p in family if any("AgentLoopWorker" in part for part in p.cmdline())).kill()
    said = finish(process, status=1)
    assert "the verl job failed" in said and "AgentLoopWorker" in said
    last = max(step for step in checkpoints.steps(run.root) if (run.saved(step) / "checksums.json").exists())
    damaged = next((run.saved(last) / "critic").glob("optim*.pt"))
    content = bytearray(damaged.read_bytes())
    content[len(content) // 2] ^= 1
    damaged.write_bytes(content)
    run.assert_ends_like(expected, f"going on after step {last - 1}")


def test_dapo_goes_on_behind_sigterm(results: Path, base: Path, tmp_path: Path) -> None:
    """Batches that are filled by drawing again; the second job writes into wandb, too."""
    dapo = ["method=dapo", "method.max_generation_batches=2", "train.steps=6"]
    run = Run(results, shutil.copytree(base, tmp_path / "torch"), *dapo)
    expected = run.expected()
    last = run.stopped_after(2, of=6)
    assert_measures(run, run.assert_ends_like(expected, f"going on after step {last}", "tracking.kind=wandb"))


@pytest.mark.full
def test_remix_goes_on_with_its_reference_behind_sigterm(results: Path, base: Path, tmp_path: Path) -> None:
    """Two passes over mixed batches until step 3; then the reference is pi_3. SIGTERM: a checkpoint after the running
    step, status 130."""
    remix = ["method=remix", "method.switch_step=3", "train.steps=6", "checkpoint.every=3"]
    run = Run(results, shutil.copytree(base, tmp_path / "torch"), *remix)
    expected = run.expected()
    steps = expected[STEPS]
    assert steps["updates"].tolist()[2:4] == [4, 2] and steps["x3"].tolist()[1] > 0
    last = run.stopped_after(3, of=6)
    assert (run.saved(last) / "bapo" / "reference_rank0_of_1.safetensors").is_file()
    found = run.assert_ends_like(expected, f"going on after step {last}")
    # the KL to pi_3 begins near 0, that to the base does not
    np.testing.assert_allclose(found[STEPS]["kl"], steps["kl"], rtol=0.02, atol=1e-6)


@pytest.mark.full
def test_partial_rollouts_go_on_where_they_were_cut_off(results: Path, base: Path, tmp_path: Path) -> None:
    """Responses of several policies, stitched together over steps and over jobs. A job without room for a second step
    takes one, and leaves a checkpoint between those of checkpoint.every."""
    partial = ["method=partial_rollouts", "method.share=0.2", "checkpoint.every=10"]
    run = Run(results, shutil.copytree(base, tmp_path / "torch"), *partial)
    expected = run.expected()
    assert expected[STEPS]["resumed_groups"].max() > 0 and expected[STEPS]["earlier_tokens"].max() > 0
    assert "stopped after step 1 of 4" in finish(run.start("checkpoint.job_minutes=0.01"), status=130)
    run.assert_ends_like(expected, "going on after step 1")
    assert [path.name for path in (run.folder / "checkpoints").glob("step_*")] == ["step_000004"]


DIAGRAMS = [
    *(word for word in SETTINGS if not word.startswith(("data.", "base."))),
    "train.group_size=8",  # rows of a group that are all equally long: verl cannot tell their positions' axes apart
    "task=geometry",
    "data.split_sizes={base: 1500, train: 64, probe: 8, diagrams_val: 8, diagrams_test: 8}",
    "base.iterations=200",
]


def end_at_placeholders(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one difference: verl ends a response that draws an image's placeholder, which a barely trained model does."""
    from bapo.engines.shared import responses

    draw = responses.sample

    def sample(model, *arguments, **options):
        found = draw(model, *arguments, **options)
        config = model.config
        for samples in found:
            for i, n in enumerate(samples.lengths):
                marks = np.isin(samples.tokens[i, :n], [config.image_token_id, config.video_token_id])
                if marks.any():
                    samples.lengths[i] = marks.argmax() + 1
                    samples.tokens[i, marks.argmax()] = config.get_text_config().eos_token_id
        return found

    monkeypatch.setattr(responses, "sample", sample)


@pytest.mark.full
def test_bapo_on_diagrams_repeats_the_torch_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tiny Qwen2.5-VL: images through verl's dataset, rollout, re-evaluation, replay and forward pass."""
    from bapo.engines.shared import models

    bapo = ["method=bapo", "method.v=2", "method.m=2", "train.steps=5", "checkpoint.every=5"]
    run = Run(tmp_path, tmp_path, *bapo, settings=DIAGRAMS)
    start_of([*DIAGRAMS, *bapo, f"paths.results={tmp_path}"])
    shutil.copytree(tmp_path / "smoke", tmp_path / "smoke-verl")
    end_at_placeholders(monkeypatch)
    expected = run.expected()
    steps = expected[STEPS]
    assert steps["reward_mean"].max() > 0
    assert steps["reevaluated_prompts"].sum() > 0 and steps["x3"].sum() > 0
    run.assert_ends_like(expected)
    published = run.folder / verify_files(run.folder)["checkpoint"]
    model, _ = models.load(published, run.config, models.device_of(run.config))
    assert models.load_processor(model, published, run.config) is not None  # ready for evaluation
    for name, entry in json.loads((published / "checksums.json").read_text()).items():
        assert fingerprints(published, [name])[name] == entry
