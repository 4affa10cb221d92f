"""Accuracy along a run: the base model and every kept checkpoint, on the benchmarks and on the validation problems.

``folder/<benchmark>.parquet`` holds one row a step and problem, with the number of correct samples; ``summary.json``,
written last, the accuracies and the fingerprints of the other files. The tables are written after every checkpoint, so
an interrupted curve goes on with the next one. Step 0 is the model that the run began with.

With ``evaluation.backend=torch`` the samples have the random numbers of the run's own evaluation: those of the last
checkpoint are the first ``evaluation.curve_samples`` of it. lm-eval is left out: nothing of its report is wanted here.
``vllm`` evaluates one checkpoint after the other as :mod:`bapo.evaluation.run` does, each in a process of its own,
because an engine keeps its memory until its process ends.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig

from bapo import tasks
from bapo.engines.shared import records
from bapo.errors import UserError
from bapo.evaluation import backends
from bapo.evaluation import run as evaluation
from bapo.evaluation.checkpoints import checkpoint_digest, locate
from bapo.evaluation.prompts import draw_key, revision_of
from bapo.experiments.identity import identity_of_curve
from bapo.graders.verdict import OVERLOADED
from bapo.store.files import SUMMARY, fingerprints, read_json, read_table, write_json, write_parquet
from bapo.store.lock import remade
from bapo.store.progress import Progress
from bapo.store.provenance import peak_memory
from bapo.tasks.job import data_folder, golds_checked
from bapo.tasks.real import golds

if TYPE_CHECKING:
    import pandas as pd

    from bapo.algorithm.rollouts import Prompt

FOLDER = "curve"

#: problem ids and how many samples of each were correct
Counts = tuple[list[str], list[int]]


def evaluate_curve(config: DictConfig, run: Path, folder: Path) -> dict[str, Any]:
    """Sample every problem ``evaluation.curve_samples`` times with each model of a finished run; returns the summary.

    run: its directory; folder: where the results go. Raises UserError if a checkpoint or the data is missing or
    damaged, or if the backend cannot do it.
    """
    from bapo.engines.shared.models import pretrained

    e = config.evaluation
    names = splits(config)
    data = data_folder(config)
    checkpoints = {0: locate(pretrained.start_of(config)), **kept(run, config.checkpoint.every)}
    digests = {step: checkpoint_digest(path, revision_of(config, path)) for step, path in checkpoints.items()}
    identity = identity_of_curve(config, digests, names)
    before = evaluation.finished(folder, identity)
    if before is not None:
        return before
    backends.check(config)
    with remade(folder, identity):
        frames = {name: evaluation.intact(folder, name, identity) for name in names}
        done = set.intersection(*(set() if f is None else set(f["step"]) for f in frames.values()))
        frames = {n: None if f is None else f[f["step"].isin(done)] for n, f in frames.items()}
        pending = {step: path for step, path in checkpoints.items() if step not in done}
        begun = time.monotonic()
        if e.backend == "torch":
            counted = _torch(config, pending, names, data, run)
        else:
            counted = _vllm(config, pending, names, folder)
        for step, counts in counted:
            for name in names:
                frames[name] = _with_step(frames[name], step, counts[name], e.curve_samples, identity, name)
                write_parquet(folder / f"{name}.parquet", frames[name])
        summary = {
            "identity": identity,
            "steps": list(checkpoints),
            "checkpoints": {str(step): fingerprint for step, fingerprint in digests.items()},
            "validation": e.validation,
            "benchmarks": {name: _summarise(frames[name]) for name in names},
            "seconds": round(time.monotonic() - begun, 3),
            "peak_memory_bytes": peak_memory(),
            "files": fingerprints(folder, [f"{name}.parquet" for name in names]),
        }
        write_json(folder / SUMMARY, summary)
    return summary


def splits(config: DictConfig) -> list[str]:
    """Return the benchmarks, and the validation problems if they are none of them.

    Raises UserError naming the key of ``evaluation`` that a curve cannot use.
    """
    e = config.evaluation
    if not e.benchmarks:
        raise UserError("evaluation.benchmarks is empty: name at least one benchmark")
    if e.validation is not None and e.validation not in config.data.split_sizes:
        allowed = ", ".join(s for s in config.data.split_sizes if s not in ("base", "train"))
        raise UserError(f"evaluation.validation={e.validation}: no such split; allowed: {allowed}, or null for none")
    if e.images != "own":
        raise UserError(f"evaluation.images={e.images}: a control of one checkpoint; leave out --curve")
    if e.backend == "server":
        raise UserError(
            "evaluation.backend=server: a server answers with one checkpoint; use torch or vllm for a curve, or "
            "evaluate each checkpoint with --checkpoint"
        )
    return list(dict.fromkeys([*e.benchmarks, *([e.validation] if e.validation else [])]))


def kept(run: Path, every: int) -> dict[int, Path]:
    """Return {step: folder} of a finished run's checkpoints: every ``every`` steps, and the last.

    Others, which an interruption leaves behind, are passed over, so that all runs have the same steps. Raises UserError
    naming the first that is missing.
    """
    summary = read_json(run / SUMMARY)
    last, final = int(summary["steps"]), run / summary["checkpoint"]
    folders = {step: final.with_name(f"step_{step:06d}") for step in range(every, last, every)} | {last: final}
    for step, folder in folders.items():
        if not (folder / "config.json").is_file():
            raise UserError(
                f"{folder}: no checkpoint of step {step}; a curve needs one every checkpoint.every={every} steps, kept "
                "(checkpoint.keep_models=true): train again, or give the value that the run was trained with"
            )
    return folders


def _with_step(
    frame: pd.DataFrame | None, step: int, counts: Counts, samples: int, identity: str, name: str
) -> pd.DataFrame:
    """Return the table with the rows of another step."""
    import pandas as pd

    rows = pd.DataFrame({"step": step, "problem_id": counts[0], "correct": counts[1], "samples": samples})
    rows = rows.astype({"step": "int32", "correct": "int16", "samples": "int16"})
    frame = rows if frame is None else pd.concat([frame, rows]).sort_values("step", kind="stable", ignore_index=True)
    frame.attrs = {"identity": identity, "benchmark": name, "content": evaluation.content_digest(frame)}
    return frame


def _summarise(frame: pd.DataFrame) -> dict[str, Any]:
    samples = int(frame["samples"].iloc[0])
    means = frame.groupby("step")["correct"].mean() / samples
    return {
        "problems": int(frame["problem_id"].nunique()),
        "samples": samples,
        "accuracy": {str(step): float(mean) for step, mean in means.items()},
    }


# ------------------------------------------------------------------------------------------------ sampling


def _torch(
    config: DictConfig, pending: Mapping[int, Path | str], names: list[str], data: Path, run: Path
) -> Iterator[tuple[int, dict[str, Counts]]]:
    """Yield (step, counts of each split) with this engine's sampler; the models are loaded one after the other."""
    from bapo.engines.shared import models
    from bapo.engines.shared.models import pretrained
    from bapo.engines.shared.prompts import read_prompts

    if not pending:
        return
    models.prepare_process(config.threads)
    device, task = models.device_of(config), tasks.get(config.task.name)
    prompts: dict[str, list[Prompt]] = {}
    for step, path in pending.items():
        path = pretrained.at_hand(config, path)
        model, tokenizer = models.load(path, config, device)
        if not prompts:  # a run changes neither tokenizer nor processor
            processor = models.load_processor(model, path, config)
            longest = config.sampling.max_prompt_tokens
            prompts = {n: read_prompts(data / f"{n}.parquet", tokenizer, longest, processor) for n in names}
            for name in set(config.evaluation.benchmarks) - set(golds_checked(config)):
                golds.check(task, [(p.id, p.row.ground_truth) for p in prompts[name]], data / f"{name}.parquet")
            total = len(pending) * sum(map(len, prompts.values())) * config.evaluation.curve_samples
            progress = Progress("curve " + "/".join(run.absolute().parts[-2:]), total, unit="sample")
        counts = {}
        for name, problems in prompts.items():
            progress.set_postfix_str(f"step {step} {name}", refresh=False)
            correct = _correct(config, task, model, tokenizer, name, problems, progress.add)
            counts[name] = ([p.id for p in problems], correct)
        yield step, counts


def _correct(
    config: DictConfig,
    task: tasks.Task,
    model: Any,
    tokenizer: Any,
    name: str,
    prompts: list[Prompt],
    advance: Callable[[int], None],
) -> list[int]:
    """Count the correct samples of each problem, in the order of ``prompts``."""
    from bapo.engines.shared import models
    from bapo.engines.shared.prompts import answer, grade, parameters_of

    e, s = config.evaluation, config.sampling
    generation = models.generation_of(model)
    parameters = parameters_of(tokenizer, e.temperature, e.top_p, s.top_k, s.max_response_tokens, generation)
    key = draw_key(e.seed, name)
    responses = answer(model, tokenizer, prompts, e.curve_samples, key, parameters, e.batch_size, advance)
    verdicts = [grade(task, t, p.row.ground_truth) for p, t in zip(prompts, responses, strict=True)]
    records.warn(sum(v.reason == OVERLOADED for own in verdicts for v in own), name)
    return [sum(v.correct for v in own) for own in verdicts]


def _vllm(
    config: DictConfig, pending: Mapping[int, Path | str], names: list[str], folder: Path
) -> Iterator[tuple[int, dict[str, Counts]]]:
    """Yield (step, counts of each split) from whole evaluations, kept in ``folder/step_000025`` with their texts."""
    once = config.copy()
    once.evaluation.samples, once.evaluation.benchmarks = config.evaluation.curve_samples, names
    for step, path in pending.items():
        place = folder / f"step_{step:06d}"
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            pool.submit(evaluation.evaluate, once, path, place).result()
        counts = {}
        for name in names:
            correct = read_table(place / f"{name}.parquet").groupby("problem_id", sort=False)["correct"].sum()
            counts[name] = (list(correct.index), [int(c) for c in correct])
        yield step, counts
