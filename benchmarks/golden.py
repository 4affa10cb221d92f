"""The numbers of every method, a base model and an evaluation: ``python benchmarks/golden.py [--write] [NAME ...]``.

Each method trains 20 steps on Countdown from the suite's own base model, and two of them on the other tasks. Then a
copy of the run goes on from its checkpoint of step 10. Both must give the same tables, bit for bit. Their digests, in
tests/golden.json, tell whether a change of the code has left every number alone. They hold on the processor that wrote
them, and the file has those of each processor that wrote some. On any other one sums are rounded otherwise, so the
first steps are compared as numbers. Every difference is named, and the exit status is 1. ``--write`` records instead: a
changed number is a decision, and takes away what other processors wrote of it. Five minutes on one core.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import math
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # torch reads it when it is imported

if TYPE_CHECKING:
    import pandas as pd

    from bapo.experiments.schema import Config

FILE = Path(__file__).resolve().parent.parent / "tests" / "golden.json"
#: the laptop's problems and base models; half a batch, so that it takes seconds
WORLD = (
    "tracking=none",
    "train.steps=20",
    "train.batch_size=16",
    "train.warmup_updates=4",
    "checkpoint.every=10",
    "checkpoint.keep_state=true",
    "probe.prompts=40",
    "probe.points=3",
    "evaluation.samples=4",
)
#: a base model that takes a second
BASE = ("base.source=train", "base.iterations=40", "data.split_sizes.base=2000")
#: columns of steps.parquet that another processor is compared by, in the first STEPS rows: after a few more a sum that
#: is rounded otherwise has drawn another token, and the runs are two runs
COLUMNS, STEPS = ("reward_mean", "loss", "gradient_norm", "entropy", "x1", "x2", "x3"), 3
RELATIVE, ABSOLUTE = 5e-3, 5e-4
#: columns of steps.parquet that were added to what is recorded and that no digest covers: they are made of the same
#: ratios as tv_x1 to tv_x3, or of the same lengths, and tests/engines compares them between engines and after a resume
BESIDE = ("clipped_", "ess_x", "ratio_", "cut_off")


#: the paper's variants of BAPO, whose numbers are watched as those of a method are
VARIED = ("corrected", "fixed_0_2", "fixed_3_4", "gaussian", "m1", "m10", "mini", "uniform", "v10", "v20")
#: the tasks beside Countdown, and the methods whose numbers are watched there
ELSEWHERE = [f"{task}/{method}" for task in ("mathematics", "geometry") for method in ("grpo", "bapo")]


def names() -> list[str]:
    """Return what is watched: every method that a run can name, VARIED, ELSEWHERE, a base model and an evaluation."""
    from bapo.experiments.places import options

    return [*options("method"), *(f"bapo+{variant}" for variant in VARIED), *ELSEWHERE, "base", "evaluation"]


def world(name: str) -> list[str]:
    """Return the overrides of ``name`` without its method."""
    task, _, _ = name.rpartition("/")
    return [*WORLD, f"task={task}"] if task else [*WORLD, "evaluation.benchmarks=[cd34]"]


def prepare(name: str, folder: Path) -> None:
    """Make the data and the base model of ``name`` in a folder for results."""
    from bapo.engines.torch.base_model import train_base
    from bapo.experiments.compose import compose_config
    from bapo.tasks.job import make_data

    config = compose_config([*world(name), f"paths.results={folder}"])
    make_data(config)
    train_base(config)


def measured(name: str, folder: Path) -> dict[str, Any]:
    """Return the numbers of ``name``. folder: results, prepared. Raises RuntimeError where a resumed run has others."""
    from bapo.engines.torch.base_model import train_base
    from bapo.engines.torch.trainer import train
    from bapo.experiments.compose import compose_config
    from bapo.experiments.places import base_directory, run_directory
    from bapo.store.files import SUMMARY, TABLES

    if name == "base":
        base = compose_config([*world(name), f"paths.results={folder / 'trained'}", *BASE])
        train_base(base)
        return {"weights": sha256(base_directory(base) / "checkpoint" / "model.safetensors")}
    method = "grpo" if name == "evaluation" else name.rpartition("/")[2]
    words = [*world(name), f"paths.results={folder}", f"method={method}"]
    config = compose_config(words)
    train(config)
    if name == "evaluation":
        return evaluation(config)
    run = run_directory(config)
    undisturbed = of_run(run)
    again = compose_config([*words, f"method.name={config.method.name}_resumed"])
    copy = shutil.copytree(run, run_directory(again))
    shutil.rmtree(copy / "checkpoints" / "step_000020")
    for file in (SUMMARY, *TABLES):
        (copy / file).unlink()
    train(again)
    if of_run(copy) != undisturbed:
        raise RuntimeError(f"{name}: a resumed run has other numbers than an undisturbed one")
    return undisturbed


def of_run(run: Path) -> dict[str, Any]:
    """Return the digests of a finished run's tables, and the numbers of its first steps."""
    from bapo.store.files import STEPS as TABLE
    from bapo.store.files import TABLES, read_table

    tables = {name: read_table(run / name) for name in TABLES}
    first = tables[TABLE].head(STEPS)
    numbers = {c: [round(float(v), 9) for v in first[c]] for c in COLUMNS if c in first}
    return {name.partition(".")[0]: digest(table) for name, table in tables.items()} | {"first steps": numbers}


def evaluation(config: Config) -> dict[str, Any]:
    """Evaluate a finished run. Returns the digest of its samples, and its accuracy."""
    from bapo.evaluation.run import evaluate
    from bapo.experiments.places import run_directory
    from bapo.store.files import SUMMARY, read_json, read_table

    run = run_directory(config)
    checkpoint = run / read_json(run / SUMMARY)["checkpoint"]
    evaluate(config, checkpoint, run / "eval")
    scores = read_json(run / "eval" / SUMMARY)["benchmarks"]["cd34"]
    return {"samples": digest(read_table(run / "eval" / "cd34.parquet")), "accuracy": [round(scores["accuracy"], 9)]}


def digest(table: pd.DataFrame) -> str:
    """Return the SHA-256 of a table without its columns of seconds and BESIDE; floats to the last bit."""
    from bapo.store.files import TIME_COLUMNS

    kept = table[[c for c in table if not c.startswith((TIME_COLUMNS, *BESIDE))]]
    return hashlib.sha256(kept.to_csv().encode()).hexdigest()[:16]


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def differences(recorded: Mapping[str, Any], name: str, found: Mapping[str, Any]) -> list[str]:
    """Name what differs in ``name``: any digest that this processor wrote, numbers beyond rounding on any."""
    known = recorded["numbers"].get(name)
    if known is None:
        return [f"{name}: not recorded"]
    digests, numbers = split(found)
    theirs = digests_of(recorded, processor()).get(name, {})
    lines = [f"{name}: {key}: {theirs[key]} is now {digests[key]}" for key in theirs if theirs[key] != digests[key]]
    lines += [
        f"{name}: {key}: {known.get(key)} is now {value}, beyond rounding"
        for key, value in numbers.items()
        if key not in known or not close(known[key], value)
    ]
    return lines


def split(found: Mapping[str, Any]) -> tuple[dict[str, str], dict[str, Any]]:
    """Return the digests among what was measured, and the numbers."""
    digests = {key: value for key, value in found.items() if isinstance(value, str)}
    return digests, {key: value for key, value in found.items() if key not in digests}


def digests_of(recorded: Mapping[str, Any], processor: str) -> dict[str, Any]:
    """Return the digests of the longest key that the processor's name begins with."""
    keys = [key for key in recorded["digests"] if processor.startswith(key)]
    return recorded["digests"][max(keys, key=len)] if keys else {}


def record(recorded: dict[str, Any], name: str, found: Mapping[str, Any]) -> None:
    """Write down what was measured; numbers that are the recorded ones within rounding stay."""
    digests, numbers = split(found)
    if not close(recorded["numbers"].get(name, {}), numbers):
        recorded["numbers"][name] = numbers
        for others in recorded["digests"].values():
            others.pop(name, None)
    recorded["digests"].setdefault(processor(), {})[name] = digests


def close(known: Any, value: Any) -> bool:
    """Return whether two trees of numbers are equal within rounding."""
    if isinstance(value, Mapping):
        return (
            isinstance(known, Mapping)
            and known.keys() == value.keys()
            and all(close(known[k], value[k]) for k in value)
        )
    if isinstance(value, list):
        return isinstance(known, list) and len(known) == len(value) and all(map(close, known, value))
    both_nan = math.isnan(known) and math.isnan(value)
    return both_nan or math.isclose(known, value, rel_tol=RELATIVE, abs_tol=ABSOLUTE)


def processor() -> str:
    """Return what decides how sums are rounded: vector instructions, torch, and the processor with its generation."""
    import torch

    from bapo.store.provenance import hardware

    known = Path("/proc/cpuinfo")
    said = known.read_text(encoding="utf-8") if known.exists() else ""
    found = [re.search(rf"^{key}\s*: (\d+)$", said, re.MULTILINE) for key in ("cpu family", "model")]
    generation = "-".join(match[1] for match in found if match)
    return (
        f"{hardware()['processor']}, {torch.backends.cpu.get_cpu_capability()}, torch {torch.__version__}, {generation}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="a method, TASK/METHOD, base or evaluation; default: all of them"
    )
    parser.add_argument("--write", action="store_true", help="record the numbers instead of comparing them")
    arguments = parser.parse_args()
    recorded = json.loads(FILE.read_text(encoding="utf-8"))
    lines = []
    with tempfile.TemporaryDirectory() as folder:
        for name in arguments.names or names():
            print(name, flush=True)
            with open(os.devnull, "w") as nothing, contextlib.redirect_stderr(nothing):
                prepare(name, Path(folder))
                found = measured(name, Path(folder))
            lines += [] if arguments.write else differences(recorded, name, found)
            if arguments.write:
                record(recorded, name, found)
    if arguments.write:
        FILE.write_text(json.dumps(recorded, indent=1) + "\n", encoding="utf-8")
    else:
        print("\n".join(lines) or "every number is as recorded")
    return bool(lines)


if __name__ == "__main__":
    sys.exit(main())
