"""Evaluate one checkpoint on every benchmark of its configuration, through lm-eval.

``folder/<benchmark>.parquet`` holds one row a problem and sample, ``folder/lm_eval.json`` lm-eval's own results, and
``folder/summary.json``, written last, the accuracies and the fingerprints of the other files. A benchmark that is
finished and intact is not done again.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import logging
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig

from bapo import tasks
from bapo.engines.shared import records
from bapo.errors import UserError
from bapo.evaluation import backends
from bapo.evaluation.checkpoints import checkpoint_digest, locate
from bapo.evaluation.prompts import revision_of
from bapo.evaluation.summary import not_graded, summarise
from bapo.experiments.identity import identity_of_evaluation
from bapo.store.files import (
    SUMMARY,
    damaged_files,
    fingerprints,
    read_json,
    read_table,
    require_space,
    write_json,
    write_parquet,
)
from bapo.store.lock import remade
from bapo.store.progress import Progress
from bapo.store.provenance import peak_memory
from bapo.tasks.job import data_folder, golds_checked

if TYPE_CHECKING:  # torch, pandas and lm-eval are slow to import; a finished evaluation needs none of them
    import pandas as pd

    from bapo.evaluation.tasks import Benchmark

RESULTS = "lm_eval.json"


def evaluate(config: DictConfig, checkpoint: Path | str, folder: Path) -> dict[str, Any]:
    """Sample every problem ``evaluation.samples`` times, grade, write the tables; returns the summary.

    checkpoint: a Hugging Face folder, or (as text) a name on the hub, whose commit is ``model.revision``; with
    ``evaluation.backend=server`` the one that the server serves. folder: where the results go. Raises UserError if
    the checkpoint or the data is missing or damaged, a prompt does not fit, the backend fails, or the samples do not
    differ.
    """
    checkpoint, folder = locate(checkpoint), Path(folder)
    _check(config)
    fingerprint = checkpoint_digest(checkpoint, revision_of(config, checkpoint))
    identity = identity_of_evaluation(config, fingerprint)
    before = finished(folder, identity)
    if before is not None:
        return before
    backends.check(config)
    with remade(folder, identity):
        names = list(config.evaluation.benchmarks)
        frames = {name: intact(folder, name, identity) for name in names}
        pending = [name for name in names if frames[name] is None]
        if pending:
            frames |= _sample(config, checkpoint, folder, identity, pending)
        write_json(folder / RESULTS, _merged([json.loads(frames[n].attrs["lm_eval"]) for n in names]))
        overloaded = not_graded(frames.values())
        records.warn(overloaded, str(folder))
        vote = tasks.get(config.task.name).answer
        on_hub = isinstance(checkpoint, str)
        summary = {
            "identity": identity,
            "checkpoint": fingerprint if on_hub else os.path.relpath(checkpoint, folder.parent),
            "checkpoint_sha256": None if on_hub else fingerprint,
            "benchmarks": {name: summarise(frames[name], vote) for name in names},
            "overloaded": overloaded,
            "seconds": round(sum(frames[n].attrs["seconds"] for n in names), 3),
            "peak_memory_bytes": peak_memory(),
            "files": fingerprints(folder, [*(f"{n}.parquet" for n in names), RESULTS]),
        }
        write_json(folder / SUMMARY, summary)
    return summary


# ------------------------------------------------------------------------------------------------ what is there


def _check(config: DictConfig) -> None:
    e = config.evaluation
    if not e.benchmarks:
        raise UserError("evaluation.benchmarks is empty: name at least one benchmark")
    if e.temperature <= 0:
        raise UserError(f"evaluation.temperature={e.temperature}: must be positive, or all samples are equal")
    if not 0 < e.top_p <= 1:
        raise UserError(f"evaluation.top_p={e.top_p}: must be in (0, 1]")


def finished(folder: Path, identity: str) -> dict[str, Any] | None:
    """Return the summary of an evaluation of this identity that is finished, its files intact; None otherwise."""
    if not (folder / SUMMARY).exists():
        return None
    try:
        summary = read_json(folder / SUMMARY)
        if summary["identity"] != identity:
            return None
        problems = damaged_files(folder, summary["files"])
    except (UserError, KeyError, TypeError) as error:
        problems = [str(error) if isinstance(error, UserError) else f"{folder / SUMMARY} is damaged"]
    for problem in problems:
        _warn(f"{problem}; what it held is evaluated again")
    return None if problems else summary


def intact(folder: Path, name: str, identity: str) -> pd.DataFrame | None:
    """Return a benchmark's table of an earlier evaluation of this identity; a damaged one is named on stderr."""
    path = folder / f"{name}.parquet"
    if not path.exists():
        return None
    try:
        frame = read_table(path)
        known = (frame.attrs.get("identity"), frame.attrs.get("benchmark"))
        if known != (identity, name):
            return None
        if frame.attrs["content"] == content_digest(frame):
            return frame
        reason = "its contents are not those that were written"
    except Exception as error:  # a changed byte makes the reader fail in many ways
        reason = str(error).split(" is damaged (")[-1].split(");")[0]
    _warn(f"{path} is damaged ({reason}); {name} is evaluated again")
    return None


def content_digest(frame: pd.DataFrame) -> str:
    """Return the SHA-256 of a table's column names and values: parquet itself does not notice a changed byte."""
    import pandas as pd

    values = pd.util.hash_pandas_object(frame, index=False).to_numpy().tobytes()
    return hashlib.sha256(",".join(frame.columns).encode() + values).hexdigest()


def _warn(text: str) -> None:
    print(f"warning: {text}", file=sys.stderr)


# ------------------------------------------------------------------------------------------------ sampling


def _sample(
    config: DictConfig, checkpoint: Path | str, folder: Path, identity: str, names: list[str]
) -> dict[str, pd.DataFrame]:
    """Evaluate the named benchmarks one after the other, each written as soon as it is done."""
    from transformers.utils import logging as transformers_logging

    from bapo.engines.shared.models import pretrained
    from bapo.evaluation import prompts

    if config.evaluation.backend != "server":  # which knows the checkpoint by its name
        checkpoint = pretrained.at_hand(config, checkpoint)

    logging.getLogger("lm_eval").setLevel(logging.WARNING)
    transformers_logging.disable_progress_bar()
    benchmarks = [load_benchmark(config, name, checkpoint) for name in names]
    limits = prompts.check_all(config, checkpoint, benchmarks)
    problems = sum(len(b.eval_docs) for b in benchmarks)
    require_space(folder, problems * config.evaluation.samples * (64 + 4 * config.sampling.max_response_tokens))
    label = "evaluate " + "/".join(folder.absolute().parent.parts[-2:])
    progress = Progress(label, problems * config.evaluation.samples, unit="sample")
    model = backends.build(config, checkpoint, limits, progress.add, images=max(b.images for b in benchmarks))
    frames = {}
    for benchmark in benchmarks:
        name = benchmark.task_name
        progress.set_postfix_str(name, refresh=False)
        frames[name] = table(config, model, benchmark, identity)
        write_parquet(folder / f"{name}.parquet", frames[name])
    return frames


def table(config: DictConfig, model: Any, benchmark: Benchmark, identity: str) -> pd.DataFrame:
    """Evaluate one benchmark; returns its table of problems and samples, and in ``attrs`` what the summary needs.

    Raises UserError if the samples do not differ.
    """
    start = time.monotonic()
    results, frame = run_benchmark(model, benchmark)
    frame["seed"] = backends.seed(config)
    _require_differing(config, benchmark, frame)
    frame = frame[["problem_id", "sample", "correct", "parsed", "reason", "tokens", "seed", "response"]]
    frame.attrs = {
        "identity": identity,
        "benchmark": benchmark.task_name,
        "content": content_digest(frame),
        "seconds": time.monotonic() - start,
        "lm_eval": json.dumps(results, default=str),  # as text: pandas copies attrs with every slice
    }
    return frame


def load_benchmark(config: DictConfig, name: str, checkpoint: Path | str) -> Benchmark:
    from bapo.evaluation.tasks import Benchmark

    e = config.evaluation
    return Benchmark(
        name,
        data_folder(config) / f"{name}.parquet",
        tasks.get(config.task.name),
        samples=e.samples,
        temperature=e.temperature,
        top_p=e.top_p,
        top_k=config.sampling.top_k,
        max_tokens=config.sampling.max_response_tokens,
        generation=backends.arguments(config, checkpoint),
        images=e.images,
        image_seed=e.seed,
        check_golds=name not in golds_checked(config),
    )


def run_benchmark(model: Any, benchmark: Benchmark, limit: int | None = None) -> tuple[dict[str, Any], pd.DataFrame]:
    """Return lm-eval's results of one benchmark, and a table of problems and samples; limit: the first problems only.

    model: any of lm-eval's that generates. A response that is a plain text has as many tokens as the model's tokenizer
    makes of it, without an end token.
    """
    import pandas as pd
    from lm_eval import evaluate as lm_evaluate

    from bapo.engines.shared.prompts import Response

    benchmark.graded.clear()
    # evaluate, not simple_evaluate: that one also seeds every global generator and runs `pip list` for its report.
    # bootstrap_iters only switches standard errors on: those of means are closed-form, nothing is resampled.
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


def _require_differing(config: DictConfig, benchmark: Benchmark, frame: pd.DataFrame) -> None:
    """Raise UserError if samples are equal everywhere: some lm-eval backends repeat their random numbers."""
    if benchmark.samples > 1 and (frame.groupby("problem_id")["response"].nunique() == 1).all():
        raise UserError(
            f"{benchmark.task_name}: all {benchmark.samples} samples of a problem are equal, for every problem, at "
            f"evaluation.temperature={config.evaluation.temperature}; the model has become deterministic or its "
            "sampler repeats its random numbers: look at the responses with a higher temperature"
        )


def _merged(results: list[dict[str, Any]]) -> dict[str, Any]:
    """Return lm-eval's results of several benchmarks, evaluated one at a time, in the form of one evaluation."""
    merged: dict[str, Any] = {"lm_eval_version": importlib.metadata.version("lm_eval")}
    for part in results:
        for key, value in part.items():
            merged.setdefault(key, {}).update(value)
    return merged
