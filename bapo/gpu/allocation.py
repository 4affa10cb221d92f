"""The processors and the time that the batch system gives this job."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

#: the file of cgroup v2 with a quota of processor time, or "max", and the period for which it holds, in microseconds
QUOTA = Path("/sys/fs/cgroup/cpu.max")
#: when the running job started, in seconds since 1970
_STARTS: list[float] = []


def cpus() -> int:
    """Count the processors that its affinity, its container and its Slurm job all allow this process to use."""
    counts = [len(os.sched_getaffinity(0))]
    if os.environ.get("SLURM_CPUS_ON_NODE", "").isdigit():
        counts.append(int(os.environ["SLURM_CPUS_ON_NODE"]))
    with contextlib.suppress(OSError, ValueError):  # no cgroup v2, or no limit
        quota, period = map(int, QUOTA.read_text(encoding="ascii").split())
        counts.append(quota // period)
    return max(1, min(counts))


@contextlib.contextmanager
def job_clock() -> Iterator[None]:
    """Count this job's time from here, before slow imports and before it waits for GPUs or for other jobs."""
    _STARTS.append(time.time())
    try:
        yield
    finally:
        _STARTS.pop()


def end(minutes: float | None = None) -> float | None:
    """Return when this job ends, in seconds since 1970: ``minutes`` after its start, or by Slurm's limit.

    Returns None outside Slurm and without a limit. ``scontrol`` is asked, because older versions of Slurm do not set
    the time in the environment.
    """
    if minutes is not None:
        return (_STARTS[-1] if _STARTS else time.time()) + 60 * minutes
    job, job_end = os.environ.get("SLURM_JOB_ID"), os.environ.get("SLURM_JOB_END_TIME", "")
    if job is None or job_end.isdigit():
        return float(job_end) if job else None
    try:
        process = subprocess.run(["scontrol", "-o", "show", "job", job], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):  # a container has no scontrol
        return None
    match = re.search(r"\bEndTime=(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)", process.stdout)
    return time.mktime(time.strptime(match[1], "%Y-%m-%dT%H:%M:%S")) if match else None
