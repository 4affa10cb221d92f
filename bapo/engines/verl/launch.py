"""One run through verl, as a process of its own that leaves nothing behind."""

from __future__ import annotations

import contextlib
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

from omegaconf import DictConfig, OmegaConf

from bapo import config as configuration
from bapo import records, runs
from bapo.errors import UserError

VERSION = "0.9.1"  # v1/ of verl changes between releases
LOG = "verl.log"
#: begins the lines that reach the terminal
PROGRESS = "[bapo] "


class Interrupted(Exception):
    """Ctrl-C or SIGTERM."""


class JobFailed(RuntimeError):
    """The verl job ended with an error; the text is the worker's."""


def train(config: DictConfig) -> dict[str, Any]:
    """Train one run to its end, resuming from its last checkpoint where there is one. Returns its summary.

    Raises UserError for what can be told beforehand, JobFailed with the error of the Ray worker that failed.
    """
    _require_verl()
    folder = configuration.run_directory(config)
    identity = configuration.train_identity(config)
    with runs.locked(folder):
        runs.set_aside(folder, identity)
        _require_base(config)
        _remove_stale_work()
        # a short path: Ray's sockets lie below it, and their names may have 107 characters
        work = Path(tempfile.mkdtemp(prefix=f"bv-{os.getpid()}-"))
        try:
            return _train(config, folder, identity, work)
        finally:
            shutil.rmtree(work, ignore_errors=True)


def _remove_stale_work() -> None:
    """Folders of jobs that were killed with their parent."""
    for path in Path(tempfile.gettempdir()).glob("bv-*-*"):
        with contextlib.suppress(OSError, ValueError):
            if path.stat().st_uid == os.getuid() and not Path(f"/proc/{int(path.name.split('-')[1])}").exists():
                shutil.rmtree(path, ignore_errors=True)


def _require_verl() -> None:
    try:
        found = metadata.version("verl")
    except metadata.PackageNotFoundError:
        raise UserError("engine=verl: verl is not installed; install the extra `verl`, or use engine=torch") from None
    if found != VERSION:
        raise UserError(f"engine=verl: verl {found} is installed, this project is made for {VERSION}")


def _require_base(config: DictConfig) -> None:
    folder = configuration.base_directory(config)
    if config.model.kind != "pretrained" and not (folder / runs.SUMMARY).exists():
        names = f"scale={config.scale.name} task={config.task.name} model={config.model.name}"
        raise UserError(f"{folder}: the base model is missing; train it first with `python -m bapo base {names}`")
    if config.model.kind != "pretrained":
        runs.verify_files(folder)


def _train(config: DictConfig, folder: Path, identity: str, work: Path) -> dict[str, Any]:
    from bapo.engines.verl import verl_config

    device = verl_config.device_of(config)
    manifest = runs.start_manifest(
        folder,
        identity,
        data_identity=configuration.data_identity(config),
        base_identity=configuration.base_identity(config),
        seed=config.seed,
        device=device,
        engine="verl",
    )
    runs.write_text(folder / runs.CONFIG, OmegaConf.to_yaml(config, resolve=True))
    (work / "config.yaml").write_text(OmegaConf.to_yaml(config, resolve=True), encoding="utf-8")
    _write_probe(config, work / "probe.parquet")
    time_limit = float(OmegaConf.select(config, "verl.time_limit", default=0) or 0)
    _run_job(work, device, time_limit, folder.absolute() / LOG)
    steps = runs.read_json(work / "done.json")["steps"]
    summary = records.summary(folder, identity, steps, folder / "checkpoints" / f"step_{steps:06d}")
    runs.write_json(folder / runs.SUMMARY, summary)
    runs.end_manifest(folder, manifest)
    return summary


def _write_probe(config: DictConfig, path: Path) -> None:
    """The fixed prompts of the probe as one validation file; ``data_source`` names the set."""
    if not config.probe.prompts:
        return
    import pandas as pd

    data = configuration.data_directory(config)
    parts = []
    for name in ("train", "probe"):
        table = runs.read_table(data / f"{name}.parquet").head(config.probe.prompts)
        parts.append(table.assign(data_source=name))
    pd.concat(parts, ignore_index=True).to_parquet(path, index=False)


def _run_job(work: Path, device: str, time_limit: float, log: Path) -> None:
    """Run ``job.py`` in a session of its own; signals go through, and whatever is left of the session is ended.

    Everything that verl and Ray say goes to ``log``; stderr gets our progress lines only.
    """
    from bapo.engines.verl import verl_config

    environment = {**os.environ, **verl_config.environment(device)}
    if device == "cpu":  # Ray would write a token of its own into the home folder
        environment |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    command = [sys.executable, "-m", "bapo.engines.verl.job", str(work)]
    process = subprocess.Popen(
        command, env=environment, start_new_session=True, text=True, errors="replace",
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    late = threading.Event()

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
        previous = {
            n: signal.signal(n, lambda number, _: process.send_signal(number)) for n in (signal.SIGINT, signal.SIGTERM)
        }
    try:
        with open(log, "w", encoding="utf-8") as handle:
            for line in process.stdout:
                handle.write(line)
                _, found, text = line.partition(PROGRESS)
                if found:
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
    if status == 130:
        raise Interrupted(f"{log.parent}: stopped; the same command goes on after the last checkpoint")
    if status:
        error = f"status {status}"
        with contextlib.suppress(OSError, json.JSONDecodeError):
            error = json.loads((work / "error.json").read_text(encoding="utf-8"))["error"]
        cause = rollout_error(log)
        raise JobFailed(f"the verl job failed, see {log}: {error}" + (f"\ncaused by {cause}" if cause else ""))


def rollout_error(log: Path) -> str | None:
    """The first error of a rollout worker: verl logs it and goes on without the sample."""
    found = False
    for line in log.read_text(encoding="utf-8", errors="replace").splitlines():
        found = found or "Error in _run_prompt" in line
        text = re.sub(r"^\(\w+ pid=\d+.*?\)\s*", "", re.sub(r"\x1b\[\d*m", "", line))
        if found and re.match(r"[\w.]+(Error|Exception)\b.*: ", text):
            return text
    return None
