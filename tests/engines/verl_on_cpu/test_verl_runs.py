"""Real verl runs on the CPU with tiny models: each start of Ray takes about a minute."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from support.paths import ROOT

pytestmark = [
    pytest.mark.verl,
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("verl") is None, reason="verl is not installed (extra `verl`)"),
]

psutil = pytest.importorskip("psutil", reason="children of a run are found with psutil")
from bapo.experiments import compose as configuration  # noqa: E402
from bapo.experiments.places import base_directory, run_directory  # noqa: E402
from bapo.store.files import GROUPS, PROBE, STEPS, TABLES, TIME_COLUMNS, fingerprints, read_table, verify_files  # noqa: E402

VERL = "engine=verl"
ALL = os.environ.get("BAPO_ALL_VERL_RUNS")
by_hand = pytest.mark.skipif(not ALL, reason="BAPO_ALL_VERL_RUNS is not set: each run takes a minute or two")
LIMIT = 900  # seconds a run may take on a busy machine, where it usually takes 150
SETTINGS = [
    "scale=smoke",
    "tracking=none",
    "device=cpu",
    "data.generator.number_max=8",
    "data.generator.three_number_share=0.8",
    "data.generator.noise=0.1",
    "data.split_sizes.base=4000",
    "data.split_sizes.train=64",
    "data.split_sizes.probe=8",
    "data.split_sizes.cd34=8",
    "data.split_sizes.cd4=4",
    "base.iterations=350",
    "train.steps=4",
    "train.batch_size=16",
    "train.warmup_updates=4",
    "probe.prompts=4",
    "probe.points=3",
    "checkpoint.every=2",
]


def composed(results: Path, *overrides: str):
    return configuration.compose_config([*SETTINGS, f"paths.results={results}", *overrides])


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A results folder with data and a base model that solves a few problems."""
    from bapo.engines.torch.base import train_base
    from bapo.tasks.job import make_data

    results = tmp_path_factory.mktemp("results")
    make_data(composed(results))
    train_base(composed(results))
    return results


@pytest.fixture
def results(base: Path, tmp_path: Path) -> Path:
    """The base's world for both engines, whose results lie in folders of their own."""
    shutil.copytree(base, tmp_path / "results")
    shutil.copytree(base / "smoke", tmp_path / "results" / "smoke-verl")
    return tmp_path / "results"


STARTED: list[subprocess.Popen] = []


@pytest.fixture(autouse=True)
def no_stray_jobs():
    """A test that fails ends its job."""
    yield
    while STARTED:
        process = STARTED.pop()
        if process.poll() is None:
            process.kill()
            process.wait()


def run_command(results: Path, *overrides: str, settings: list[str] = SETTINGS) -> subprocess.Popen:
    """The run in a process of its own, as a user starts it."""
    root = str(ROOT)
    command = [sys.executable, "-m", "bapo", "train", *settings, VERL, f"paths.results={results}", *overrides]
    environment = {**os.environ, "PYTHONPATH": root}
    STARTED.append(subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True))
    return STARTED[-1]


def finish(process: subprocess.Popen, limit: float = LIMIT) -> str:
    try:
        _, error = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=900)
        raise
    return error


def assert_gone(launcher: subprocess.Popen, seconds: float = 30.0) -> None:
    """Ray's processes and files end within a moment of the job; other jobs on this machine are none of our business."""
    deadline = time.monotonic() + seconds
    while left := ray_processes(launcher.pid):
        assert time.monotonic() < deadline, [line[:200] for line in left]
        time.sleep(0.5)


def ray_processes(launcher: int) -> list[str]:
    """Command lines of what a job started: Ray's servers name its folder, workers are children of such a server."""
    mark = f"bv-{launcher}-"
    lines = {}
    for process in psutil.process_iter(["pid", "ppid", "cmdline"]):
        lines[process.info["pid"]] = (process.info["ppid"], " ".join(process.info["cmdline"] or []).strip())
    orphan = (0, "")
    return [
        line
        for parent, line in lines.values()
        if mark in line or (line.startswith("ray::") and mark in lines.get(parent, orphan)[1])
    ]


def wait_for(process: subprocess.Popen, ready: Callable[[], bool], limit: float = LIMIT) -> None:
    deadline = time.monotonic() + limit
    while not ready():
        assert process.poll() is None, process.communicate()[1][-3000:]
        assert time.monotonic() < deadline
        time.sleep(0.02)


def kill_behind(process: subprocess.Popen, checkpoint: Path) -> None:
    """kill -9 as soon as a checkpoint is complete; the job notices that its parent is gone."""
    wait_for(process, (checkpoint / "checksums.json").exists)  # written last
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    assert_gone(process)


def tables(results: Path, *overrides: str) -> dict[str, pd.DataFrame]:
    folder = run_directory(composed(results, *overrides))
    return {name: pd.read_parquet(folder / name) for name in TABLES}


def on_torch(results: Path, tmp_path: Path, *overrides: str) -> tuple[Path, dict[str, pd.DataFrame]]:
    """(results folder, tables) of the torch engine's run."""
    from bapo.engines.torch.trainer import train

    other = tmp_path / "torch"
    if not other.exists():
        shutil.copytree(results, other)
    train(composed(other, *overrides))
    return other, tables(other, *overrides)


def on_verl(results: Path, *overrides: str, says: str = "") -> dict[str, pd.DataFrame]:
    """Tables of a run that ends well, leaves nothing behind and says what it should."""
    process = run_command(results, *overrides)
    error = finish(process)
    assert process.returncode == 0, error[-3000:]
    assert says in error
    assert_gone(process)
    assert not list(Path(tempfile.gettempdir()).glob(f"bv-{process.pid}-*"))
    return tables(results, VERL, *overrides)


def without_times(steps: pd.DataFrame) -> pd.DataFrame:
    """What two runs have in common; the torch engine has no second one to compare log-probabilities with."""
    return steps[[c for c in steps.columns if not c.startswith((TIME_COLUMNS, "mismatch"))]]


def assert_same_run(found: dict[str, pd.DataFrame], expected: dict[str, pd.DataFrame], tolerance: float = 2e-3) -> None:
    pd.testing.assert_frame_equal(
        without_times(found[STEPS]), without_times(expected[STEPS]), rtol=tolerance, atol=tolerance
    )
    for name in (GROUPS, PROBE):
        order = ["step", "prompt_id", "origin"] if name == GROUPS else ["step", "set", "prompt_id"]
        pd.testing.assert_frame_equal(
            *(t[name].sort_values(order, kind="stable").reset_index(drop=True) for t in (found, expected))
        )


def weights(folder: Path) -> np.ndarray:
    from safetensors.torch import load_file

    tensors = load_file(folder / "model.safetensors")
    return np.concatenate(
        [tensors[name].float().numpy().ravel() for name in sorted(tensors) if name != "lm_head.weight"]
    )


def assert_same_weights(results: Path, other: Path, *overrides: str) -> None:
    """Adam turns the rounding of gradients near zero (a token that never occurs) into whole steps, so the distance
    between the engines is compared with the distance that training went."""

    def last(folder: Path) -> np.ndarray:
        return weights(folder / verify_files(folder)["checkpoint"])

    start = weights(base_directory(composed(results)) / "checkpoint")
    own = last(run_directory(composed(results, VERL, *overrides)))
    expected = last(run_directory(composed(other, *overrides)))
    assert np.linalg.norm(own - expected) < 0.05 * np.linalg.norm(expected - start)


METHODS = {
    "dapo": ["method.max_generation_batches=2"],
    "grpo_v5": ["method.v=2"],  # reads the policy of the step's start, which verl computes
}
#: what these do happens in runs of other methods too
BY_HAND = {
    "grpo": [],
    "repo": ["method.capacity=8", "method.min_cached=8", "train.batch_size=32"],  # replays from step 3 on
    "areal": ["method.staleness=2"],  # draws three batches at first, and trains on old ones
}


def cases(options: dict[str, list[str]], *marks: pytest.MarkDecorator) -> list:
    """Overrides of each method, as parameters of a test."""
    return [pytest.param([f"method={name}", *more], id=name, marks=marks) for name, more in options.items()]


@pytest.mark.parametrize("method", cases(METHODS) + cases(BY_HAND, by_hand))
def test_verl_repeats_the_torch_engine(results: Path, tmp_path: Path, method: list[str]) -> None:
    """Same prompts, same random numbers, same loss: the two engines' runs agree to rounding."""
    other, expected = on_torch(results, tmp_path, *method)
    found = on_verl(results, *method, "tracking.kind=wandb", says="step 4/4  reward")
    assert_same_run(found, expected)
    assert_same_weights(results, other, *method)
    assert (found[STEPS]["seconds_reward"] > 0).all()
    # alpha, where it is another policy than the one that is trained
    assert (found[STEPS]["mismatch_mean"] < 1e-4).all() and (found[STEPS]["mismatch_max"] > 0).all()
    folder = run_directory(composed(results, VERL, *method))
    own, theirs = (verify_files(run)["totals"] for run in (folder, run_directory(composed(other, *method))))
    for total in ("rollouts", "trained_tokens"):
        assert own[total] == theirs[total] > 0
    written = next((folder / "wandb").glob("offline-run-*/run-*.wandb")).read_bytes()
    assert b"reward_mean" in written and b"verl/actor/grad_norm" in written


TWO_RANKS = "verl.gpus_per_node=2"


def test_a_killed_bapo_run_on_two_ranks_goes_on_as_if_nothing_had_happened(results: Path, tmp_path: Path) -> None:
    """4 steps, kill -9, and 2 more equal 6 in one go, here of the torch engine: buffers, delayed policy and its phase
    are in the checkpoint. Two processes share the model by FSDP2, so the delayed policy is kept and pushed by shards.
    """
    from safetensors.torch import load_file

    bapo = ["method=bapo", "method.v=2", "method.m=2", "train.steps=6", "checkpoint.every=4"]
    other, expected = on_torch(results, tmp_path, *bapo)
    steps = expected[STEPS]
    assert steps["rollout_version"].tolist() == [0, 1, 1, 3, 3, 5]  # v = 2
    assert steps["reevaluated_prompts"].tolist()[1] > 0  # m = 2
    assert steps["high_buffer"][3] > 0 and steps["x3"][4] > 0  # replayed after the checkpoint, stored before it

    saved = run_directory(composed(results, VERL, *bapo)) / "checkpoints" / "verl" / "global_step_4"
    killed = run_command(results, *bapo, TWO_RANKS)
    kill_behind(killed, saved)
    shards = [load_file(saved / "bapo" / f"rollout_policy_rank{rank}_of_2.safetensors") for rank in (0, 1)]
    half = sum(t.numel() for t in shards[0].values())
    assert half < 0.6 * sum(t.numel() for s in shards for t in s.values())

    assert_same_run(on_verl(results, *bapo, TWO_RANKS, says="going on after step 4"), expected)
    assert_same_weights(results, other, *bapo)
    assert not list(Path(tempfile.gettempdir()).glob(f"bv-{killed.pid}-*"))  # the next job clears up after it


def test_a_run_longer_than_its_job_stops_in_time_and_goes_on(results: Path) -> None:
    """A job without room for a second step takes one, and leaves a checkpoint between those of checkpoint.every."""
    short = ["method=grpo", "train.steps=2", "checkpoint.every=10", "checkpoint.job_minutes=0.01"]
    process = run_command(results, *short)
    error = finish(process)
    assert process.returncode == 130, error[-3000:]
    assert "stopped after step 1 of 2" in error
    found = on_verl(results, *short, says="going on after step 1")
    assert found[STEPS]["step"].tolist() == [1, 2]
    folder = run_directory(composed(results, VERL, *short))
    assert [path.name for path in (folder / "checkpoints").glob("step_*")] == ["step_000002"]


class Reader:
    """What a run says, read while it runs."""

    def __init__(self, process: subprocess.Popen) -> None:
        self.process, self.lines = process, []
        self.thread = threading.Thread(target=self._read, daemon=True)
        self.thread.start()

    def _read(self) -> None:
        self.lines += iter(self.process.stderr.readline, "")

    def __str__(self) -> str:
        return "".join(self.lines)

    def wait_for(self, text: str) -> None:
        deadline = time.monotonic() + LIMIT
        while text not in str(self):
            assert self.process.poll() is None and time.monotonic() < deadline, str(self)[-3000:]
            time.sleep(0.1)


def test_a_stopped_run_goes_on_from_an_intact_checkpoint_and_the_death_of_a_worker_ends_it(results: Path) -> None:
    """SIGTERM: a checkpoint after the running step, status 130. Then the newest checkpoint is damaged, so the run goes
    on from the one before; and a rollout worker dies, whose prompts would stay "running" for ever."""
    long = ["method=grpo", "train.steps=2000", "probe.prompts=0", "checkpoint.every=1"]
    process = run_command(results, *long)
    said = Reader(process)
    said.wait_for("step 2/")
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=LIMIT) == 130
    said.thread.join(timeout=10)
    assert_gone(process)
    folder = run_directory(composed(results, VERL, *long))
    last = int((folder / "checkpoints" / "verl" / "latest_checkpointed_iteration.txt").read_text())
    assert f"stopped after step {last} of 2000" in str(said) and f"step {last + 1}/2000" not in str(said)
    assert read_table(folder / STEPS)["step"].tolist() == list(range(1, last + 1))
    assert not (folder / ".stop").exists()
    damaged = next((folder / "checkpoints" / "verl" / f"global_step_{last}" / "actor").glob("optim*.pt"))
    content = bytearray(damaged.read_bytes())
    content[len(content) // 2] ^= 1
    damaged.write_bytes(content)

    process = run_command(results, *long)
    said = Reader(process)
    said.wait_for(f"step {last}/2000")
    assert str(damaged) in str(said) and f"going on after step {last - 1}" in str(said)
    family = psutil.Process(process.pid).children(recursive=True)
    victims = [p for p in family if any("AgentLoopWorker" in part for part in p.cmdline())]
    victims[0].kill()
    assert process.wait(timeout=LIMIT) == 1
    said.thread.join(timeout=10)
    assert "the verl job failed" in str(said) and "AgentLoopWorker" in str(said)
    assert_gone(process)


# ------------------------------------------------------------------------------------------------ images

DIAGRAMS = [
    "task=geometry",
    "data.split_sizes={base: 1500, train: 64, probe: 8, diagrams_val: 8, diagrams_test: 8}",
    "base.iterations=200",
]


def end_at_placeholders(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one difference: verl ends a response that draws an image's placeholder, which a barely trained model does."""
    from bapo.engines.shared import prompts

    draw = prompts.sample

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

    monkeypatch.setattr(prompts, "sample", sample)


def test_bapo_on_diagrams_repeats_the_torch_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tiny Qwen2.5-VL: images through verl's dataset, rollout, re-evaluation, replay and forward pass."""
    from bapo.engines.torch.base import train_base
    from bapo.engines.torch.trainer import train
    from bapo.tasks.job import make_data

    shared = [w for w in SETTINGS if not w.startswith(("data.", "base."))]
    bapo = [*DIAGRAMS, "method=bapo", "method.v=2", "method.m=2", "train.steps=5", "checkpoint.every=5"]

    def composed(*more: str):
        return configuration.compose_config([*shared, *bapo, f"paths.results={tmp_path}", *more])

    make_data(composed())
    train_base(composed())
    end_at_placeholders(monkeypatch)
    train(composed())
    expected = {name: pd.read_parquet(run_directory(composed()) / name) for name in TABLES}
    steps = expected[STEPS]
    assert steps["reward_mean"].max() > 0
    assert steps["reevaluated_prompts"].sum() > 0 and steps["x3"].sum() > 0

    shutil.copytree(tmp_path / "smoke", tmp_path / "smoke-verl")
    folder = run_directory(composed(VERL))
    shutil.rmtree(folder)
    process = run_command(tmp_path, *bapo, settings=shared)
    error = finish(process)
    assert process.returncode == 0, error[-3000:]
    assert_same_run({name: pd.read_parquet(folder / name) for name in TABLES}, expected)
    assert_gone(process)
    published = folder / verify_files(folder)["checkpoint"]
    from bapo.engines.shared import models

    model, _ = models.load(published, composed(), models.device_of(composed()))
    assert models.load_processor(model, published, composed()) is not None  # ready for evaluation
    for name, entry in json.loads((published / "checksums.json").read_text()).items():
        assert fingerprints(published, [name])[name] == entry
