"""Waiting for what other processes do."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from pathlib import Path


def within(seconds: float, holds: Callable[[], bool]) -> bool:
    """Return whether something holds in time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if holds():
            return True
        time.sleep(0.02)
    return False


def alive(pid: int) -> bool:
    """Return whether a process runs; a zombie has ended."""
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False


def gone(pid: int, seconds: float = 900.0) -> bool:
    """Return whether a process ends in time."""
    return within(seconds, lambda: not alive(pid))


def wait_for(process: subprocess.Popen[str], ready: Callable[[], bool], limit: float = 1800.0) -> None:
    """Wait until something holds; fails where the process ends before, with what it said, and after ``limit``."""
    deadline = time.monotonic() + limit
    while not ready():
        assert process.poll() is None, process.communicate()[1][-3000:]
        assert time.monotonic() < deadline
        time.sleep(0.02)
