"""Evaluates one checkpoint on every benchmark of its configuration, through lm-eval.

``folder/<benchmark>.parquet`` holds one row a problem and sample, ``folder/lm_eval.json`` lm-eval's own results, and
``folder/summary.json``, written last, the accuracies and the fingerprints of the other files. A benchmark that is
finished and intact is not evaluated again.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import logging
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from bapo import tasks
from bapo.engines.shared import records
from bapo.errors import UserError
from bapo.evaluation import backends, instruments
from bapo.evaluation.checkpoints import check_prompts, checkpoint_digest, revision_of
from bapo.evaluation.scores import summarise
from bapo.experiments.identity import identity_of_evaluation
from bapo.experiments.schema import Config
from bapo.gpu import environment
from bapo.graders.verdict import OVERLOADED
from bapo.store import files as store
from bapo.store.files import STEPS, SUMMARY, Json, read_json, write_json
from bapo.store.lock import remade
from bapo.store.progress import Progress
from bapo.store.provenance import peak_memory
from bapo.tasks.job import data_folder

if TYPE_CHECKING:  # torch, pandas and lm-eval are slow to import; a finished evaluation needs none of them
    import pandas as pd
    from lm_eval.api.model import LM

    from bapo.evaluation.tasks import Benchmark

RESULTS = "lm_eval.json"


def evaluate(config: Config, checkpoint: Path | str, folder: Path) -> Json:
    """Sample every problem ``evaluation.samples`` times, grade the responses and write the tables.

    Args:
        config: of the run
        checkpoint: a Hugging Face folder, or (as text) a name on the hub, whose commit is ``model.revision``
        folder: where the results go

    Returns the summary. Raises UserError if the checkpoint or the data is missing or damaged, a prompt does not fit,
    the backend is not installed, or ``folder`` holds something else than an evaluation.
    """
    names = config.evaluation.benchmarks
    if not names:
        raise UserError("evaluation.benchmarks is empty: name at least one benchmark")
    for name in names:
        require_split(config, "evaluation.benchmarks", name)
    fingerprint = checkpoint_digest(checkpoint, revision_of(config, checkpoint))
    identity = identity_of_evaluation(config, fingerprint)
    previous = finished_summary(folder, identity)
    if previous is not None:
        return previous
    if config.evaluation.backend == "vllm":
        environment.require_vllm("evaluation.backend=vllm", backends.INSTALL)
    data_folder(config)  # what is missing is told before the old summary is deleted
    with remade(folder, identity):
        stored = {name: _stored_table(folder, name, identity) for name in names}
        frames = {name: frame for name, frame in stored.items() if frame is not None}
        if missing := [name for name in names if name not in frames]:
            frames |= _sample(config, checkpoint, folder, identity, missing)
        write_json(folder / RESULTS, _merge([json.loads(frames[n].attrs["lm_eval"]) for n in names]))
        overloaded = sum(int((frame["reason"] == OVERLOADED).sum()) for frame in frames.values())
        records.warn(overloaded, str(folder))
        on_hub = isinstance(checkpoint, str)
        summary = {
            "identity": identity,
            "checkpoint": fingerprint if on_hub else os.path.relpath(checkpoint, folder.parent),
            "checkpoint_sha256": None if on_hub else fingerprint,
            "benchmarks": {name: summarise(frames[name]) for name in names},
            "overloaded": overloaded,
            "seconds": round(sum(frames[n].attrs["seconds"] for n in names), 3),
            "peak_memory_bytes": peak_memory(),
            "files": store.fingerprints(folder, [*(f"{n}.parquet" for n in names), RESULTS]),
        }
        write_json(folder / SUMMARY, summary)
    return summary


# ------------------------------------------------------------------------------------------------ what is there


def require_split(config: Config, key: str, name: str) -> None:
    """Raise UserError naming the key where the data has no split ``name`` with problems to evaluate."""
    allowed = [split for split in config.data.split_sizes if split != "base"]
    if name not in allowed:
        raise UserError(f"{key}={name}: no such split; allowed: {', '.join(allowed)}")


def finished_summary(folder: Path, identity: str, curve: bool = False) -> Json | None:
    """Return the summary of a finished evaluation of this identity, or None.

    Damaged files are deleted, after which the evaluation counts as unfinished. curve: of a curve. Raises UserError
    where the folder holds a run, a base model or problems, which an evaluation would replace, or the other kind of it.
    """
    summary = read_json(folder / SUMMARY) if (folder / SUMMARY).exists() else None
    of_run = any((folder / name).exists() for name in ("checkpoints", STEPS))
    if of_run or (summary is not None and ("benchmarks" not in summary or ("steps" in summary) != curve)):
        kind = "a curve" if curve else "an evaluation"
        raise UserError(f"{folder}: something other than {kind} is here; name another folder")
    if summary is None:
        return None
    if summary.get("identity") != identity:
        return None
    damaged = [name for name, entry in summary["files"].items() if store.damaged_files(folder, {name: entry})]
    for name in damaged:
        print(f"warning: {folder / name} is missing or damaged; what it held is evaluated again", file=sys.stderr)
        (folder / name).unlink(missing_ok=True)
    return None if damaged else summary


def _stored_table(folder: Path, name: str, identity: str) -> pd.DataFrame | None:
    """Return a benchmark's table that an evaluation of this identity has written already, or None."""
    with contextlib.suppress(UserError):
        frame = store.read_table(folder / f"{name}.parquet")
        return frame if frame.attrs.get("identity") == identity else None
    return None


# ------------------------------------------------------------------------------------------------ sampling


def _sample(
    config: Config, checkpoint: Path | str, folder: Path, identity: str, names: list[str]
) -> dict[str, pd.DataFrame]:
    """Evaluate the named benchmarks one after the other, and write each table as soon as it is complete."""
    from transformers.utils import logging as transformers_logging

    from bapo.engines.shared.models import pretrained

    logging.getLogger("lm_eval").setLevel(logging.WARNING)
    transformers_logging.disable_progress_bar()
    checkpoint = pretrained.at_hand(config, checkpoint)
    benchmarks = [load_benchmark(config, name, checkpoint) for name in names]
    for benchmark in benchmarks:
        instruments.require(config.evaluation, config.task.name, benchmark.problems[0])
    check_prompts(config, checkpoint, benchmarks)
    responses = sum(len(b.problems) for b in benchmarks) * config.evaluation.samples
    progress = Progress("evaluate " + "/".join(folder.absolute().parent.parts[-2:]), responses, unit="sample")
    model = backends.build(config, checkpoint, progress.add, images=max(b.images for b in benchmarks))
    frames = {}
    for benchmark in benchmarks:
        name = benchmark.task_name
        progress.set_postfix_str(name, refresh=False)
        start = time.monotonic()
        results, frame = run_benchmark(model, benchmark)
        frame.insert(6, "seed", config.evaluation.seed)
        if config.evaluation.second_grader:
            golds = {p.id: json.loads(p.ground_truth)["answers"] for p in benchmark.problems}
            rows = zip(frame["response"], frame["problem_id"], strict=True)
            second = [instruments.second_verdict(text, golds[name]) for text, name in rows]
            records.warn(sum(verdict.reason == OVERLOADED for verdict in second), f"{folder}, second grader")
            frame["second_correct"] = [None if v.reason == OVERLOADED else v.correct for v in second]
        frame.attrs = {  # for the summary
            "identity": identity,
            "seconds": time.monotonic() - start,
            "lm_eval": json.dumps(results, default=str),  # as text: pandas copies attrs with every slice
        }
        store.write_parquet(folder / f"{name}.parquet", frame)
        frames[name] = frame
    return frames


def load_benchmark(config: Config, name: str, checkpoint: Path | str) -> Benchmark:
    """Return a benchmark as an lm-eval task, with the data job's problems. Raises UserError where they are missing."""
    from bapo.evaluation.tasks import Benchmark

    e = config.evaluation
    grader = instruments.Authors(config.task.name) if e.grader == "authors" else tasks.get(config.task.name)
    benchmark = Benchmark(
        name,
        data_folder(config) / f"{name}.parquet",
        grader,
        samples=e.samples,
        temperature=e.temperature,
        top_p=e.top_p,
        top_k=config.sampling.top_k,
        max_tokens=config.sampling.max_response_tokens,
        generation=backends.arguments(config, checkpoint),
    )
    benchmark.trusts_backend = True
    return benchmark


def run_benchmark(model: LM, benchmark: Benchmark, limit: int | None = None) -> tuple[Json, pd.DataFrame]:
    """Return lm-eval's results of one benchmark, and a table with a row for each sample.

    model: an lm-eval model that generates, which counts the tokens of a response unless the response tells them itself;
    limit: the number of problems, by default all.
    """
    import pandas as pd
    from lm_eval import evaluate as lm_evaluate

    from bapo.engines.shared.responses import Response

    benchmark.graded.clear()
    # simple_evaluate would also seed all global generators and run `pip list`. bootstrap_iters only switches standard
    # errors on, which are in closed form for means, without resampling
    results = lm_evaluate(
        model,
        {"tasks": {benchmark.task_name: benchmark}},
        limit=limit,
        bootstrap_iters=1,
        log_samples=False,
        apply_chat_template=True,
        fewshot_as_multiturn=True,
    )

    def length(text: str) -> int:
        return text.tokens if isinstance(text, Response) else len(model.tok_encode(text, add_special_tokens=False))

    rows = [
        (name, sample, verdict.correct, verdict.parsed, verdict.reason, length(text), str(text))
        for name, responses in benchmark.graded.items()
        for sample, (text, verdict) in enumerate(responses)
    ]
    columns = ["problem_id", "sample", "correct", "parsed", "reason", "tokens", "response"]
    return dict(results), pd.DataFrame(rows, columns=columns)


def _merge(results: list[Json]) -> Json:
    """Merge lm-eval's results of single benchmarks into the form of one evaluation."""
    content: Json = {"lm_eval_version": importlib.metadata.version("lm_eval")}
    for result in results:
        for key, value in result.items():
            content.setdefault(key, {}).update(value)
    return content
