"""Real verl runs on the CPU with a tiny Qwen2 and Countdown: each start of Ray takes about a minute."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

pytestmark = [
    pytest.mark.verl,
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("verl") is None, reason="verl is not installed (extra `verl`)"),
]

psutil = pytest.importorskip("psutil")
from bapo import config as configuration  # noqa: E402
from bapo import runs  # noqa: E402

VERL = "engine=verl"
LIMIT = 400  # seconds a run may take on a busy machine
SETTINGS = [
    "scale=smoke", "tracking=none", "device=cpu",
    "data.generator.number_max=8", "data.generator.three_number_share=0.8", "data.generator.noise=0.1",
    "data.split_sizes.base=4000", "data.split_sizes.train=64", "data.split_sizes.probe=8",
    "data.split_sizes.cd34=8", "data.split_sizes.cd4=4", "base.iterations=350",
    "train.steps=4", "train.batch_size=16", "train.warmup_updates=4",
    "probe.prompts=4", "probe.points=3", "checkpoint.every=2",
]  # fmt: skip


def composed(results: Path, *overrides: str):
    return configuration.compose_config([*SETTINGS, f"paths.results={results}", *overrides])


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A results folder with data and a base model that solves a few problems."""
    from bapo.data import make_data
    from bapo.engines.torch.base import train_base

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


def run_command(results: Path, *overrides: str) -> subprocess.Popen:
    """The run in a process of its own, as a user starts it."""
    code = (
        "import sys; from bapo.config import compose_config; from bapo.engines import verl; "
        "verl.train(compose_config(sys.argv[1:]))"
    )
    root = str(Path(configuration.__file__).resolve().parents[1])
    command = [sys.executable, "-c", code, *SETTINGS, VERL, f"paths.results={results}", *overrides]
    environment = {**os.environ, "PYTHONPATH": root}
    STARTED.append(subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True))
    return STARTED[-1]


def finish(process: subprocess.Popen) -> str:
    try:
        _, error = process.communicate(timeout=LIMIT)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
        raise
    return error


def assert_gone(before: set[int], seconds: float = 30.0) -> None:
    """Ray's processes end within a moment of the job."""
    deadline = time.monotonic() + seconds
    while not ray_processes() <= before:
        assert time.monotonic() < deadline, [psutil.Process(p).cmdline() for p in ray_processes() - before]
        time.sleep(0.5)


def ray_processes() -> set[int]:
    found = set()
    for process in psutil.process_iter(["pid", "cmdline"]):
        line = " ".join(process.info["cmdline"] or [])
        if "ray::" in line or "raylet" in line or "gcs_server" in line:
            found.add(process.info["pid"])
    return found


def temporary_folders() -> set[str]:
    import tempfile

    return {p.name for p in Path(tempfile.gettempdir()).glob("bv-*")}


def tables(results: Path, *overrides: str) -> dict[str, pd.DataFrame]:
    folder = configuration.run_directory(composed(results, *overrides))
    return {name: pd.read_parquet(folder / name) for name in runs.TABLES}


def without_times(steps: pd.DataFrame) -> pd.DataFrame:
    return steps[[c for c in steps.columns if not c.startswith(runs.TIME_COLUMNS)]]


def assert_same_run(found: dict[str, pd.DataFrame], expected: dict[str, pd.DataFrame], tolerance: float) -> None:
    pd.testing.assert_frame_equal(
        without_times(found[runs.STEPS]), without_times(expected[runs.STEPS]), rtol=tolerance, atol=tolerance
    )
    for name in (runs.GROUPS, runs.PROBE):
        order = ["step", "prompt_id", "origin"] if name == runs.GROUPS else ["step", "set", "prompt_id"]
        pd.testing.assert_frame_equal(*(
            t[name].sort_values(order, kind="stable").reset_index(drop=True) for t in (found, expected)
        ))  # fmt: skip


METHODS = {
    "grpo": [],
    "dapo": ["method.max_generation_batches=2"],
    "grpo_v5": ["method.v=2"],  # reads the policy of the step's start, which verl computes
    "repo": ["method.capacity=8", "method.min_cached=8", "train.batch_size=32"],  # replays from step 3 on
}


@pytest.mark.parametrize("method", [[f"method={name}", *more] for name, more in METHODS.items()], ids=METHODS)
def test_verl_repeats_the_torch_engine(results: Path, tmp_path: Path, method: list[str]) -> None:
    """Same prompts, same random numbers, same loss: the two engines' runs agree to rounding."""
    from bapo.engines.torch.trainer import train

    other = tmp_path / "torch"
    shutil.copytree(results, other)
    summary = train(composed(other, *method))
    before, folders = ray_processes(), temporary_folders()
    process = run_command(results, *method)
    error = finish(process)
    assert process.returncode == 0, error[-3000:]
    assert "step 4/4  reward" in error
    assert_same_run(tables(results, VERL, *method), tables(other, *method), tolerance=2e-3)
    folder = configuration.run_directory(composed(results, VERL, *method))
    found = runs.verify_files(folder)
    assert found["totals"]["rollouts"] == summary["totals"]["rollouts"] > 0
    assert found["totals"]["trained_tokens"] == summary["totals"]["trained_tokens"] > 0
    assert found["checkpoint"] == "checkpoints/step_000004"
    assert_gone(before)
    assert temporary_folders() <= folders
    # The weights too. Adam turns the rounding of gradients near zero (a token that never occurs) into whole steps, so
    # the distance between the engines is compared with the distance that training went.
    start = weights(configuration.base_directory(composed(results)) / "checkpoint")
    own, expected = (
        weights(folder / found["checkpoint"]),
        weights(configuration.run_directory(composed(other, *method)) / summary["checkpoint"]),
    )
    assert np.linalg.norm(own - expected) < 0.05 * np.linalg.norm(expected - start)


def weights(folder: Path) -> np.ndarray:
    from safetensors.torch import load_file

    tensors = load_file(folder / "model.safetensors")
    return np.concatenate(
        [tensors[name].float().numpy().ravel() for name in sorted(tensors) if name != "lm_head.weight"]
    )


def test_a_killed_bapo_run_goes_on_as_if_nothing_had_happened(results: Path, tmp_path: Path) -> None:
    """4 steps, kill -9, and 2 more equal 6 in one go, here of the torch engine: buffers, delayed policy and its phase
    are in the checkpoint."""
    from bapo.engines.torch.trainer import train

    bapo = ["method=bapo", "method.v=2", "method.m=2", "train.steps=6", "checkpoint.every=4"]
    other = tmp_path / "torch"
    shutil.copytree(results, other)
    train(composed(other, *bapo))
    expected = tables(other, *bapo)
    steps = expected[runs.STEPS]
    assert steps["rollout_version"].tolist() == [0, 1, 1, 3, 3, 5]  # v = 2
    assert steps["reevaluated_prompts"].tolist()[1] > 0  # m = 2
    assert steps["high_buffer"][3] > 0 and steps["x3"][4] > 0  # replayed after the checkpoint, stored before it

    before, folders = ray_processes(), temporary_folders()
    process = run_command(results, *bapo)
    checkpoints = configuration.run_directory(composed(results, VERL, *bapo)) / "checkpoints" / "verl"
    marker = checkpoints / "latest_checkpointed_iteration.txt"
    deadline = time.monotonic() + LIMIT
    while not (marker.exists() and marker.read_text().strip() == "4"):
        assert process.poll() is None, process.communicate()[1][-3000:]
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    assert_gone(before)  # the job notices that its parent is gone

    process = run_command(results, *bapo)
    error = finish(process)
    assert process.returncode == 0, error[-3000:]
    assert "going on after step 4" in error
    assert_same_run(tables(results, VERL, *bapo), expected, tolerance=2e-3)
    assert not temporary_folders() - folders  # the killed job's as well


def test_the_death_of_a_rollout_worker_ends_the_job(results: Path) -> None:
    """Its prompts would stay "running" for ever; the trainer looks at its workers while it waits."""
    before = ray_processes()
    process = run_command(results, "method=grpo", "train.steps=2000", "probe.prompts=0", "checkpoint.every=2000")
    lines: list[str] = []
    started = threading.Event()

    def read() -> None:
        for line in process.stderr:
            lines.append(line)
            if "step 1/" in line:
                started.set()

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    deadline = time.monotonic() + LIMIT
    while not started.wait(0.5):
        assert process.poll() is None and time.monotonic() < deadline, "".join(lines)[-3000:]
    family = psutil.Process(process.pid).children(recursive=True)
    victims = [p for p in family if any("AgentLoopWorker" in part for part in p.cmdline())]
    assert victims
    victims[0].kill()
    begun = time.monotonic()
    assert process.wait(timeout=120) == 1
    assert time.monotonic() - begun < 120
    reader.join(timeout=10)
    text = "".join(lines)
    assert "JobFailed" in text
    assert "AgentLoopWorker" in text and "died" in text
    assert_gone(before)
