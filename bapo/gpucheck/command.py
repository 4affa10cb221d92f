"""The checks of ``gpu-check`` in their order, each a job of its own, and what is read from what they leave."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bapo import methods
from bapo.experiments import budgets
from bapo.experiments.places import base_directory, data_directory, run_directory
from bapo.experiments.schema import Config
from bapo.gpu import allocation, devices, environment
from bapo.gpucheck import world
from bapo.gpucheck.world import FINE, WRONG, Row, judged
from bapo.store.files import STEPS, SUMMARY, read_json, read_table

CURE = (
    "see that nvidia-smi works here (in a container: apptainer exec --nv, docker run --gpus all), and make the "
    "environment of GPU nodes (docs/provenance.md, Containers)"
)
#: what torch says of the first GPU
CUDA = "import torch; torch.cuda.init(); print(torch.__version__, torch.version.cuda, torch.cuda.get_device_name(0))"
#: how a job is started
BAPO = (sys.executable, "-m", "bapo")
ENGINE = (sys.executable, "-m", "bapo.gpucheck.engine")


@dataclass(frozen=True)
class Place:
    """Where the check works: folder of logs and results, device, seconds that one job may take."""

    folder: Path
    device: str
    limit: float = world.LIMIT

    @property
    def config(self) -> Config:
        return world.config_of(self.folder, self.device)

    def command(self, name: str) -> list[str]:
        return [*BAPO, name, *world.overrides(self.folder, self.device)]


class Failed(Exception):
    """A job of the check failed; the argument is its row."""


def main(device: str, keep: Path | None = None) -> int:
    """Run every check on ``device``, print the table, return the exit status.

    keep: the folder of logs and results; what a check there has finished is not done again.
    """
    folder = Path(keep or tempfile.mkdtemp(prefix="bapo-gpu-check-")).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    found = checked(Place(folder, device))
    print(world.table(found), end="")
    failed = bool(world.wrong(found))
    if keep or failed:
        print(f"logs and results: {folder}", file=sys.stderr)
    else:
        shutil.rmtree(folder, ignore_errors=True)
    return int(failed)


def checked(place: Place) -> list[Row]:
    """Return the rows; a job that fails ends the check, as the later ones build on it."""
    found = machine(place.device)
    steps = () if world.wrong(found) else (made, engines, trained, exported, evaluated)
    try:
        for number, step in enumerate(steps, start=1):
            print(f"gpu-check {number}/{len(steps)}: {step.__doc__}", file=sys.stderr, flush=True)
            found += step(place)
    except Failed as error:
        found.append(error.args[0])
    return found


def machine(device: str) -> list[Row]:
    """Look at CUDA, packages, memory and processors; a package in another process, which broken libraries may end."""
    looks = {name: f"import {name}; print('can be imported')" for name in ("vllm", "verl")}
    if device == "cuda":
        looks = {"CUDA": CUDA, **looks, "flash_attn": "import flash_attn; print('can be imported')"}
    found = []
    for name, code in looks.items():
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, errors="replace")
        said = last_error(done.stdout + done.stderr if done.returncode else done.stdout)
        found.append(judged(name, done.returncode == 0, said, CURE if device == "cuda" else environment.VLLM_CPU))
    if device == "cuda":
        sizes = [gpu.gigabytes for gpu in devices.known().values() if gpu.memory]
        text = ", ".join(f"{size:.0f} GB" for size in sizes) or "not known; verl.gpu_memory says it to training"
        if any(size < 0.95 * world.SMALLEST for size in sizes):  # enough for the check itself
            text += f"; under {world.SMALLEST} GB no model of the paper can be trained (docs/single_gpu.md has smaller)"
        found.append(Row("memory", FINE, text))
    cpus, enough = allocation.cpus(), 4 if device == "cuda" else 1
    cure = "give the job 8 CPU cores a GPU: graders, Ray and vLLM share them"
    return [*found, judged("CPU cores", cpus >= enough, str(cpus), cure)]


def made(place: Place) -> list[Row]:
    """problems and a small base model"""
    for command, made_there in (("data", data_directory(place.config)), ("base", base_directory(place.config))):
        if not (made_there / SUMMARY).exists():
            _job(place, command, place.command(command), f"bapo {command}")
    return []


def engines(place: Place) -> list[Row]:
    """vLLM's log-probabilities against the trainer's, with altered weights, and after a sleep"""
    from bapo.gpucheck.engine import FILE

    _job(place, "engine", [*ENGINE, str(place.folder), place.device], "vLLM")
    return [Row(**row) for row in read_json(place.folder / FILE)]


def trained(place: Place) -> list[Row]:
    """BAPO with v = 2 in verl, killed after two steps and resumed"""
    command, config = place.command("train"), place.config
    home, name = run_directory(config), "killed and resumed"
    shutil.rmtree(home, ignore_errors=True)  # of an earlier check
    if not _job(place, "train", command, "training", until=f"step {world.KILLED_AFTER}/"):
        raise Failed(Row(name, WRONG, "the run was over before it could be killed", "give the command again"))
    _job(place, "resume", command, "resumed training")
    steps = read_table(home / STEPS)
    gap, worst = float(steps["mismatch_mean"].max()), float(steps["mismatch_max"].max())
    clipped, updates = float(steps["clip_fraction"].mean()), int(steps["updates"].sum())
    ages, right = steps["staleness"].astype(int).tolist(), expected_ages(config)
    log = place.folder / "resume.log"
    went_on = re.search(r"going on after step \d+", log.read_text(encoding="utf-8"))
    return [
        judged(
            "BAPO steps",
            ages == right and updates > 0,
            f"{len(steps)} of {world.STEPS}, {updates} updates, rollout policy {ages} steps old",
            f"there should be updates, and a rollout policy {right} steps old; report this with {home / 'verl.log'}",
        ),
        judged(
            "rollouts in training",
            gap <= world.MISMATCH[place.device],
            f"log-probabilities of both engines differ by {gap:.1e} on average, {worst:.1e} at most; "
            f"{clipped:.2%} of ratios clipped",
            "the weights that vLLM samples with are not those that it should have; take the versions of the lock",
        ),
        judged(name, went_on is not None, went_on[0] if went_on else "the second run began anew", f"see {log}"),
    ]


def expected_ages(config: Config) -> list[int]:
    """Return how many steps of updates alpha is behind in each step (Algorithm 1, lines 3-5)."""
    method, version, ages = methods.of_run(config), 0, []
    for step in range(1, budgets.steps(config) + 1):
        version = step - 1 if method.syncs_rollout_policy(step) else version
        ages.append(step - 1 - version)
    return ages


def exported(place: Place) -> list[Row]:
    """the model that a run leaves"""
    from safetensors import safe_open

    config = place.config
    home = run_directory(config)
    checkpoint = home / read_json(home / SUMMARY)["checkpoint"]
    types = set()
    for path in checkpoint.glob("*.safetensors"):
        with safe_open(path, framework="pt") as file:
            types |= {str(file.get_tensor(name).dtype).removeprefix("torch.") for name in file.keys()}  # noqa: SIM118
    cure = f"the export should be {config.model.dtype}; report this"
    return [judged("export", types == {config.model.dtype}, f"{checkpoint.name}: {', '.join(sorted(types))}", cure)]


def evaluated(place: Place) -> list[Row]:
    """ten prompts evaluated with vLLM"""
    _job(place, "evaluate", place.command("evaluate"), "evaluation")
    result = read_json(run_directory(place.config) / "eval" / SUMMARY)["benchmarks"][world.BENCHMARK]
    found = f"{result['problems']} prompts, accuracy {result['accuracy']:.2f}"
    return [judged("evaluation", result["problems"] == world.PROMPTS, found, "report this")]


def last_error(text: str) -> str:
    """Return the last line that names an error, or the last line: Ray and vLLM go on talking when a job has failed."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if re.search(r"\b(\w*Error|\w*Exception|error)\b.*: |^error:", line)]
    return (errors or lines or ["no output"])[-1]


def _job(place: Place, name: str, command: Sequence[str], title: str, until: str | None = None) -> bool:
    """Run a job with its output in ``NAME.log``; until: kill it, by force, as soon as a line holds this text.

    Returns whether it was killed. Raises Failed with its last lines where it fails or takes too long.
    """
    log, killed = place.folder / f"{name}.log", False
    variables = {**os.environ, "PYTHONUNBUFFERED": "1", "VLLM_LOGGING_LEVEL": "WARNING"}
    with open(log, "w", encoding="utf-8") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, start_new_session=True, env=variables
        )
        end = time.monotonic() + place.limit
        try:
            while process.poll() is None and not killed:
                if time.monotonic() > end:
                    raise Failed(Row(title, WRONG, f"not done after {place.limit:.0f} s", f"see {log}"))
                killed = until is not None and until in log.read_text(encoding="utf-8", errors="replace")
                time.sleep(0.5)
        finally:  # also on Ctrl-C, which a session of its own does not get
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if process.returncode and not killed:
        found = last_error(log.read_text(encoding="utf-8", errors="replace"))
        raise Failed(Row(title, WRONG, found[:300], f"see {log}"))
    return killed
