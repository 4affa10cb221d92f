"""CPU time, memory and wall time of a command with all that it starts, whoever waits for it.

    python benchmarks/processes.py FILE.json COMMAND ...    writes the measurements, and ends as the command ends

The kernel counts a process's time for the parent that waits for it. Jobs of a warm process have another parent than
Snakemake, so this one adopts whatever loses its own (Linux), and waits until nothing is left.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True)
class Cost:
    """Seconds of wall time and of CPU time, peak memory in bytes of the largest process, and what was printed."""

    wall: float
    cpu: float
    memory: int
    output: str


def cost(command: Sequence[str], folder: Path, code: Path | None = None) -> Cost:
    """Run a command in ``folder``, importing from the checkout ``code``. Raises SystemExit with its last lines."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"} | ({"PYTHONPATH": str(code)} if code else {})
    with tempfile.TemporaryDirectory() as place:
        file = Path(place, "cost.json")
        words = [sys.executable, str(Path(__file__).resolve()), str(file), *command]
        done = subprocess.run(words, cwd=folder, capture_output=True, text=True, env=environment)
        if done.returncode:
            raise SystemExit(f"{' '.join(command)} failed:\n{(done.stdout + done.stderr)[-3000:]}")
        return Cost(**json.loads(file.read_text()), output=done.stdout + done.stderr)


def adopt() -> None:
    """Become the parent of what loses its own: Ray's servers, jobs of a warm process."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def disk(folder: Path) -> int:
    """Return the bytes that a folder occupies; what hard links share counts once."""
    found = {(s.st_dev, s.st_ino): 512 * s.st_blocks for p in folder.rglob("*") if (s := p.lstat())}
    return sum(found.values())


def main() -> int:
    file, *command = sys.argv[1:]
    adopt()
    begun = time.perf_counter()
    status = subprocess.Popen(command).wait()
    wall = time.perf_counter() - begun
    while True:
        try:
            os.wait()
        except ChildProcessError:
            break
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    content = {"wall": wall, "cpu": used.ru_utime + used.ru_stime, "memory": 1024 * used.ru_maxrss}
    Path(file).write_text(json.dumps(content))
    return status


if __name__ == "__main__":
    sys.exit(main())
