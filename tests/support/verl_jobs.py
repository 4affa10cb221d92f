"""Jobs of real verl runs, as a user starts them: waited for, killed, and gone without a trace."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from bapo.engines.verl.launch import TEMPORARY
from support.paths import ROOT
from support.processes import wait_for

SETTINGS = [
    "scale=smoke",
    "tracking=none",
    "device=cpu",
    "data.generator.number_max=8",
    "data.generator.three_number_share=0.8",
    "data.generator.noise=0.1",
    "data.split_sizes={base: 4000, train: 64, probe: 8, cd34: 8, cd4: 4}",
    "base.iterations=500",
    "train.steps=4",
    "train.batch_size=8",
    "train.mini_batch_size=4",
    "train.group_size=4",
    "train.warmup_updates=4",
    "probe.prompts=2",
    "probe.samples=4",
    "probe.points=3",
    "checkpoint.every=2",
]
LIMIT = 1800  # seconds a job may take on a busy machine, where it usually takes 60, or 600 with eight processes
STARTED: list[subprocess.Popen[str]] = []


def start(*words: str, command: str = "train") -> subprocess.Popen[str]:
    """Start ``bapo COMMAND`` in a process of its own. words: of a key that is there twice the last counts."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "VLLM_LOGGING_LEVEL": "WARNING"}
    line = [sys.executable, "-m", "bapo", command, *{word.partition("=")[0]: word for word in words}.values()]
    STARTED.append(subprocess.Popen(line, env=environment, stderr=subprocess.PIPE, text=True))
    return STARTED[-1]


def end_all() -> None:
    """End what a failed test has left."""
    while STARTED:
        process = STARTED.pop()
        if process.poll() is None:
            process.kill()
            process.wait()


def finish(process: subprocess.Popen[str], limit: float = LIMIT, status: int = 0) -> str:
    """Return what a job said that ended with ``status`` and left nothing behind."""
    _, error = process.communicate(timeout=limit)
    assert process.returncode == status, error[-3000:]
    assert_gone(process)
    assert not list(TEMPORARY.glob(f"bv-{process.pid}-*"))
    return error


def kill_behind(process: subprocess.Popen[str], checkpoint: Path) -> None:
    """kill -9 as soon as a checkpoint is complete; the job notices that its parent is gone."""
    wait_for(process, (checkpoint / "checksums.json").exists)  # written last
    process.kill()
    process.communicate()
    assert_gone(process)


def assert_gone(launcher: subprocess.Popen[str], seconds: float = 300.0) -> None:
    """Ray's processes end within a moment of the job; other jobs on this machine are none of our business."""
    deadline = time.monotonic() + seconds
    while left := ray_processes(launcher.pid):
        assert time.monotonic() < deadline, [line[:200] for line in left]
        time.sleep(0.5)


def ray_processes(launcher: int) -> list[str]:
    """Command lines of what a job started: Ray's servers name its folder, workers are children of such a server."""
    import psutil

    mark = f"bv-{launcher}-"
    found = {p.info["pid"]: p.info for p in psutil.process_iter(["pid", "ppid", "cmdline"])}
    lines = {pid: " ".join(info["cmdline"] or []).strip() for pid, info in found.items()}
    return [
        line
        for pid, line in lines.items()
        if mark in line or (line.startswith("ray::") and mark in lines.get(found[pid]["ppid"], ""))
    ]
