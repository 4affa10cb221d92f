"""One run through verl, as a process of its own that leaves nothing behind."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from importlib import metadata
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from bapo.engines.shared import records, vllm
from bapo.engines.verl import checkpoints, devices, settings
from bapo.errors import Interrupted, JobFailed, UserError
from bapo.experiments import budgets
from bapo.experiments.identity import base_identity, data_identity
from bapo.experiments.places import data_directory, run_directory
from bapo.gpu import allocation, environment
from bapo.gpu import devices as gpus
from bapo.store.files import CONFIG, SUMMARY, read_json, write_json, write_text
from bapo.store.lock import locked, set_aside
from bapo.store.provenance import end_manifest, start_manifest
from bapo.tasks.job import base_folder, data_folder

VERSION = "0.9.1"  # v1/ of verl changes between releases
LOG = "verl.log"
#: in the run's folder: asks the trainer to stop after the running step (any node sees it there)
STOP = ".stop"
#: begins the lines that reach the terminal
PROGRESS = "[bapo] "
#: bytes that the kernel allows a socket's path, and Ray's longest behind the temporary folder
LONGEST = 107
SOCKET = "/bv-4194304-12345678/ray/session_2026-01-01_00-00-00_000000_4194304/sockets/plasma_store"
#: what asks for vLLM on CPU cores, and how to do without
ON_CPU, OTHERWISE = "verl.rollout=vllm", "leave verl.rollout out"


def train(config: DictConfig) -> dict[str, Any]:
    """Train one run to its end, resuming from its last checkpoint where there is one. Returns its summary.

    Raises UserError for what is known beforehand, JobFailed with the error of the Ray worker that failed.
    """
    _require_verl()
    _require_packages(config)
    if devices.device_of(config) == "cuda":
        environment.require(settings.get(config, "gpus_per_node", 8), list(_gpu_packages(config)))
    _warn_of_cores(config)
    folder = run_directory(config)
    identity = budgets.identity(config)
    with locked(folder):
        set_aside(folder, identity)
        budgets.steps(config, _problems(data_folder(config)))  # there must be one
        _require_start(config)
        checkpoints.choose(checkpoints.root_of(folder))
        (folder / STOP).unlink(missing_ok=True)
        _remove_stale_work()
        work = Path(tempfile.mkdtemp(prefix=f"bv-{os.getpid()}-", dir=_temporary()))
        try:
            return _train(config, folder, identity, work)
        finally:
            shutil.rmtree(work, ignore_errors=True)
            (folder / STOP).unlink(missing_ok=True)


def _temporary() -> str:
    """Return a folder under which the paths of Ray's sockets are short enough: a batch system's TMPDIR may be long."""
    usual = tempfile.gettempdir()
    return usual if len(os.fsencode(usual + SOCKET)) <= LONGEST else "/tmp"


def _remove_stale_work() -> None:
    """Remove folders of jobs that were killed with their parent."""
    for path in Path(_temporary()).glob("bv-*-*"):
        with contextlib.suppress(OSError, ValueError):
            if path.stat().st_uid == os.getuid() and not Path(f"/proc/{int(path.name.split('-')[1])}").exists():
                shutil.rmtree(path, ignore_errors=True)


def _require_verl() -> None:
    try:
        installed = metadata.version("verl")
    except metadata.PackageNotFoundError:
        raise UserError("engine=verl: verl is not installed; install the extra `verl`, or use engine=torch") from None
    if installed != VERSION:
        raise UserError(f"engine=verl: verl {installed} is installed, this project is made for {VERSION}")


def _require_packages(config: DictConfig) -> None:
    """Raise UserError if vLLM (rollouts) or flash-attn (packed batches on GPUs) is missing.

    verl says so minutes later.
    """
    device = devices.device_of(config)
    if device != "cuda":
        if devices.rollout_of(config, device) == devices.VLLM:
            vllm.require(ON_CPU, f"{vllm.ENVIRONMENT}; or {OTHERWISE}")
        return
    packages = _gpu_packages(config)
    missing = [package for module, package in packages.items() if importlib.util.find_spec(module) is None]
    if missing:
        raise UserError(
            f"engine=verl on GPUs: {' and '.join(missing)} not installed; make the environment of GPU nodes "
            "(docs/provenance.md, Containers), or add device=cpu for a model that is small enough"
        )


def _require_start(config: DictConfig) -> None:
    """Raise UserError if the model to begin with is missing, or has heads that vLLM on CPU cores does not know."""
    from bapo.engines.shared.models import pretrained

    pretrains, device = config.model.kind == "pretrained", devices.device_of(config)
    start = pretrained.folder(config) if pretrains else base_folder(config) / "checkpoint"
    if device == "cpu" and devices.rollout_of(config, device) == devices.VLLM:
        vllm.require_heads(ON_CPU, start, OTHERWISE)


def _gpu_packages(config: DictConfig) -> dict[str, str]:
    """Return {module: package} of what a run on GPUs needs beside verl."""
    packed = devices.attention(config).startswith("flash_attention")
    return {"vllm": "vllm"} | ({"flash_attn": "flash-attn"} if packed else {})


def _warn_of_cores(config: DictConfig) -> None:
    """Say where a GPU has few CPU cores: Ray starts all the same, but graders, storage and vLLM share them."""
    gpus = settings.get(config, "gpus_per_node", 8)
    if devices.device_of(config) == "cuda" and allocation.cpus() < 4 * gpus:
        print(
            f"warning: {allocation.cpus()} CPU cores for {gpus} GPU{'s' if gpus > 1 else ''}: grading and vLLM will "
            "wait for them; give the job 8 or more a GPU",
            file=sys.stderr,
        )


def _problems(data: Path) -> int:
    import pyarrow.parquet as pq

    return pq.read_metadata(data / "train.parquet").num_rows


def _train(config: DictConfig, folder: Path, identity: str, work: Path) -> dict[str, Any]:
    device = devices.device_of(config)
    manifest = start_manifest(
        folder,
        identity,
        data_identity=data_identity(config),
        base_identity=base_identity(config),
        seed=config.seed,
        device=device,
        engine="verl",
    )
    write_text(folder / CONFIG, config.yaml())
    (work / "config.yaml").write_text(config.yaml(), encoding="utf-8")
    write_json(work / settings.FACTS, {"end": records.end_of_job(config.checkpoint)})
    _write_probe(config, checkpoints.root_of(folder) / checkpoints.VALIDATION)
    time_limit = float(settings.get(config, "time_limit", 0))
    _run_job(work, device, time_limit, folder.absolute() / LOG)
    steps = read_json(work / "done.json")["steps"]
    state = read_json(checkpoints.folder_of(checkpoints.root_of(folder), steps) / "bapo" / "state.json")
    if not state.get("finished", steps >= state["total_steps"]):
        raise Interrupted(
            f"{folder}: stopped after step {steps} of {state['total_steps']}; the same command goes on there"
        )
    most = state["total_steps"]
    limit = budgets.amount(config)
    budget = None if limit is None else budgets.Budget(config.train.budget.unit, limit, most)
    summary = records.summary(folder, identity, steps, folder / "checkpoints" / f"step_{steps:06d}", budget)
    write_json(folder / SUMMARY, summary)
    end_manifest(folder, manifest)
    return summary


def _write_probe(config: DictConfig, path: Path) -> None:
    """Write the prompts of the probe and of the validation as one file for verl.

    ``data_source`` names the set, ``__rollout_n__`` says how many samples verl draws for a prompt of it.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    parts = []
    for name, (prompts, samples) in settings.validation_sets(config).items():
        file = data_directory(config) / f"{name}.parquet"
        if not file.is_file():
            known = ", ".join(config.data.split_sizes)
            raise UserError(f"verl.validation={name}: {config.task.name} has no such problems; allowed: {known}")
        table = pq.read_table(file).slice(0, prompts)
        table = table.set_column(table.column_names.index("data_source"), "data_source", pa.array([name] * len(table)))
        parts.append(table.append_column("__rollout_n__", pa.array([samples] * len(table))))
    if parts:
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.concat_tables(parts), path)


def _run_job(work: Path, device: str, time_limit: float, log: Path) -> None:
    """Run ``job.py`` in a session of its own; signals go through, and whatever is left of the session is ended.

    Everything that verl and Ray say goes to ``log``; stderr gets our progress lines only.
    """
    variables = {**os.environ, **devices.environment(device)}
    if device == "cpu":  # Ray would write a token of its own into the home folder
        variables |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        variables.pop(gpus.VISIBLE, None)  # its GPUs are logical: Ray refuses more than this names
    command = [sys.executable, "-m", "bapo.engines.verl.job", str(work)]
    process = subprocess.Popen(
        command,
        env=variables,
        start_new_session=True,
        text=True,
        errors="replace",
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    late = threading.Event()
    stop, begun, killed = log.with_name(STOP), threading.Event(), threading.Event()

    def on_signal(number: int, _: Any) -> None:
        """First the trainer is asked to stop between two steps; before the first one, or when asked again, at once."""
        if begun.is_set() and not stop.exists():
            stop.touch()
            text = f"{log.parent}: stopping after the running step; once more stops at once\n"
            os.write(2, text.encode())  # print may be what the signal interrupted
        else:
            killed.set()
            process.send_signal(number)

    def end() -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)

    def stop_late() -> None:
        late.set()
        end()

    timer = threading.Timer(time_limit, stop_late)
    timer.daemon = True
    if time_limit:
        timer.start()
    previous = {}
    with contextlib.suppress(ValueError):  # signals can be caught in the main thread only
        previous = {n: signal.signal(n, on_signal) for n in (signal.SIGINT, signal.SIGTERM)}
    try:
        with open(log, "w", encoding="utf-8") as handle:
            for line in process.stdout:
                handle.write(line)
                _, progress, text = line.partition(PROGRESS)
                if progress:
                    begun.set()
                    print(text.rstrip(), file=sys.stderr, flush=True)
        status = process.wait()
    finally:
        timer.cancel()
        for number, handler in previous.items():
            signal.signal(number, handler)
        end()
        process.wait()
    if late.is_set():
        raise JobFailed(f"verl.time_limit: the job was not done after {time_limit:.0f} s and was stopped; see {log}")
    if status and killed.is_set():
        raise Interrupted(f"{log.parent}: stopped; the same command goes on after the last checkpoint")
    if status:
        error = f"status {status}"
        with contextlib.suppress(OSError, json.JSONDecodeError):
            error = json.loads((work / "error.json").read_text(encoding="utf-8"))["error"]
        cause = rollout_error(log)
        raise JobFailed(f"the verl job failed, see {log}: {error}" + (f"\ncaused by {cause}" if cause else ""))


def rollout_error(log: Path) -> str | None:
    """Return the first error of a rollout worker: verl logs it and goes on without the sample."""
    failed = False
    for line in log.read_text(encoding="utf-8", errors="replace").splitlines():
        failed = failed or "Error in _run_prompt" in line
        text = re.sub(r"^\(\w+ pid=\d+.*?\)\s*", "", re.sub(r"\x1b\[\d*m", "", line))
        if failed and re.match(r"[\w.]+(Error|Exception)\b.*: ", text):
            return text
    return None
