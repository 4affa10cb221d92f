"""Evaluates the base model and every kept checkpoint of a run, on the benchmarks and the validation problems.

Each checkpoint is evaluated as a finished run is (:mod:`bapo.evaluation.run`), with ``evaluation.curve_samples``
samples a problem, into ``folder/step_000025``, so that an interrupted curve goes on with the next checkpoint. Step 0 is
the base model. ``folder/<benchmark>.parquet`` then holds one row a step and problem, with the number of correct
samples. ``summary.json``, written last, holds the accuracies and the fingerprints of the other files.

With ``evaluation.backend=torch`` the samples of the last checkpoint are the first ones of the run's own evaluation.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING

from bapo.errors import UserError
from bapo.evaluation import run as evaluation
from bapo.evaluation.checkpoints import checkpoint_digest, revision_of
from bapo.experiments import budgets
from bapo.experiments.identity import identity_of_curve
from bapo.experiments.places import base_directory, run_directory
from bapo.experiments.schema import Config
from bapo.store.files import SUMMARY, Json, fingerprints, read_json, read_table, write_json, write_parquet
from bapo.store.lock import remade
from bapo.store.provenance import peak_memory

if TYPE_CHECKING:
    import pandas as pd

FOLDER = "curve"


def evaluate_curve(config: Config, run: Path, folder: Path) -> Json:
    """Evaluate the base model and the kept checkpoints of a finished run. Returns the summary.

    run: its directory; folder: where the results go. Raises UserError if a checkpoint or the data is missing or
    damaged, and as the evaluation of a checkpoint does.
    """
    from bapo.engines.shared.models import pretrained

    names = splits(config)
    checkpoints = {0: pretrained.start_of(config), **kept_checkpoints(run, config.checkpoint.every)}
    digests = {step: checkpoint_digest(path, revision_of(config, path)) for step, path in checkpoints.items()}
    identity = identity_of_curve(config, digests, names)
    previous = evaluation.finished_summary(folder, identity, curve=True)
    if previous is not None:
        return previous
    with remade(folder, identity):
        start = time.monotonic()
        folders = {step: folder / f"step_{step:06d}" for step in checkpoints}
        for step, path in checkpoints.items():
            _evaluate(config, names, path, folders[step])
        frames = {name: _counts(name, folders) for name in names}
        for name, frame in frames.items():
            write_parquet(folder / f"{name}.parquet", frame)
        summary = {
            "identity": identity,
            "steps": list(checkpoints),
            "checkpoints": {str(step): fingerprint for step, fingerprint in digests.items()},
            "validation": config.evaluation.validation,
            "benchmarks": {name: _summarise(frame) for name, frame in frames.items()},
            "seconds": round(time.monotonic() - start, 3),
            "peak_memory_bytes": peak_memory(),
            "files": fingerprints(folder, [f"{name}.parquet" for name in names]),
        }
        write_json(folder / SUMMARY, summary)
    return summary


def main(config: Config, base: bool, along: bool, checkpoint: Path | None, out: Path | None) -> None:
    """Evaluate a finished run, its curve, its base model or a checkpoint, and print the accuracies: ``bapo evaluate``.

    Args:
        config: of the run
        base: evaluate the base model instead of the run
        along: evaluate the base model and every kept checkpoint of the run
        checkpoint: a folder to evaluate instead
        out: where the results go, by default in the folder of the run or the checkpoint

    Raises UserError unless the run is finished and has this configuration, and as the evaluation does.
    """
    from bapo.engines.shared.models import pretrained

    model: Path | str
    if checkpoint:
        home = model = checkpoint
    elif base:
        home, model = base_directory(config), pretrained.start_of(config)
    else:
        home = run_directory(config)
        if not (home / SUMMARY).exists():
            raise UserError(f"{home}: no finished run of this configuration; run `bapo train` with the same keys")
        trained = read_json(home / SUMMARY)
        if trained.get("identity") != budgets.identity(config):
            cure = f"correct the command, or delete {home / SUMMARY} and run the same command again, which trains it"
            raise UserError(f"{home}: trained under another configuration; {cure}")
        model = home / trained["checkpoint"]
    if along:
        summary = evaluate_curve(config, home, out or home / FOLDER)
    else:
        summary = evaluation.evaluate(config, model, out or home / "eval")
    for name, result in summary["benchmarks"].items():
        print(f"{name}: accuracy {result['accuracy']}", file=sys.stderr)


def splits(config: Config) -> list[str]:
    """Return the benchmarks and the split of the validation problems. Raises UserError where there is no such split."""
    e = config.evaluation
    named = [
        *(("benchmarks", name) for name in e.benchmarks),
        *([("validation", e.validation)] if e.validation else []),
    ]
    for key, name in named:
        evaluation.require_split(config, f"evaluation.{key}", name)
    return list(dict.fromkeys(name for _, name in named))


def kept_checkpoints(run: Path, every: int) -> dict[int, Path]:
    """Return {step: folder} of a finished run's checkpoints at every ``every`` steps and at the end.

    Others, which an interruption leaves behind, are left out, so that all runs have the same steps. Raises UserError
    where the run has no summary, and for a checkpoint that it does not have.
    """
    summary = read_json(run / SUMMARY)
    last, final = int(summary["steps"]), run / summary["checkpoint"]
    folders = {step: final.with_name(f"step_{step:06d}") for step in range(every, last, every)} | {last: final}
    if missing := [folder for folder in folders.values() if not folder.is_dir()]:
        cure = "put its checkpoint.every back, or delete the run and train it again"
        raise UserError(f"{missing[0]}: no such checkpoint with checkpoint.every={every}; {cure}")
    return folders


def _evaluate(config: Config, names: Sequence[str], checkpoint: Path | str, folder: Path) -> None:
    """Evaluate one checkpoint; with vLLM in a new process, as its engine keeps its memory until the process ends."""
    config = config.copy()
    config.evaluation.samples, config.evaluation.benchmarks = config.evaluation.curve_samples, list(names)
    if config.evaluation.backend == "torch":
        evaluation.evaluate(config, checkpoint, folder)
        return
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        pool.submit(evaluation.evaluate, config, checkpoint, folder).result()


def _counts(name: str, folders: dict[int, Path]) -> pd.DataFrame:
    """Return step, problem_id, correct and samples of one benchmark. folders: of the evaluations, by step."""
    import pandas as pd

    tables = []
    for step, folder in folders.items():
        rows = read_table(folder / f"{name}.parquet", ["problem_id", "correct"])
        counts = rows.groupby("problem_id", sort=False)["correct"].agg(["sum", "size"]).reset_index()
        counts.insert(0, "step", step)
        tables.append(counts.set_axis(["step", "problem_id", "correct", "samples"], axis=1))
    types = {"step": "int32", "correct": "int16", "samples": "int16"}
    return pd.concat(tables, ignore_index=True).astype(types)


def _summarise(frame: pd.DataFrame) -> Json:
    samples = int(frame["samples"].iloc[0])
    means = frame.groupby("step")["correct"].mean() / samples
    return {
        "problems": int(frame["problem_id"].nunique()),
        "samples": samples,
        "accuracy": {str(step): float(mean) for step, mean in means.items()},
    }
