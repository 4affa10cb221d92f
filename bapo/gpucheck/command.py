"""The checks of ``gpu-check`` in their order: jobs in processes, and what their files and logs must hold.

Its world is tiny: Countdown at smoke scale, a model that every attention kernel takes, real vLLM.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bapo import methods
from bapo.experiments import budgets
from bapo.experiments.compose import compose_config
from bapo.experiments.places import base_directory, data_directory, run_directory
from bapo.experiments.schema import Config
from bapo.gpu import environment
from bapo.store.files import STEPS as TABLE
from bapo.store.files import SUMMARY, read_json, read_table

CURE = (
    "see that nvidia-smi works here (in a container: apptainer exec --nv, docker run --gpus all), and make the "
    "environment of GPU nodes (docs/provenance.md, Containers)"
)
#: what torch says of the first GPU
CUDA = "import torch; torch.cuda.init(); print(torch.__version__, torch.version.cuda, torch.cuda.get_device_name(0))"
#: where it is missing, attention is torch's own
FLASH = """from importlib.util import find_spec
if find_spec('flash_attn'):
    import flash_attn
print('can be imported' if find_spec('flash_attn') else 'not there, and not needed without images or a critic')"""
#: how a job is started
BAPO = (sys.executable, "-m", "bapo")
#: seconds that one job may take; a minute is usual on a GPU
LIMIT = 1800
#: most that both engines' log-probabilities may differ by on average: the same numbers in float32; rounding and kernels
#: in bfloat16
MISMATCH = {"cpu": 1e-3, "cuda": 2e-2}
SHARE = 0.3  # of the card, for vLLM
PROMPTS = 10  # evaluated
STEPS = 4
#: after this many steps the run is killed
KILLED_AFTER = 2
BENCHMARK = "cd34"


def overrides(folder: Path, device: str) -> list[str]:
    """Return the Hydra overrides of every job of the check.

    Heads of 64: vLLM's kernels on CPU cores begin at 32. The updates are so large that a vLLM with older weights shows.
    """
    architecture = {"hidden_size": 128, "num_attention_heads": 2, "num_key_value_heads": 2, "intermediate_size": 256}
    return [
        "scale=smoke",
        "task=countdown",
        "method=bapo",
        "engine=verl",
        f"device={device}",
        "tracking=none",
        f"paths.results={folder / 'results'}",
        f"model.dtype={dtype(device)}",
        *(f"model.architecture.{key}={value}" for key, value in architecture.items()),
        # enough to solve a few problems: without a single reward nothing would be trained
        "base.iterations=350",
        "data.generator.number_max=8",
        "data.generator.three_number_share=0.8",
        "data.generator.noise=0.1",
        f"data.split_sizes={{base: 4000, train: 48, probe: 8, cd34: {PROMPTS}, cd4: 4}}",
        "method.v=2",
        f"train.steps={STEPS}",
        "train.batch_size=8",
        "train.mini_batch_size=4",
        "train.group_size=8",
        "train.learning_rate=1e-3",
        "train.warmup_updates=0",
        "probe.prompts=0",
        "checkpoint.every=1",
        "evaluation.backend=vllm",
        f"evaluation.benchmarks=[{BENCHMARK}]",
        "evaluation.samples=4",
        f"evaluation.vllm.dtype={dtype(device)}",
        f"evaluation.vllm.gpu_memory_utilization={SHARE}",
        "verl.rollout=vllm",
        "verl.gpus_per_node=1",
        f"verl.gpu_memory_utilization={SHARE}",
        "verl.gpu_memory=24",  # so that a part of a card, whose size nvidia-smi does not say, can be checked
    ]


def dtype(device: str) -> str:
    """Return what the model is kept and sampled in: on CPU cores exact and fast, so that a difference is a fault."""
    return "float32" if device == "cpu" else "bfloat16"


def config_of(folder: Path, device: str) -> Config:
    return compose_config(overrides(folder, device))


@dataclass(frozen=True)
class Row:
    """What was looked at, whether it is fine, what was found, and the cure where it is not."""

    name: str
    fine: bool
    found: str
    cure: str


class Failed(Exception):
    """A job of the check failed; the argument is its row."""


def main(device: str, keep: Path | None = None) -> int:
    """Run every check on ``device``, print the table, return the exit status.

    keep: the folder of logs and results; what a check there has finished is not done again.
    """
    folder = Path(keep or tempfile.mkdtemp(prefix="bapo-gpu-check-")).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    found = checked(folder, device)
    print(table(found), end="")
    failed = bool(wrong(found))
    if keep or failed:
        print(f"logs and results: {folder}", file=sys.stderr)
    else:
        shutil.rmtree(folder, ignore_errors=True)
    return int(failed)


def checked(folder: Path, device: str) -> list[Row]:
    """Return the rows; a job that fails ends the check, as the later ones build on it."""
    found = machine(device)
    steps = () if wrong(found) else (made, trained, evaluated)
    try:
        for number, step in enumerate(steps, start=1):
            print(f"gpu-check {number}/{len(steps)}: {step.__doc__}", file=sys.stderr, flush=True)
            found += step(folder, device)
    except Failed as error:
        found.append(error.args[0])
    return found


def machine(device: str) -> list[Row]:
    """Look at CUDA and the packages, each in another process, which broken libraries may end."""
    looks = {name: f"import {name}; print('can be imported')" for name in ("vllm", "verl")}
    if device == "cuda":
        looks = {"CUDA": CUDA, **looks, "flash_attn": FLASH}
    found = []
    for name, code in looks.items():
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, errors="replace")
        said = last_error(done.stdout + done.stderr if done.returncode else done.stdout)
        found.append(Row(name, done.returncode == 0, said, CURE if device == "cuda" else environment.VLLM_CPU))
    return found


def made(folder: Path, device: str) -> list[Row]:
    """problems and a small base model"""
    config = config_of(folder, device)
    for command, made_there in (("data", data_directory(config)), ("base", base_directory(config))):
        if not (made_there / SUMMARY).exists():
            _job(folder, device, command, f"bapo {command}")
    return []


def trained(folder: Path, device: str) -> list[Row]:
    """BAPO with v = 2 in verl, killed after two steps and resumed"""
    config, name = config_of(folder, device), "killed and resumed"
    home, log = run_directory(config), folder / "train.log"
    shutil.rmtree(home, ignore_errors=True)  # of an earlier check
    if not _job(folder, device, "train", "training", until=f"step {KILLED_AFTER}/"):
        raise Failed(Row(name, False, "the run was over before it could be killed", "give the command again"))
    _job(folder, device, "train", "resumed training")
    steps = read_table(home / TABLE)
    gap, worst = float(steps["mismatch_mean"].max()), float(steps["mismatch_max"].max())
    clipped, updates = float(steps["clip_fraction"].mean()), int(steps["updates"].sum())
    ages, right = steps["staleness"].astype(int).tolist(), expected_ages(config)
    went_on = re.search(r"going on after step \d+", log.read_text(encoding="utf-8"))
    return [
        Row(
            "BAPO steps",
            ages == right and updates > 0,
            f"{len(steps)} of {STEPS}, {updates} updates, rollout policy {ages} steps old",
            f"there should be updates, and a rollout policy {right} steps old; report this with {home / 'verl.log'}",
        ),
        Row(
            "rollouts in training",
            gap <= MISMATCH[device],
            f"log-probabilities of both engines differ by {gap:.1e} on average, {worst:.1e} at most; "
            f"{clipped:.2%} of ratios clipped",
            "the weights that vLLM samples with are not those that it should have; take the versions of the lock",
        ),
        Row(name, went_on is not None, went_on[0] if went_on else "the second run began anew", f"see {log}"),
    ]


def expected_ages(config: Config) -> list[int]:
    """Return how many steps of updates alpha is behind in each step (Algorithm 1, lines 3-5)."""
    method, version, ages = methods.of_run(config), 0, []
    for step in range(1, budgets.steps(config) + 1):
        version = step - 1 if method.syncs_rollout_policy(step) else version
        ages.append(step - 1 - version)
    return ages


def evaluated(folder: Path, device: str) -> list[Row]:
    """ten prompts evaluated with vLLM"""
    _job(folder, device, "evaluate", "evaluation")
    result = read_json(run_directory(config_of(folder, device)) / "eval" / SUMMARY)["benchmarks"][BENCHMARK]
    found = f"{result['problems']} prompts, accuracy {result['accuracy']:.2f}"
    return [Row("evaluation", result["problems"] == PROMPTS, found, "report this")]


def last_error(text: str) -> str:
    """Return the last line that names an error, or the last line: Ray and vLLM go on talking when a job has failed."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if re.search(r"\b(\w*Error|\w*Exception|error)\b.*: |^error:", line)]
    return (errors or lines or ["no output"])[-1]


def _job(folder: Path, device: str, command: str, title: str, until: str | None = None) -> bool:
    """Run a job with its output in ``COMMAND.log``; until: kill it, by force, as soon as a line holds this text.

    Returns whether it was killed. Raises Failed with its last lines where it fails or takes too long.
    """
    log, killed = folder / f"{command}.log", False
    variables = {**os.environ, "PYTHONUNBUFFERED": "1", "VLLM_LOGGING_LEVEL": "WARNING"}
    with open(log, "w", encoding="utf-8") as output:
        words = [*BAPO, command, *overrides(folder, device)]
        process = subprocess.Popen(
            words, stdout=output, stderr=subprocess.STDOUT, start_new_session=True, env=variables
        )
        end = time.monotonic() + LIMIT
        try:
            while process.poll() is None and not killed:
                if time.monotonic() > end:
                    raise Failed(Row(title, False, f"not done after {LIMIT} s", f"see {log}"))
                killed = until is not None and until in log.read_text(encoding="utf-8", errors="replace")
                time.sleep(0.5)
        finally:  # also on Ctrl-C, which a session of its own does not get
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if process.returncode and not killed:
        found = last_error(log.read_text(encoding="utf-8", errors="replace"))
        raise Failed(Row(title, False, found[:300], f"see {log}"))
    return killed


# ------------------------------------------------------------------------------------------------ the table


def wrong(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if not row.fine]


def table(rows: Sequence[Row]) -> str:
    """Write the rows for people, the cures behind them."""
    width = max(len(row.name) for row in rows)
    lines = [f"{'fine' if row.fine else 'NOT':<5}{row.name:<{width}}  {row.found}" for row in rows]
    for row in wrong(rows):
        lines += ["", *textwrap.wrap(f"{row.name}: {row.cure}", 110)]
    return "\n".join([*lines, "", f"gpu-check: {len(wrong(rows))} of {len(rows)} are not fine"]) + "\n"
