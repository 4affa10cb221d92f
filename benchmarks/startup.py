"""CPU seconds of a training job to its first step: ``python -m bapo train`` against a child of the warm process; then
the parts of such a start, and the seconds to the first lines of ``snakemake --cores 2 table1``.

    python benchmarks/startup.py [--results FOLDER] [--rounds N] [--smallest]

Both sides train one step with the probe of the base model switched off, in turns, so each number holds the whole job:
start, one step (about 0.2 s on a quiet machine), a checkpoint, the end. Tracking is the default, wandb offline, whose
own processes count too. The warm process imports once, before the first round. The target is 1.5 s of CPU time; what
limits a child is wandb's start, loading two models and the step itself. A line of progress within 2 s is the target of
the command; its first job is announced when all jobs are known.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import trained_base
import world
from processes import cost, family

from bapo.warm import launch

ROOT = Path(__file__).resolve().parent.parent
#: what a user sees of Snakemake at last, and how it begins
LINES = {"first line": "", "first job": "Job "}


def main() -> None:
    options = world.arguments(__doc__, rounds=5).parse_args()
    rounds = 1 if options.smallest else options.rounds
    words = ["method=grpo", "train.steps=1", "probe.points=1", "probe.prompts=0", "checkpoint.every=100"]
    small = () if options.results else trained_base.overrides(smallest=options.smallest)
    config = trained_base.make(options.results, smallest=options.smallest)
    folder, shared = Path(tempfile.mkdtemp(prefix="bapo-benchmark-starts-")), Path(config.paths.results).resolve()
    print(f"\n{world.machine()}")
    os.environ |= {f"{name}_NUM_THREADS": "1" for name in launch.THREADS} | {"VECLIB_MAXIMUM_THREADS": "1"}
    os.chdir(folder)  # where the warm process listens

    def train(number: int, side: str) -> list[str]:
        """Return the words of a new run, in a results folder that shares the problems and the base model."""
        results = folder / f"{side}{number}"
        for part in ("data", f"{config.model.name}/base"):
            link = results / config.scale.name / config.task.name / part
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(shared / config.scale.name / config.task.name / part)
        return ["-m", "bapo", "train", f"paths.results={results}", *small, *words]

    def served() -> float:
        """Return the CPU seconds of the warm process and of its children that have ended."""
        fields = Path(f"/proc/{server.pid}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")

    sides: dict[str, list[tuple[float, float, float]]] = {"plain": [], "warm": []}
    server = launch.start() if launch.supported() else None
    if server is None:
        raise SystemExit("no warm process on this system: Linux without a GPU only")
    with server:
        for number in range(rounds + 1):
            plain = cost([sys.executable, *train(number, "plain")], folder)
            before = served()
            warm = cost([*launch.command(), *train(number, "warm")], folder)
            time.sleep(0.2)  # for the child to be waited for
            if "starts by itself" in warm.output:
                raise SystemExit(warm.output)
            if number:
                sides["plain"].append((plain.cpu, plain.wall, 0.0))
                sides["warm"].append((warm.cpu + served() - before, warm.wall, warm.cpu))
            else:
                print(f"imports of the warm process, with a first run: {served():.2f} s of CPU time, once")
        server.stdin.close()
    base = np.array(sides["plain"])
    for name, rows in sides.items():
        cpu, wall, client = np.array(rows).T
        note = f", of which the client {np.median(client):.2f} s" if name == "warm" else ""
        print(f"{name:<6} CPU {world.spread(cpu)} s, wall {world.spread(wall)} s{note}")
        print(f"{name:<6} ratio of CPU time {world.spread(cpu / base[:, 0])}")
    show_parts([*train(0, "parts")[3:], "tracking=wandb"], rounds)
    show_lines(folder / "table", rounds)


def show_parts(words: list[str], rounds: int) -> None:
    """Print the parts of a process's start, medians."""
    command = [sys.executable, str(Path(__file__).with_name("first_step.py")), *words]
    found = []
    for _ in range(rounds):
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        found.append(json.loads(done.stdout.splitlines()[-1]))
    for part in found[0]:
        print(f"start, {part:<22}{np.median([f[part] for f in found]):6.2f} s of CPU time")


def show_lines(folder: Path, rounds: int) -> None:
    """Print when the command's first lines come, in a folder without results; it is ended at its first job."""
    folder.mkdir()
    moments = [lines(folder) for _ in range(rounds + 1)][1:]  # the first leaves its configurations to the others
    for name in LINES:
        wall, used = np.median([found[name] for found in moments], axis=0)
        print(f"snakemake table1, {name:<11}{wall:6.2f} s, {used:6.2f} s of CPU time")


def lines(folder: Path) -> dict[str, tuple[float, float]]:
    """Return wall and CPU seconds of one command to each of LINES. The workflow's profile is read as everywhere."""
    words = ["-s", str(ROOT / "Snakefile"), "--workflow-profile", str(ROOT / "workflows" / "profiles" / "default")]
    command = [sys.executable, "-m", "snakemake", *words, "--cores", "2", "table1"]
    command += ["--config", "results=none", "progress=plain"]
    begun, found = time.perf_counter(), {}
    process = subprocess.Popen(
        command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    for line in process.stderr:
        for name, start in LINES.items():
            if name not in found and line.startswith(start):
                found[name] = (time.perf_counter() - begun, family(process.pid)[process.pid])
        if len(found) == len(LINES):
            break
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    process.stderr.close()
    return found


if __name__ == "__main__":
    main()
