"""Trains one run by verl in another process, of which nothing is left behind."""

from __future__ import annotations

import contextlib
import math
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from bapo.engines.shared import records
from bapo.engines.verl import checkpoints, memory, verl_config
from bapo.errors import Interrupted, JobFailed, UserError, require_extra
from bapo.experiments import budgets
from bapo.experiments.places import data_directory, run_directory
from bapo.experiments.schema import STATES, Config
from bapo.gpu import allocation, environment
from bapo.gpu import devices as gpus
from bapo.processes import stop_requests
from bapo.store.files import SUMMARY, Json, read_json, write_json
from bapo.store.lock import locked, set_aside
from bapo.store.provenance import end_manifest
from bapo.tasks.job import data_folder
from bapo.validate import wrong

VERSION = "0.9.1"  # verl's trainer changes between releases
LOG = "verl.log"
#: a file in the run's folder, which any node sees, that asks the trainer to stop after the running step
STOP = ".stop"
#: the beginning of the lines of the log that reach the terminal
PROGRESS = "[bapo] "
#: the files that this process and the job exchange: verl's configuration, and the error that ended the job
RESOLVED, ERROR = "verl.yaml", "error.json"
#: where jobs have their folders: a socket's path may have 107 bytes, and those of Ray take 88 below this folder
TEMPORARY = Path("/tmp")
#: where Linux reports memory and its limits, and where Ray's objects lie
PROC, CGROUPS, SHARED = Path("/proc"), Path("/sys/fs/cgroup"), Path("/dev/shm")
#: of control groups, version 1 and 2: the files of limit and use, and the lines of memory.stat that count cached files
GROUP_1 = "memory.limit_in_bytes", "memory.usage_in_bytes", r"^total_(?:in)?active_file (\d+)"
GROUP_2 = "memory.max", "memory.current", r"^(?:in)?active_file (\d+)"


def train(config: Config) -> Json:
    """Train one run to its end, resuming from its last checkpoint where there is one. Returns its summary.

    Raises UserError for what is known beforehand, JobFailed with the error of the Ray worker that failed.
    """
    import pyarrow.parquet as pq

    from bapo.engines.shared import models  # loads torch

    device = verl_config.device_of(config)
    _require_packages(config, device)
    folder, identity = run_directory(config), budgets.identity(config)
    with locked(folder):
        set_aside(folder, identity)
        # raises UserError where there is no step
        steps = budgets.steps(config, pq.read_metadata(data_folder(config) / "train.parquet").num_rows)
        start = models.start_path(config)  # at the base job's commit, so that no process of the job asks the hub
        checkpoints.choose(checkpoints.root_of(folder))
        if device == "cuda":
            _require_disk(config, folder, steps)
        (folder / STOP).unlink(missing_ok=True)
        _remove_stale_work()
        work = Path(tempfile.mkdtemp(prefix=f"bv-{os.getpid()}-", dir=TEMPORARY))
        try:
            with locked(work):
                return _train(config, device, folder, identity, start, work)
        finally:
            shutil.rmtree(work, ignore_errors=True)
            (folder / STOP).unlink(missing_ok=True)


def _require_ranks(verl: DictConfig, root: Path) -> None:
    """Raise UserError where the checkpoint that verl resumes from has the shards of another number of processes."""
    tracker, ranks = root / checkpoints.TRACKER, verl.trainer.n_gpus_per_node * verl.trainer.nnodes
    there = checkpoints.ranks(checkpoints.folder_of(root, int(tracker.read_text()))) if tracker.exists() else None
    if there not in (None, ranks):
        cure = f"the checkpoints in {root} are of {there}; set verl.gpus_per_node={there}"
        raise wrong(None, "verl.gpus_per_node", ranks, cure)


def _require_disk(config: Config, folder: Path, steps: int) -> None:
    """Raise UserError where the disk has no room for the states and models that the run has yet to write.

    A new state is complete before the oldest is deleted. steps: of the whole run.
    """
    states = max(1, STATES + 1 - len(checkpoints.steps(checkpoints.root_of(folder))))
    models_at_end = math.ceil(steps / config.checkpoint.every) if config.checkpoint.keep_models else 1
    models = max(1, models_at_end - len(records.model_steps(folder)))
    needed = memory.disk_bytes(config, config.model.parameters or 0, models, states)
    if (free := shutil.disk_usage(folder).free) < needed:
        text = (
            f"{states} more checkpoint{'s' if states > 1 else ''} and {models} published model"
            f"{'s' if models > 1 else ''} take {needed / 1e9:.0f} GB, and the disk has {free / 1e9:.0f} GB left; free "
            "some, choose another disk with paths.results, or set checkpoint.keep_models=false"
        )
        raise UserError(f"{folder}: {text}")


def _require_host_memory(config: Config, store: int) -> None:
    """Raise UserError where host memory has no room for what the ranks keep there, or shared memory for Ray's objects.

    Without room in /dev/shm, Ray would keep its objects on a disk, and NCCL would fail. store: bytes of Ray's objects.
    """
    needed, available = memory.host_bytes(config, config.verl.gpus_per_node or 8), host_memory()
    if available < needed:
        text = f"keeps {needed / 1e9:.0f} GB in host memory, and {available / 1e9:.0f} GB may be used"
        text += "; take a larger machine, or a job with more memory"
        raise wrong(None, "model", config.model.name, f"engine=verl {text}")
    if (free := shutil.disk_usage(SHARED).free) < store:
        text = f"Ray's objects take {store / 1e9:.0f} GB there, and {free / 1e9:.1f} GB are left"
        smaller = "lower ray_kwargs.ray_init.object_store_memory in verl.overrides"
        raise UserError(f"{SHARED}: {text}; start the container with --ipc=host or --shm-size=16g, or {smaller}")


def host_memory() -> float:
    """Count the bytes of memory that this process may take: what the machine and each of its control groups allow."""
    match = re.search(r"^MemAvailable:\s+(\d+)", (PROC / "meminfo").read_text(), re.MULTILINE)
    available: list[float] = [1024 * int(match[1])] if match else []
    for line in (PROC / "self/cgroup").read_text().splitlines():
        _, controllers, group = line.split(":", 2)
        root = CGROUPS / controllers
        if controllers in ("", "memory"):
            groups = [root / group.lstrip("/"), *(root / parent for parent in Path(group.lstrip("/")).parents)]
            available += [_group_memory(folder, *(GROUP_1 if controllers else GROUP_2)) for folder in groups]
    return min(available, default=math.inf)


def _group_memory(group: Path, limit_name: str, use_name: str, cache_pattern: str) -> float:
    """Count the bytes that a control group may still take, with those of cached files, which Linux gives up."""
    limit_file, use_file, statistics = (group / name for name in (limit_name, use_name, "memory.stat"))
    if not limit_file.is_file() or (limit := limit_file.read_text().strip()) == "max":
        return math.inf
    cached = re.findall(cache_pattern, statistics.read_text(), re.MULTILINE) if statistics.is_file() else []
    return int(limit) - (int(use_file.read_text()) if use_file.is_file() else 0) + sum(map(int, cached))


def _remove_stale_work() -> None:
    """Remove the folders of jobs that were killed together with their parent.

    A living job holds a lock, in whatever container it runs. Where the file system has no locks, the job is found by
    the number of its process.
    """
    for path in TEMPORARY.glob("bv-*-*"):
        with contextlib.suppress(OSError, UserError, ValueError):
            process = Path(f"/proc/{int(path.name.split('-')[1])}")
            if path.lstat().st_uid == os.getuid() and not process.exists():
                with locked(path, patience=0):
                    shutil.rmtree(path, ignore_errors=True)


def _require_packages(config: Config, device: str) -> None:
    """Raise UserError for a missing package or another version of verl, which verl reports minutes later, if at all.

    Raise it also where a shell would split the path of this Python, because Ray's processes would then never start.
    """
    require_extra("verl", "verl")
    if re.search(r"[\s\"'`$&|;<>()*?\[{~#!\\]", sys.executable):
        cure = "make the environment in a folder whose path has no space or special character, as Ray uses a shell"
        raise UserError(f"engine=verl: {sys.executable}: {cure}")
    if (installed := metadata.version("verl")) != VERSION:
        raise wrong(None, "engine", "verl", f"verl is {installed} and not {VERSION}; install the extra `verl` again")
    if device == "cuda":
        cure = "make the environment of GPU nodes (docs/installing.md, Containers), or add device=cpu"
        environment.require_vllm("engine=verl on GPUs", cure)
        if not (memory.fused(config) or verl_config.flash_attention()):
            text = f"critics and models that read images need flash-attn, which is not installed here; {cure}"
            raise wrong(None, "method", config.method.name, text)
    elif verl_config.uses_vllm(config, device):
        environment.require_vllm("verl.rollout=vllm", f"{environment.VLLM_CPU}; or leave verl.rollout out")


def _train(config: Config, device: str, folder: Path, identity: str, start: Path, work: Path) -> Json:
    """Run the job, and complete the run's folder if all steps are done. Returns the summary.

    device: "cpu" or "cuda"; start: the folder of the model that training starts from; work: a temporary folder.
    """
    manifest = records.begin(config, folder, identity, device=device, engine="verl")
    verl = verl_config.resolve(config, device, start)
    root = checkpoints.root_of(folder)
    _require_ranks(verl, root)
    if device == "cuda":
        ray_init = verl.ray_kwargs.ray_init  # verl.overrides may leave the size or the place to Ray
        _require_host_memory(config, 0 if "_plasma_directory" in ray_init else ray_init.object_store_memory or 0)
    limit = budgets.amount(config)
    facts = {"identity": identity, "budget": limit, "end": allocation.end(config.checkpoint.job_minutes)}
    ray = {"runtime_env": {"env_vars": verl_config.environment(device)}, "_temp_dir": str(work / "ray")}
    for key, values in (("bapo", facts), ("ray_kwargs.ray_init", ray)):
        OmegaConf.update(verl, key, values, force_add=True)
    OmegaConf.save(verl, work / RESOLVED)
    _write_probe(config, root / checkpoints.PROBED)
    _run_job(work, device, folder.absolute() / LOG)
    steps = int((root / checkpoints.TRACKER).read_text())
    state = read_json(checkpoints.folder_of(root, steps) / "bapo" / "state.json")
    total = state["total_steps"]
    if not state["finished"]:
        raise Interrupted(f"{folder}: stopped after step {steps} of {total}; the same command continues it")
    budget = None if limit is None else budgets.Budget(config.train.budget.unit, limit, total)
    summary = records.summary(folder, identity, steps, budget)
    write_json(folder / SUMMARY, summary)
    end_manifest(folder, manifest)
    return summary


def _write_probe(config: Config, path: Path) -> None:
    """Write the probed prompts of both sets for verl, or one of each without a probe; ``data_source`` names the set."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    tables = []
    for name in ("train", "probe"):
        table = pq.read_table(data_directory(config) / f"{name}.parquet").slice(0, config.probe.prompts or 1)
        column = table.column_names.index("data_source")
        tables.append(table.set_column(column, "data_source", pa.array([name] * len(table))))
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.concat_tables(tables), path)


def _run_job(work: Path, device: str, log: Path) -> None:
    """Run ``job.py`` in a new session, and kill all that is left of the session at its end.

    The output of verl and Ray goes to ``log``, and only progress lines go to stderr. The first signal asks the trainer
    to stop between two steps. The second one ends this process, and the job with it.
    """
    variables = {**os.environ, **verl_config.environment(device)}
    # otherwise Ray would write one token for all jobs into the home folder
    variables |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    if device == "cpu":
        variables.pop(gpus.VISIBLE, None)  # it would limit the number of Ray's logical GPUs
    process = subprocess.Popen(
        [sys.executable, "-m", "bapo.engines.verl.job", str(work), str(os.getpid())],
        env=variables,
        start_new_session=True,
        text=True,
        errors="replace",
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )

    def on_signal() -> None:
        log.with_name(STOP).touch()
        text = f"{log.parent}: stopping after the running step; once more stops at once\n"
        os.write(2, text.encode())  # the signal may have interrupted print, which must not be entered twice

    try:
        with stop_requests(on_signal), open(log, "w", encoding="utf-8") as handle:
            for line in process.stdout or ():
                handle.write(line)
                _, progress, text = line.partition(PROGRESS)
                if progress:
                    print(text.rstrip(), file=sys.stderr, flush=True)
            status = process.wait()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    if status:
        report = work / ERROR
        error = read_json(report)["error"] if report.is_file() else f"status {status}"
        raise JobFailed(f"the verl job failed, see {log}: {error}")
