"""What the batch system gives this job beside GPUs: processors, and its time."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

#: the file of cgroup v2 with the microseconds of processor time in so many microseconds, or "max"
QUOTA = Path("/sys/fs/cgroup/cpu.max")
#: when the running job began, in seconds since 1970
_BEGUN: list[float] = []


def cpus() -> int:
    """Count the processors that this process may use: of its affinity, its container and its Slurm job, the fewest."""
    counts = [len(os.sched_getaffinity(0))]
    if os.environ.get("SLURM_CPUS_ON_NODE", "").isdigit():
        counts.append(int(os.environ["SLURM_CPUS_ON_NODE"]))
    with contextlib.suppress(OSError, ValueError):  # no cgroup v2, or no limit
        quota, period = map(int, QUOTA.read_text(encoding="ascii").split())
        counts.append(quota // period)
    return max(1, min(counts))


@contextlib.contextmanager
def begun() -> Iterator[None]:
    """Count this job's time from here: before it waits for GPUs or for other jobs, and before slow imports."""
    _BEGUN.append(time.time())
    try:
        yield
    finally:
        _BEGUN.pop()


def end(minutes: float | None = None) -> float | None:
    """Return when this job ends, in seconds since 1970: ``minutes`` behind its beginning, or as Slurm says.

    None: outside Slurm, or without a limit. Older versions of Slurm do not say so in the environment and are asked.
    """
    if minutes is not None:
        return (_BEGUN[-1] if _BEGUN else time.time()) + 60 * minutes
    job, job_end = os.environ.get("SLURM_JOB_ID"), os.environ.get("SLURM_JOB_END_TIME", "")
    if job is None or job_end.isdigit():
        return float(job_end) if job else None
    try:
        done = subprocess.run(["scontrol", "-o", "show", "job", job], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):  # none in a container
        return None
    match = re.search(r"\bEndTime=(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)", done.stdout)
    return time.mktime(time.strptime(match[1], "%Y-%m-%dT%H:%M:%S")) if match else None
