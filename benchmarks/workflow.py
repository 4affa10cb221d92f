"""Seconds, memory and disk of all of Table 1 at laptop scale, from nothing, and of the DAGs at paper scale.

    python benchmarks/workflow.py [--cores 2] [--dag-only] [--against CHECKOUT] [--keep FOLDER]
                                   [--config KEY=VALUE ...] [--smallest]

The targets are 35 minutes for the table; 5 s and 15 s for the DAGs of Table 1 and of everything with five seeds, 10 s
for the latter with nothing to do; 3 s for a finished Table 1; 2 s for the start of an analysis; 1.5 GB per job and 1 GB
per DAG. DAGs are measured in CPU time, so other work on the machine hardly matters. Results go to a temporary folder,
so no earlier run is used. With ``--against`` the table is made by another checkout too, and every number of this one is
also given as a ratio to that one's. With ``--keep`` this checkout's results stay in FOLDER/results, for other commands.

The DAGs are limited by Snakemake's start (about 2 s) and bookkeeping, then by Hydra's 0.1 s for the configuration of
each task and model and 0.03 s for each method on top, once: later ones find the configurations kept.
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

import processes

ROOT = Path(__file__).resolve().parent.parent


def timed(*words: str) -> tuple[float, str]:
    """Run Snakemake; return (wall seconds, output). Raises SystemExit with its last lines on failure."""
    begun = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "snakemake", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        # GPUs are named, as marking files as made asks for those of their jobs
        env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7"},
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


#: what ``--smallest`` makes: three runs of two steps each, and no table
SMALLEST = ("scale=smoke", "methods=[grpo]", "seeds=[1,2,3]", "tracking=none")
TINY = (
    "data.split_sizes.base=1000",
    "data.split_sizes.train=48",
    "base.iterations=20",
    "probe.prompts=8",
    "train.steps=2",
)


def table(code: Path, cores: str, target: str, settings: list[str], keep: Path | None = None) -> dict[str, float]:
    """Make a target from nothing with the code of a checkout; return what it took. Raises SystemExit on failure.

    settings: KEY=VALUE after --config; keep: an empty folder for the results, in place of a temporary one.
    """
    with tempfile.TemporaryDirectory() as place:
        folder = keep or Path(place)
        profile = str(code / "workflows" / "profiles" / "default")
        command = [sys.executable, "-m", "snakemake", "-s", str(code / "Snakefile"), "--workflow-profile", profile]
        command += ["--cores", cores, target, "--config", *settings]
        made, again = (processes.cost(command, folder, code) for _ in range(2))
        assert "Nothing to be done" in again.output, again.output[-2000:]
        peaks = [0]
        for path in (folder / "results").rglob("*.json"):
            content = json.loads(path.read_text())
            peaks.append((content.get("peak_memory_bytes") or 0) if isinstance(content, dict) else 0)
        return {
            "wall time, s": made.wall,
            "CPU time, s": made.cpu,
            "largest job, GB": max(peaks) / 1e9,
            "on disk, MB": processes.disk(folder / "results") / 1e6,
            "CPU time when finished, s": again.cpu,
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cores", default="2")
    parser.add_argument("--dag-only", action="store_true", help="only dry runs and the start of an analysis")
    parser.add_argument("--against", type=Path, metavar="CHECKOUT", help="a checkout to compare the table with")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="a new folder for this checkout's results")
    parser.add_argument("--config", nargs="*", default=[], metavar="KEY=VALUE", help="of the table")
    parser.add_argument("--smallest", action="store_true", help="only a few short runs in place of the table")
    arguments = parser.parse_args()
    if arguments.keep:
        if arguments.keep.exists():
            parser.error(f"--keep {arguments.keep}: exists, and the table is made from nothing; name a new folder")
        arguments.keep.mkdir(parents=True)
    if not arguments.smallest and not arguments.against:
        with tempfile.TemporaryDirectory() as folder:
            seconds, _, _ = cost("-n", "table1", "--config", "scale=paper", f"results={folder}/paper")
            print(f"DAG of the paper's Table 1  {seconds:7.1f} s    target 5 s      {seconds / 5:.2f} of it")
            everything(folder)
        analysis_start()
    if arguments.dag_only:
        return
    target, settings = "table1", arguments.config
    if arguments.smallest:
        target, settings = "runs_tuning", [*SMALLEST, f"set={json.dumps(TINY, separators=(',', ':'))}"]
    rows = [table(ROOT, arguments.cores, target, settings, arguments.keep and arguments.keep.resolve())]
    if arguments.against:
        rows.append(table(arguments.against.resolve(), arguments.cores, target, settings))
    for name, value in rows[0].items():
        ratio = f"   {rows[1][name]:9.2f} there   ratio {value / rows[1][name]:.2f}" if len(rows) > 1 else ""
        print(f"{target}, {name:<28}{value:9.2f}{ratio}")


if __name__ == "__main__":
    main()
