"""A step through verl on CPU cores: verl's own GRPO, the suite's GRPO and BAPO, and the start by part.

    pip install -e '.[verl]'
    python benchmarks/verl_step.py [--results FOLDER] [--rounds N] [--steps N] [--smallest]

All sides draw 32 prompts x 8 responses a step from one trained base, by the same rollout and graders, and run in turns.
The first is verl's own trainer with its own advantages and loss (verl_job.py). A step's CPU time is that of all of
Ray's processes from one step's end to a later one's, over the steps between; other work on the machine changes it less
than wall time. The bar is 1.05 at equal rollouts and updates. BAPO makes more updates than GRPO: of what it stores and
of what it draws again. The suite's GRPO shows what the suite itself adds to verl's step.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import processes
import trained_base
import world
from verl_job import MARK

if TYPE_CHECKING:
    import pandas as pd

SIDES = {"verl": "grpo", "grpo": "grpo", "bapo": "bapo"}
PARTS = ("imports", "Ray", "workers and models", "step 1")


class Moment(NamedTuple):
    """Seconds since the start of a job: of wall time, and of CPU time by kind of process."""

    wall: float
    kinds: Counter[str]

    @property
    def cpu(self) -> float:
        return sum(self.kinds.values())


def moments(work: Path, side: str) -> dict[str, Moment]:
    """Run a job; return when it reached each of its marks. Raises SystemExit with its last lines."""
    words = [sys.executable, str(Path(__file__).with_name("verl_job.py")), str(work), side]
    begun, found, lines = time.perf_counter(), {}, []
    job = subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True
    )
    try:
        for line in job.stdout:
            lines.append(line)
            if name := line.partition(MARK)[2].strip():
                found[name] = Moment(time.perf_counter() - begun, cpu())
        if job.wait():
            raise SystemExit(f"{' '.join(words)} failed:\n{''.join(lines[-60:])}")
    finally:
        end(job)
    return found


def cpu() -> Counter[str]:
    """Return the CPU seconds of all that runs below this process, which adopts Ray's servers, by kind."""
    kinds: Counter[str] = Counter()
    for pid, seconds in processes.family(os.getpid()).items():
        if pid != os.getpid():
            kinds[processes.title(pid)] += seconds
    return kinds


def end(job: subprocess.Popen) -> None:
    """End what is left of a job, so that the next begins from nothing."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(job.pid, signal.SIGKILL)
    job.wait()
    for pid in set(processes.family(os.getpid())) - {os.getpid()}:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        while True:
            os.wait()


def per_step(found: dict[str, Moment]) -> Moment:
    """Return wall and CPU seconds of a step: the first warms up, in the last one a checkpoint may be written."""
    numbers = sorted(int(n) for name in found for n in re.findall(r"step (\d+)", name))
    first, last = found[f"step {numbers[0]}"], found[f"step {numbers[-1]}"]
    steps = numbers[-1] - numbers[0]
    kinds = {kind: (last.kinds[kind] - first.kinds[kind]) / steps for kind in last.kinds}
    return Moment((last.wall - first.wall) / steps, Counter(kinds))


def prepare(work: Path, results: Path, side: str, steps: int, smallest: bool, own: bool) -> Path:
    """Write a job's configuration; return its run's folder. own: data and base were made by ``trained_base``."""
    from omegaconf import OmegaConf

    from bapo.experiments.compose import compose_config
    from bapo.experiments.places import run_directory

    words = ["task=countdown", "engine=verl", "device=cpu", "tracking=none", f"method={SIDES[side]}"]
    words += [f"train.steps={steps}", "probe.points=1", "probe.prompts=0", "checkpoint.every=100000"]
    words += trained_base.overrides(smallest=smallest) if own else ()
    config = compose_config([*words, f"paths.results={results}"])
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    (work / "config.yaml").write_text(OmegaConf.to_yaml(config, resolve=True), encoding="utf-8")
    folder = run_directory(config)
    shutil.rmtree(folder, ignore_errors=True)
    return folder


def rows_of(folder: Path) -> pd.DataFrame:
    """Return the steps of a run of the suite that are measured."""
    from bapo.store.files import STEPS, read_table

    return read_table(folder / STEPS).iloc[1:]


def main() -> None:
    parser = world.arguments(__doc__, rounds=1)
    parser.add_argument("--steps", type=int, default=12, help="of each run; the first is not counted (default: 12)")
    options = parser.parse_args()
    processes.adopt()
    steps = 3 if options.smallest else options.steps
    made = trained_base.make(options.results, smallest=options.smallest)
    place = Path(tempfile.mkdtemp(prefix="bv-bench-", dir="/tmp"))  # short: Ray's sockets lie below
    source = Path(made.paths.results) / made.scale.name
    shutil.copytree(source / made.task.name / "data", place / "r" / f"{made.scale.name}-verl" / made.task.name / "data")
    base = Path(made.task.name, made.model.name, "base")
    shutil.copytree(source / base, place / "r" / f"{made.scale.name}-verl" / base)
    print(f"\n{world.machine()}")
    costs: dict[str, list[Moment]] = {side: [] for side in SIDES}
    starts: list[dict[str, Moment]] = []
    tables = {}
    for _ in range(options.rounds):
        for side in SIDES:
            folder = prepare(place / "w", place / "r", side, steps, options.smallest, not options.results)
            found = moments(place / "w", "verl" if side == "verl" else "suite")
            costs[side].append(per_step(found))
            starts.append(found)
            if side != "verl":
                tables[side] = rows_of(folder)
    shutil.rmtree(place)
    show(costs, tables)
    show_start(starts)


def middle(moments: list[Moment]) -> np.ndarray:
    """Return the medians of wall and CPU seconds."""
    return np.median([(moment.wall, moment.cpu) for moment in moments], axis=0)


def show(costs: dict[str, list[Moment]], tables: dict[str, pd.DataFrame]) -> None:
    """Print what a step of each side costs, its ratio to verl's own, by kind of process, and what the steps contain."""
    base = middle(costs["verl"])
    for side, found in costs.items():
        wall, used = middle(found)
        text = f"{side:<6} {used:6.2f} s of CPU time a step, ratio {used / base[1]:.2f}; wall {wall:6.2f} s, ratio "
        print(f"{text}{wall / base[0]:.2f}")
    for kind in sorted({kind for found in costs.values() for moment in found for kind in moment.kinds}):
        used = [np.median([moment.kinds[kind] for moment in found]) for found in costs.values()]
        if max(used) >= 0.01:
            print(f"    {kind:<40} {'   '.join(f'{side} {s:5.2f} s' for side, s in zip(costs, used, strict=True))}")
    for side, table in tables.items():
        updates, tokens = table["updates"].mean(), table["trained_tokens"].mean()
        rollouts = (table["fresh_rollouts"] + table["regenerated_rollouts"]).mean()
        print(f"{side:<6} a step: {rollouts:.0f} responses, {updates:.1f} updates of {tokens:.0f} tokens")


def show_start(starts: list[dict[str, Moment]]) -> None:
    """Print what each part of a start takes: medians over all sides, whose starts are alike."""
    before = np.zeros((len(starts), 2))
    for part in PARTS:
        at = np.array([(found[part].wall, found[part].cpu) for found in starts])
        wall, used = np.median(at - before, axis=0)
        print(f"start, to {part:<20} {used:6.2f} s of CPU time, {wall:6.2f} s")
        before = at


if __name__ == "__main__":
    main()
