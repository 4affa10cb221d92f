"""The numbers of every method, a base model and an evaluation: ``python benchmarks/golden.py [--write] [METHOD ...]``.

Each method trains 20 steps on Countdown from the suite's own base model: once undisturbed, once killed after a
checkpoint and resumed. Both must give the same tables, bit for bit. Their digests, in tests/golden.json, tell whether a
change of the code has left every number alone. They hold on the processor that wrote them. On another one sums are
rounded otherwise, so the first steps are compared as numbers. Every difference is named, and the exit status is 1.
``--write`` records instead: a changed number is a decision. Of named methods it leaves the others as they are, and it
leaves out their digests where another processor wrote the file. Three minutes on one core.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # children are forked

if TYPE_CHECKING:
    import pandas as pd
    from omegaconf import DictConfig

FILE = Path(__file__).resolve().parent.parent / "tests" / "golden.json"
#: the laptop's problems and base model; half a batch, so that it takes seconds
WORLD = (
    "tracking=none",
    "train.steps=20",
    "train.batch_size=16",
    "train.warmup_updates=4",
    "checkpoint.every=10",
    "probe.prompts=40",
    "probe.points=3",
    "evaluation.benchmarks=[cd34]",
    "evaluation.samples=4",
)
#: a base model that takes a second
BASE = ("base.source=train", "base.iterations=40", "data.split_sizes.base=2000")
#: columns of steps.parquet that another processor is compared by, in the first STEPS rows: after a few more a sum that
#: is rounded otherwise has drawn another token, and the runs are two runs
COLUMNS, STEPS = ("reward_mean", "loss", "gradient_norm", "entropy", "x1", "x2", "x3"), 3
RELATIVE, ABSOLUTE = 5e-3, 5e-4
#: columns of steps.parquet that were added to what is recorded and that no digest covers: they are made of the same
#: ratios as tv_x1 to tv_x3, and tests/engines compares them between engines and after a resume
BESIDE = ("clipped_x", "ess_x")


#: the paper's variants of BAPO, whose numbers are watched as those of a method are
VARIED = ("corrected", "fixed_0_2", "fixed_3_4", "gaussian", "m1", "m10", "mini", "uniform", "v10", "v20")


def methods() -> list[str]:
    """Return every method that a run can name, and VARIED."""
    from bapo.experiments.places import options

    return [*options("method"), *(f"bapo+{variant}" for variant in VARIED)]


def measured(names: Sequence[str], folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield name and numbers of each method, and of "base" and "evaluation" where all methods are asked for.

    folder: an empty one for results. Raises RuntimeError where a run fails, or is not the same when resumed.
    """
    from bapo.engines.torch.base import train_base
    from bapo.engines.torch.trainer import train
    from bapo.experiments.places import base_directory, run_directory
    from bapo.tasks.job import make_data

    start = configuration(folder)
    make_data(start)
    in_child(lambda: train_base(start))
    for name in names:
        config = configuration(folder, f"method={name}")
        run = run_directory(config)
        in_child(lambda config=config: train(config))
        undisturbed = of_run(run)
        shutil.move(run, run.with_name("undisturbed"))
        in_child(lambda config=config: train(config), until=run / "checkpoints" / "step_000010")
        in_child(lambda config=config: train(config))
        if of_run(run) != undisturbed:
            raise RuntimeError(f"{name}: a run that was killed and resumed has other numbers than an undisturbed one")
        yield name, undisturbed
    if list(names) == methods():
        base = configuration(folder / "trained", *BASE)
        in_child(lambda: train_base(base))
        yield "base", {"weights": sha256(base_directory(base) / "checkpoint" / "model.safetensors")}
        yield "evaluation", evaluation(configuration(folder, "method=grpo"))


def configuration(folder: Path, *overrides: str) -> DictConfig:
    from bapo.experiments.compose import compose_config

    return compose_config([*WORLD, f"paths.results={folder}", *overrides])


def of_run(run: Path) -> dict[str, Any]:
    """Return the digests of a finished run's tables, and the numbers of its first steps."""
    from bapo.store.files import STEPS as TABLE
    from bapo.store.files import TABLES, read_table

    tables = {name: read_table(run / name) for name in TABLES}
    first = tables[TABLE].head(STEPS)
    numbers = {c: [round(float(v), 9) for v in first[c]] for c in COLUMNS if c in first}
    return {name.partition(".")[0]: digest(table) for name, table in tables.items()} | {"first steps": numbers}


def evaluation(config: DictConfig) -> dict[str, Any]:
    """Evaluate a finished run. Returns the digest of its samples, and its accuracy."""
    from bapo.evaluation.run import evaluate
    from bapo.experiments.places import run_directory
    from bapo.store.files import SUMMARY, read_json, read_table

    run = run_directory(config)
    checkpoint = run / read_json(run / SUMMARY)["checkpoint"]
    in_child(lambda: evaluate(config, checkpoint, run / "eval"))
    scores = read_json(run / "eval" / SUMMARY)["benchmarks"]["cd34"]
    return {"samples": digest(read_table(run / "eval" / "cd34.parquet")), "accuracy": [round(scores["accuracy"], 9)]}


def digest(table: pd.DataFrame) -> str:
    """Return the SHA-256 of a table without its columns of seconds and BESIDE; floats to the last bit."""
    from bapo.store.files import TIME_COLUMNS

    kept = table[[c for c in table if not c.startswith((TIME_COLUMNS, *BESIDE))]]
    return hashlib.sha256(kept.to_csv().encode()).hexdigest()[:16]


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def in_child(job: Callable[[], object], until: Path | None = None) -> None:
    """Run a job in a fork of this process; ``until``: kill it as soon as this path exists.

    Raises RuntimeError where the job fails, or ends before it could be killed.
    """
    child = os.fork()
    if child == 0:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115 (of a process that ends here)
        try:
            job()
        except BaseException:
            traceback.print_exc(file=sys.stdout)
            sys.stdout.flush()
            os._exit(1)
        os._exit(0)
    status = None
    if until:
        while not until.exists() and status is None:
            time.sleep(0.001)
            ended, code = os.waitpid(child, os.WNOHANG)
            status = code if ended else None
        if status is None:
            os.kill(child, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1] if status is None else status)
    if status != (-signal.SIGKILL if until else 0):
        raise RuntimeError(f"a job ended with status {status}")


def differences(recorded: Mapping[str, Any], found: Mapping[str, Any], same_processor: bool) -> list[str]:
    """Name what differs: any recorded digest on the processor that wrote it, numbers beyond rounding on another."""
    lines = []
    for name, values in found.items():
        if name not in recorded:
            lines.append(f"{name}: not recorded")
            continue
        for key, value in values.items():
            known = recorded[name].get(key)
            if same_processor and known is not None and known != value:
                lines.append(f"{name}: {key}: {known} is now {value}")
            elif not same_processor and not isinstance(value, str) and not close(known, value):
                lines.append(f"{name}: {key}: {known} is now {value}, beyond rounding")
    return lines


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
    """Return what decides how sums are rounded: the processor, its vector instructions and torch."""
    import torch

    from bapo.store.provenance import hardware

    return f"{hardware()['processor']}, {torch.backends.cpu.get_cpu_capability()}, torch {torch.__version__}"


def main() -> int:
    from bapo.warm import modules

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("methods", nargs="*", metavar="METHOD", help="default: all of them, a base and an evaluation")
    parser.add_argument("--write", action="store_true", help="record the numbers instead of comparing them")
    arguments = parser.parse_args()
    modules.load()  # once, before the forks
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, values in measured(arguments.methods or methods(), Path(folder)):
            print(name, flush=True)
            found[name] = values
    recorded = json.loads(FILE.read_text(encoding="utf-8"))
    if arguments.write:
        if arguments.methods:
            if recorded["processor"] != processor():
                found = {name: {"first steps": values["first steps"]} for name, values in found.items()}
            found = recorded["numbers"] | found
        else:
            recorded["processor"] = processor()
        FILE.write_text(json.dumps(recorded | {"numbers": found}, indent=1) + "\n", encoding="utf-8")
        return 0
    lines = differences(recorded["numbers"], found, recorded["processor"] == processor())
    print("\n".join(lines) or "every number is as recorded")
    return bool(lines)


if __name__ == "__main__":
    sys.exit(main())
