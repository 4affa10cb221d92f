"""Seconds and memory of all of Table 1 at laptop scale, from nothing, and of the DAGs at paper scale.

    python benchmarks/workflow.py [--cores 2] [--dag-only]

The targets are 35 minutes for the table; 5 s and 15 s for the DAGs of Table 1 and of everything with five seeds, 10 s
for the latter with nothing to do; 2 s for the start of an analysis; 1.5 GB per job and 1 GB per DAG. DAGs are measured
in CPU time, so other work on the machine hardly matters. Results go to a temporary folder, so no earlier run is used.

The table is limited by arithmetic in small matrices (about 60% of the CPU time), then by the imports of torch and
transformers in 140 processes; the base models come first. The DAGs are limited by Snakemake's start (about 2 s) and
bookkeeping, Hydra's 0.1 s for the configuration of each task and model, and 0.03 s for each method on top.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def timed(*words: str) -> tuple[float, str]:
    """Run Snakemake; return (wall seconds, output). Raises SystemExit with its last lines on failure."""
    begun = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "snakemake", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    if done.returncode:
        raise SystemExit(f"snakemake failed:\n{done.stderr[-3000:]}")
    return time.perf_counter() - begun, done.stdout + done.stderr


def cost(*words: str) -> tuple[float, float, str]:
    """Run Snakemake; return (CPU seconds, peak memory in GB of any command so far, output)."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    _, output = timed(*words)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, after.ru_maxrss / 1e6, output


def everything(folder: str) -> None:
    """Measure the DAG of everything at paper scale with five seeds, from nothing, then with nothing to do."""
    options = (
        "all",
        "comparisons",
        "sweep",
        "--config",
        "scale=paper",
        "seeds=[1,2,3,4,5]",
        f"results={folder}/everything",
    )
    seconds, memory, output = cost("-n", *options)
    (jobs,) = re.findall(r"^total +(\d+)$", output, re.MULTILINE)[:1]
    print(f"everything, {jobs:>5} jobs      {seconds:7.1f} s    target 15 s     {seconds / 15:.2f} of it")
    print(f"its memory                  {memory:7.2f} GB   target 1 GB     {memory:.2f} of it")
    _, listing = timed("--summary", *options)
    for line in listing.splitlines():
        if line.startswith(folder):
            path = Path(line.split("\t")[0])
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
    timed("--touch", "--forceall", "--cores", "1", *options)
    seconds, _, output = cost("-n", *options)
    assert "Nothing to be done" in output, output[-2000:]
    print(f"everything, nothing to do   {seconds:7.1f} s    target 10 s     {seconds / 10:.2f} of it")


def analysis_start() -> None:
    """Measure the imports of an analysis job."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    imports = "import matplotlib.pyplot, pandas; from analysis import __main__"
    subprocess.run([sys.executable, "-c", imports], cwd=ROOT, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(f"start of an analysis        {seconds:7.1f} s    target 2 s      {seconds / 2:.2f} of it")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cores", default="2")
    parser.add_argument("--dag-only", action="store_true", help="only dry runs and the start of an analysis")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        seconds, _, _ = cost("-n", "table1", "--config", "scale=paper", f"results={folder}/paper")
        print(f"DAG of the paper's Table 1  {seconds:7.1f} s    target 5 s      {seconds / 5:.2f} of it")
        everything(folder)
        analysis_start()
        if arguments.dag_only:
            return
        seconds, _ = timed("--cores", arguments.cores, "table1", "--config", f"results={folder}/laptop")
        print(f"table1 from nothing         {seconds:7.1f} s    target 2100 s    {seconds / 2100:.2f} of it")
        peaks = {}
        for path in Path(folder).rglob("*.json"):
            content = json.loads(path.read_text())
            if isinstance(content, dict) and content.get("peak_memory_bytes"):
                peaks[path.parent.relative_to(folder)] = content["peak_memory_bytes"]
        largest = max(peaks, key=peaks.get)
        print(
            f"largest job                 {peaks[largest] / 1e9:7.2f} GB   target 1.5 GB   "
            f"{peaks[largest] / 1.5e9:.2f} of it   ({largest})"
        )


if __name__ == "__main__":
    main()
