"""The checks of ``gpu-check`` in their order: they start jobs and look at their files and logs.

The jobs are tiny: Countdown at smoke scale, with a model that every attention kernel takes, and vLLM where verl trains.
Only the last check has the size of a run.
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

from bapo import engines, methods
from bapo.errors import UserError, exit_status
from bapo.experiments import budgets
from bapo.experiments.compose import compose_config
from bapo.experiments.identity import base_identity, data_identity
from bapo.experiments.places import base_directory, data_directory, run_directory
from bapo.experiments.schema import Config
from bapo.gpu import devices, environment
from bapo.store.files import STEPS as TABLE
from bapo.store.files import SUMMARY, read_json, read_table

DRIVER = "see that nvidia-smi works here (in a container: apptainer exec --nv, docker run --gpus all)"
#: the cure for a missing package, by engine and device
PACKAGES = {
    ("verl", "cuda"): "containers/install_gpu FOLDER makes the environment of GPU nodes",
    ("verl", "cpu"): environment.VLLM_CPU,
    ("torch", "cuda"): "install this project again (docs/installing.md), with torch's build for CUDA",
    ("torch", "cpu"): "install this project again (docs/installing.md)",
}
#: code that prints what torch reports of the first GPU
CUDA = "import torch; torch.cuda.init(); print(torch.__version__, torch.version.cuda, torch.cuda.get_device_name(0))"
#: code after it that fails where the GPU has no bfloat16, as V100 and T4
CAPABLE = """
capability = torch.cuda.get_device_capability()
assert capability >= (8, 0), f'the GPU has compute capability {capability}, and bfloat16 needs (8, 0): take a newer one'
"""
#: code that prints whether flash-attn works; without it, torch's attention is used
FLASH = """from importlib.util import find_spec
if find_spec('flash_attn'):
    import flash_attn
print('can be imported' if find_spec('flash_attn') else 'not there, and not needed without images or a critic')"""
#: the command that starts a job
PYTHON = (sys.executable, "-m")
#: seconds that one job may take; a start of verl took up to four minutes on a GPU
LIMIT = 1800
#: the largest mean difference allowed between the log-probabilities of both engines. In float32 they are equal; in
#: bfloat16 they differed by up to 0.024 in the steps of docs/status.md, because of rounding and kernels
MISMATCH = {"cpu": 1e-3, "cuda": 5e-2}
#: the share of the card that vLLM gets
SHARE = 0.3
#: how many problems are evaluated
PROMPTS = 10
#: steps of the run, by engine; those of the torch engine are short
STEPS = {"verl": 4, "torch": 60}
#: the step after which the run is killed
KILLED_AFTER = {"verl": 2, "torch": 12}
BENCHMARK = "cd34"
#: the run whose micro-batch is tried where the command names none
RUNS = {
    ("verl", "cuda"): ("scale=single_gpu", "task=mathematics"),
    ("torch", "cuda"): ("scale=gpu", "task=countdown"),
    ("verl", "cpu"): ("scale=smoke", "task=countdown"),
    ("torch", "cpu"): ("scale=smoke", "task=countdown"),
}


@dataclass(frozen=True)
class Check:
    """Describes what is checked.

    folder: holds logs and results
    device: "cuda" or "cpu"
    engine: "verl" or "torch"
    run: overrides of the configuration whose micro-batch is tried, over those of RUNS where they name no scale
    """

    folder: Path
    device: str
    engine: str = "verl"
    run: tuple[str, ...] = ()


def overrides(check: Check) -> list[str]:
    """Return the overrides of the tiny jobs.

    The model has heads of 64, as vLLM's kernels on CPU cores need at least 32. The updates are large, so that older
    weights in vLLM would show.
    """
    architecture = {"hidden_size": 128, "num_attention_heads": 2, "num_key_value_heads": 2, "intermediate_size": 256}
    # on CPU cores float32 is fast, and exact, so that any difference is a fault
    dtype = "float32" if check.device == "cpu" else "bfloat16"
    return [
        "scale=smoke",
        "task=countdown",
        "method=bapo",
        f"engine={check.engine}",
        f"device={check.device}",
        "tracking=none",
        f"paths.results={check.folder / 'results'}",
        f"model.dtype={dtype}",
        *(f"model.architecture.{key}={value}" for key, value in architecture.items()),
        # these let the base model solve a few problems: without any reward nothing would be trained
        "base.iterations=350",
        "data.generator.number_max=8",
        "data.generator.three_number_share=0.8",
        "data.generator.noise=0.1",
        f"data.split_sizes={{base: 4000, train: 48, probe: 8, cd34: {PROMPTS}, cd4: 4}}",
        "method.v=2",
        f"train.steps={STEPS[check.engine]}",
        "train.batch_size=8",
        "train.mini_batch_size=4",
        "train.group_size=8",
        "train.learning_rate=1e-3",
        "train.warmup_updates=0",
        "probe.prompts=0",
        "checkpoint.every=1",
        f"evaluation.benchmarks=[{BENCHMARK}]",
        "evaluation.samples=4",
        *(vllm_overrides(dtype) if check.engine == "verl" else ()),
    ]


def vllm_overrides(dtype: str) -> list[str]:
    """Return the overrides for verl alone, by which vLLM samples in training and evaluation."""
    has_size = any(gpu.memory for gpu in devices.known_gpus().values())
    return [
        "evaluation.backend=vllm",
        f"evaluation.vllm.dtype={dtype}",
        f"evaluation.vllm.gpu_memory_utilization={SHARE}",
        "verl.rollout=vllm",
        "verl.gpus_per_node=1",
        f"verl.gpu_memory_utilization={SHARE}",
        *([] if has_size else ["verl.gpu_memory=24"]),  # nvidia-smi does not list the memory of a part of a GPU
    ]


def config_of(check: Check) -> Config:
    return compose_config(overrides(check))


def run_of(check: Check) -> list[str]:
    """Return the overrides of the run whose micro-batch is tried, with the engine and device of the check."""
    named = {word.partition("=")[0] for word in check.run}
    if taken := sorted(named & {"engine", "device"}):
        raise UserError(f"{taken[0]}=...: say --engine and --device, which also choose the other checks")
    usual = ("method=bapo", *(() if "scale" in named else RUNS[check.engine, check.device]))
    words = [word for word in usual if word.partition("=")[0] not in named]
    return [*words, *check.run, f"engine={check.engine}", f"device={check.device}"]


@dataclass(frozen=True)
class CheckResult:
    """Tells what was checked, whether it is fine, its state, and the cure where it is not fine."""

    name: str
    fine: bool
    state: str
    cure: str


class Failed(Exception):
    """Raised with the result of a check whose job failed."""


def main(device: str, engine: str = "verl", run_words: Sequence[str] = (), keep: Path | None = None) -> int:
    """Run every check, print the table of results and return the exit status.

    Args:
        device: "cuda" or "cpu"
        engine: "verl" or "torch"
        run_words: overrides of the configuration whose micro-batch is tried, over those of RUNS
        keep: the folder of logs and results, in which finished problems and base models are used again; without it,
            only the logs of a failed job are left

    Raises UserError where the words name no run.
    """
    compose_config(run_of(Check(Path(), device, engine, tuple(run_words))))
    folder = Path(keep or tempfile.mkdtemp(prefix="bapo-gpu-check-")).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    keeps_folder = keep is not None
    try:
        results = results_of(Check(folder, device, engine, tuple(run_words)))
        print(table(results), end="")
        failed = bool(failures(results))
        keeps_folder |= failed and any(folder.iterdir())
    finally:
        if not keeps_folder:
            shutil.rmtree(folder, ignore_errors=True)
    if keeps_folder:
        print(f"logs and results: {folder}", file=sys.stderr)
    return int(failed)


def results_of(check: Check) -> list[CheckResult]:
    """Return all results. A job that fails ends the check, as later jobs build on it."""
    results = machine(check)
    steps = () if failures(results) else (make_world, train_and_resume, evaluate, try_micro_batch)
    try:
        for number, step in enumerate(steps, start=1):
            print(f"gpu-check {number}/{len(steps)}: {step.__doc__}", file=sys.stderr, flush=True)
            results += step(check)
    except Failed as error:
        results.append(error.args[0])
    return results


def machine(check: Check) -> list[CheckResult]:
    """Try CUDA and import the packages, each in a new process, as broken libraries may crash it."""
    names = ("vllm", "verl") if check.engine == "verl" else ("torch",)
    programs = {name: f"import {name}; print('can be imported')" for name in names}
    if check.device == "cuda":
        verl = check.engine == "verl"
        programs = {"CUDA": CUDA + CAPABLE * verl, **programs} | ({"flash_attn": FLASH} if verl else {})
    results = []
    for name, code in programs.items():
        process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, errors="replace")
        state = last_error(process.stdout + process.stderr if process.returncode else process.stdout)
        cure = PACKAGES[check.engine, check.device]
        results.append(
            CheckResult(name, not process.returncode, state, f"{DRIVER}; {cure}" if name == "CUDA" else cure)
        )
    return results


def make_world(check: Check) -> list[CheckResult]:
    """Make problems and a small base model."""
    config = config_of(check)
    made = {
        "data": (data_directory(config), data_identity(config)),
        "base": (base_directory(config), base_identity(config)),
    }
    for command, (folder, identity) in made.items():
        if not (folder / SUMMARY).exists() or read_json(folder / SUMMARY).get("identity") != identity:
            _job(check, command, f"bapo {command}")
    return []


def train_and_resume(check: Check) -> list[CheckResult]:
    """Train BAPO with v = 2, kill it and resume it."""
    config, name = config_of(check), "killed and resumed"
    home, log = run_directory(config), check.folder / "train.log"
    shutil.rmtree(home, ignore_errors=True)  # of an earlier check
    if not _job(check, "train", "training", until=f"step {KILLED_AFTER[check.engine]}/"):
        raise Failed(CheckResult(name, False, "the run was over before it could be killed", "run the command again"))
    _job(check, "train", "resumed training")
    steps = read_table(home / TABLE)
    updates = int(steps["updates"].sum())
    ages, expected = steps["staleness"].astype(int).tolist(), expected_ages(config)
    resumption = re.search(r"going on after step \d+", log.read_text(encoding="utf-8"))
    results = [
        CheckResult(
            "BAPO steps",
            ages == expected and updates > 0,
            f"{len(steps)} of {len(expected)}, {updates} updates, rollout policy {ages[:4]} steps old",
            f"there should be updates, and a rollout policy {expected} steps old; report this with {log}",
        ),
        CheckResult(name, bool(resumption), resumption[0] if resumption else "the second run began anew", f"see {log}"),
    ]
    if check.engine == "verl":
        gap, worst = float(steps["mismatch_mean"].max()), float(steps["mismatch_max"].max())
        result = CheckResult(
            "rollouts in training",
            gap <= MISMATCH[check.device],
            f"log-probabilities of both engines differ by {gap:.1e} on average, {worst:.1e} at most; "
            f"{float(steps['clip_fraction'].mean()):.2%} of ratios clipped",
            "the weights that vLLM samples with are not those that it should have; take the versions of the lock",
        )
        results.insert(1, result)
    return results


def expected_ages(config: Config) -> list[int]:
    """Return by how many steps of updates alpha lags behind pi_theta in each step (Algorithm 1, lines 3-5)."""
    method, version, ages = methods.of_run(config), 0, []
    for step in range(1, budgets.steps(config) + 1):
        version = step - 1 if method.syncs_rollout_policy(step) else version
        ages.append(step - 1 - version)
    return ages


def evaluate(check: Check) -> list[CheckResult]:
    """Evaluate ten prompts."""
    _job(check, "evaluate", "evaluation")
    result = read_json(run_directory(config_of(check)) / "eval" / SUMMARY)["benchmarks"][BENCHMARK]
    state = f"{result['problems']} prompts, accuracy {result['accuracy']:.2f}"
    return [CheckResult("evaluation", result["problems"] == PROMPTS, state, "report this")]


def try_micro_batch(check: Check) -> list[CheckResult]:
    """Try an update with the micro-batch of a run."""
    _job(check, "micro_batch", "micro-batch")
    lines = (check.folder / "micro_batch.log").read_text(encoding="utf-8").splitlines()
    return [CheckResult("micro-batch", True, [line for line in lines if " tokens, " in line][-1].strip(), "")]


def last_error(text: str) -> str:
    """Return the last line that names an error, after which Ray and vLLM may write more, or else the last line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if re.search(r"\b(\w*Error|\w*Exception|error)\b.*: |^error:", line)]
    return (errors or lines or ["no output"])[-1]


def _job(check: Check, command: str, title: str, until: str | None = None) -> bool:
    """Run a command of bapo, or this module for "micro_batch", with its output in a log of that name.

    until: kill it as soon as its output contains this text. Returns whether it was killed. Raises Failed where it fails
    or takes too long.
    """
    log, killed, of_run = check.folder / f"{command}.log", False, command == "micro_batch"
    words = ["bapo.gpucheck.command", *run_of(check)] if of_run else ["bapo", command, *overrides(check)]
    variables = {**os.environ, "PYTHONUNBUFFERED": "1", "VLLM_LOGGING_LEVEL": "WARNING"}
    with open(log, "w", encoding="utf-8") as output:
        process = subprocess.Popen(
            [*PYTHON, *words], stdout=output, stderr=subprocess.STDOUT, start_new_session=True, env=variables
        )
        end = time.monotonic() + LIMIT
        try:
            while process.poll() is None and not killed:
                if time.monotonic() > end:
                    raise Failed(CheckResult(title, False, f"not done after {LIMIT} s", f"see {log}"))
                killed = until is not None and until in log.read_text(encoding="utf-8", errors="replace")
                time.sleep(0.2)
        finally:  # also on Ctrl-C, which does not reach a new session
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if process.returncode and not killed:
        state = last_error(log.read_text(encoding="utf-8", errors="replace"))
        too_large = of_run and not state.startswith("error:")  # an error of the suite names its own cure
        cure = f"lower train.micro_batch_size, or take a larger card; see {log}" if too_large else f"see {log}"
        raise Failed(CheckResult(title, False, state[:300], cure))
    return killed


# ------------------------------------------------------------------------------------------------ the table


def failures(results: Sequence[CheckResult]) -> list[CheckResult]:
    return [result for result in results if not result.fine]


def table(results: Sequence[CheckResult]) -> str:
    """Return the results as a table, with the cures below it."""
    width = max(len(result.name) for result in results)
    lines = [f"{'fine' if result.fine else 'NOT':<5}{result.name:<{width}}  {result.state}" for result in results]
    for cure in dict.fromkeys(result.cure for result in failures(results)):  # one command may bring several packages
        names = ", ".join(result.name for result in failures(results) if result.cure == cure)
        lines += ["", *textwrap.wrap(f"{names}: {cure}", 110)]
    return "\n".join([*lines, "", f"gpu-check: {len(failures(results))} of {len(results)} are not fine"]) + "\n"


# ------------------------------------------------------------------------------------------------ the micro-batch


def micro_batch(words: Sequence[str]) -> int:
    """Make an update with the micro-batch of the run that ``words`` name, and print its costs. Raises UserError."""
    config = compose_config(words)
    with devices.reserve(int(config.device == "cuda")):  # before an engine is imported, which may start CUDA
        print(engines.update_micro_batch(config))
    return 0


if __name__ == "__main__":  # the process of try_micro_batch
    sys.exit(exit_status(lambda: micro_batch(sys.argv[1:])))
