"""Seconds from the start of a command to its first result.

    python benchmarks/startup.py [--results FOLDER] [--rounds N]

"train" is `python -m bapo train` from the start of the process to the line that reports the first step. The probe of
the base model is switched off; the step itself (about 0.2 s on a quiet machine) is included.

Imports are the limit. On the machine where this was written torch and torch._dynamo, which every optimiser loads, take
0.9 s each, transformers' model classes 1.0 s, pandas 0.45 s. By default transformers would also load scikit-learn and
all of scipy, another second; `bapo/engines/shared/imports.py` keeps them out.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import world

IMPORTS = """
import sys, time
begun = time.perf_counter()
def lap(name):
    global begun
    print(f"{name}\\t{time.perf_counter() - begun}")
    begun = time.perf_counter()
import bapo.experiments.compose; lap("bapo.experiments.compose (Hydra, NumPy)")
import torch; lap("torch")
import torch._dynamo; lap("torch._dynamo (every optimiser loads it)")
if sys.argv[1] == "plain":
    import transformers.generation.utils, transformers.modeling_utils
else:
    from bapo.engines.shared.imports import load_transformers
    load_transformers()
from transformers import AutoTokenizer, Qwen2ForCausalLM; lap("transformers, " + sys.argv[1])
import pandas, pyarrow.parquet; lap("pandas and pyarrow, after that")
"""


def seconds_until(command: list[str], text: str) -> float:
    """Run ``command`` until it writes a line that contains ``text`` to its standard error (or ends, for "")."""
    begun = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        lines, seconds = [], None
        for line in process.stderr:
            lines.append(line)
            if text and text in line and seconds is None:
                seconds = time.perf_counter() - begun
    if process.returncode or (text and seconds is None):
        raise SystemExit(f"{' '.join(command)} failed:\n{''.join(lines)}")
    return seconds or time.perf_counter() - begun


def main() -> None:
    options = world.arguments(__doc__, rounds=5).parse_args()
    overrides = ["method=grpo", "train.steps=1", "probe.points=1", "probe.prompts=0", "checkpoint.every=100"]
    config = world.make(options.results)
    small = [] if options.results else list(world.SMALL)
    runs = Path(mkdtemp(prefix="bapo-benchmark-starts-"))
    shared = Path(config.paths.results)
    print(f"\n{world.machine()}")

    def train(number: int) -> list[str]:
        """Return the command of a new run, in a results folder that shares the problems and the base model."""
        results = runs / str(number)
        for part in ("data", f"{config.model.name}/base"):
            link = results / config.scale.name / config.task.name / part
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(shared.resolve() / config.scale.name / config.task.name / part)
        return [*bapo, "train", "tracking=none", f"paths.results={results}", *small, *overrides]

    bapo = [sys.executable, "-m", "bapo"]
    rows = {
        "python -m bapo --help": [seconds_until([*bapo, "--help"], "") for _ in range(options.rounds)],
        "python -m bapo train, first step": [seconds_until(train(n), "step 1/1") for n in range(options.rounds)],
    }
    for name, seconds in rows.items():
        print(f"{name:<44} {world.spread(np.array(seconds))} s")
    for kind in ("plain", "without scikit-learn and scipy"):
        laps: dict[str, list[float]] = {}
        for _ in range(options.rounds):
            done = subprocess.run([sys.executable, "-c", IMPORTS, kind], capture_output=True, text=True, check=True)
            for line in done.stdout.splitlines():
                name, value = line.split("\t")
                laps.setdefault(name, []).append(float(value))
        print(f"imports, transformers {kind}:")
        for name, values in laps.items():
            print(f"    {name:<40} {world.spread(np.array(values))} s")
        print(f"    {'together':<40} {world.spread(np.sum(list(laps.values()), 0))} s")


if __name__ == "__main__":
    main()
