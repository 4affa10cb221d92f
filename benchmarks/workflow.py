"""The whole of Table 1 at laptop scale, from nothing, and the DAG of the paper scale.

    python benchmarks/workflow.py [--cores 2] [--dag-only]

Prints wall-clock seconds against the targets (35 minutes; 5 seconds for the DAG) and the peak memory of the largest
job against 1.5 GB. Results go to a temporary folder, so nothing of an earlier run is used.

What limits the whole: training is arithmetic in small matrices (about 60% of the CPU time), then the imports of torch
and transformers in 140 processes; the base models come first.
What limits the DAG: Snakemake's own start (about 2 seconds).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def timed(*words: str) -> tuple[float, str]:
    """(wall seconds, standard output) of Snakemake with these words. Raises on failure, with its last lines."""
    begun = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "snakemake", *words], cwd=ROOT, capture_output=True, text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"snakemake failed:\n{done.stderr[-3000:]}")
    return time.perf_counter() - begun, done.stdout + done.stderr


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cores", default="2")
    parser.add_argument("--dag-only", action="store_true", help="only the dry run of the paper scale")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        seconds, _ = timed("-n", "table1", "--config", "scale=paper", f"results={folder}/paper")
        print(f"DAG of the paper scale      {seconds:7.1f} s    target 5 s      {seconds / 5:.2f} of it")
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
