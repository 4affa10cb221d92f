"""Published evaluations of models: results and samples of lm-eval, results and details of lighteval.

A results file has one number a task; samples (JSON lines) and details (parquet) have one a problem, from which the
accuracy and its error for new problems are computed here, as for own runs. The Open LLM Leaderboard publishes in both
formats: lighteval's details (version 1) and lm-eval's results and samples (version 2).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from analysis import statistics
from analysis.imports.lines import Log, document, json_object, lines
from bapo.errors import UserError

#: what is taken where --metric names none: the first of these that a task has, else its only one
USUAL = ("exact_match", "math_verify", "extractive_match", "pass@1", "acc", "em", "acc_norm")
#: fields of a problem's line that are numbers and no metric
NO_METRICS = {"doc_id"}
SEPARATOR = ","  # between a metric and its filter, lm-eval
_DATE = r"_\d{4}-\d\d-\d\dT[\d.:-]+$"


@dataclass(frozen=True)
class Score:
    """One benchmark's accuracy. accuracy, standard_error: as fractions; problems: None where the file does not say."""

    metric: str
    accuracy: float
    standard_error: float | None
    problems: int | None


@dataclass(frozen=True)
class Evaluation:
    """What a file holds. scores: by benchmark; values: each problem's, where there are any, by benchmark."""

    format: str
    model: str
    scores: dict[str, Score]
    values: dict[str, dict[str, float]]


def reader_of(path: Path) -> Callable[[Path, str, Log], Evaluation] | None:
    """Return what reads a file; None where it is no evaluation."""
    if path.suffix == ".parquet":
        return details
    content = document(path)
    if content and isinstance(content.get("results"), dict):
        return lighteval if "config_general" in content else lm_eval
    if content is None and ".jsonl" in path.suffixes:
        first = next((text for _, text in lines(path) if text and text.strip()), "")
        try:
            return samples if {"doc_id", "target"} <= set(json_object(first)) else None
        except ValueError:
            return None
    return None


def read(path: Path, metric: str = "") -> tuple[Evaluation, Log]:
    """Return the scores of a file and what was refused. metric: its name, for lm-eval also NAME,FILTER.

    Raises UserError where it holds no score.
    """
    reader, log = reader_of(path), Log(path)
    if reader is None:
        raise UserError(f"{path}: no results of lm-eval or lighteval, and no samples or details of these")
    found = reader(path, metric, log)
    log.require(len(found.scores))
    if not found.scores:
        raise UserError(f"{path}: holds no accuracy")
    return found, log


# ------------------------------------------------------------------------------------------------ a number a task


def lm_eval(path: Path, metric: str, log: Log) -> Evaluation:
    """Read results_DATE.json: {"results": {TASK: {"exact_match,none": 0.5, "exact_match_stderr,none": 0.02}}}."""
    content = document(path) or {}
    counts, scores = content.get("n-samples") or {}, {}
    for task, numbers in content["results"].items():
        count = counts.get(task)
        _add(scores, log, task, numbers, metric, count.get("effective") if isinstance(count, dict) else None)
    model = content.get("model_name") or content.get("model_source") or ""
    return Evaluation("lm-eval results", str(model), scores, {})


def lighteval(path: Path, metric: str, log: Log) -> Evaluation:
    """Read results_DATE.json: {"config_general": {...}, "results": {"gsm8k|0": {"em": 0.5, "em_stderr": 0.02}}}."""
    content = document(path) or {}
    tasks, scores = content.get("config_tasks") or {}, {}
    for task, numbers in content["results"].items():
        if task == "all" or re.search(r":_average[|:]\d+$", task):
            continue  # means over tasks
        config = tasks.get(task) or tasks.get(re.sub(r"[|:]\d+$", "", task))
        _add(scores, log, task, numbers, metric, config.get("effective_num_docs") if isinstance(config, dict) else None)
    general = content["config_general"]
    model = general.get("model_name") if isinstance(general, dict) else ""
    return Evaluation("lighteval results", str(model or ""), scores, {})


def _add(scores: dict[str, Score], log: Log, task: str, numbers: Any, metric: str, problems: Any) -> None:
    """Add a task's score, or refuse it with the reason."""
    place = f"results.{task}"
    if not isinstance(numbers, Mapping):
        log.refuse(place, "must be an object of metrics")
        return
    try:
        name = choose({k: v for k, v in numbers.items() if _is_number(v) and "_stderr" not in k}, metric)
        value = _share(name, numbers[name])
    except ValueError as error:
        log.refuse(place, str(error))
        return
    plain, separator, kind = name.partition(SEPARATOR)
    error = numbers.get(f"{plain}_stderr{separator}{kind}")
    size = int(problems) if _is_number(problems) else None
    scores[task] = Score(name, value, float(error) if _is_number(error) else None, size)


def choose(values: Mapping[str, Any], metric: str) -> str:
    """Return the key of the metric to take. Raises ValueError where none fits or several do."""
    plain = {key: key.partition(SEPARATOR)[0] for key in values}
    usual = next((u for u in USUAL if u in plain.values()), None)
    if metric:
        wanted = [k for k in values if k == metric] or [k for k in values if plain[k] == metric]
    else:
        wanted = [k for k in values if plain[k] == usual] if usual else list(values)
    if not wanted:
        raise ValueError(f"has no metric {metric}; it has {', '.join(values) or 'none'}" if metric else "has no metric")
    if len({plain[k] for k in wanted}) > 1:
        raise ValueError(f"has the metrics {', '.join(wanted)}; choose one with --metric")
    return wanted[0]


def _is_number(value: Any) -> bool:
    try:
        return isinstance(value, (int, float, np.number)) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:  # a whole number that no float holds
        return False


def _share(name: str, value: Any) -> float:
    if not 0 <= value <= 1:
        raise ValueError(f"{name} is {value:g}, which is no share of right answers")
    return float(value)


# ------------------------------------------------------------------------------------------------ a number a problem


def samples(path: Path, metric: str, log: Log) -> Evaluation:
    """Read samples_TASK_DATE.jsonl of lm-eval: a line a problem and filter, with its metrics as numbers.

    Lines of another filter than ``metric`` names are passed over.
    """
    asked = metric.partition(SEPARATOR)[2]
    others: dict[str, None] = {}
    task = re.sub(_DATE, "", path.name.partition(".jsonl")[0]).removeprefix("samples_")
    rows: dict[str, dict[str, float]] = {}
    for number, text in lines(path):
        if text is not None and not text.strip():
            continue
        try:
            if text is None:
                raise ValueError("too long; is this a log?")
            record = json_object(text)
            if "doc_id" not in record:
                raise ValueError("field 'doc_id' is missing")
            if asked and record.get("filter", asked) != asked:
                log.passed += 1
                others[str(record["filter"])] = None
                continue
            kind = f"{SEPARATOR}{record['filter']}" if record.get("filter") else ""
            numbers = {f"{k}{kind}": v for k, v in record.items() if _is_number(v) and k not in NO_METRICS}
            _put(rows, choose(numbers, metric), str(record["doc_id"]), numbers)
        except ValueError as error:
            log.refuse(f"line {number}", str(error))
    if others and not rows:
        raise UserError(f"{path}: --metric {metric}: no line has the filter {asked}; there are {', '.join(others)}")
    return _of_problems("lm-eval samples", task, rows)


def details(path: Path, metric: str, log: Log) -> Evaluation:
    """Read details_TASK_DATE.parquet of lighteval: a row a problem, its metrics in the column metric or metrics."""
    import pandas as pd
    import pyarrow as pa

    try:
        frame = pd.read_parquet(path)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except (OSError, ValueError, pa.ArrowException) as error:
        raise UserError(f"{path}: not readable as parquet ({str(error).splitlines()[0]}); get the file again") from None
    column = next((c for c in ("metric", "metrics") if c in frame), None)
    if column is None:
        raise UserError(
            f"{path}: has no column metric or metrics; its columns are {', '.join(map(str, frame.columns))}"
        )
    task = re.sub(_DATE, "", path.stem).removeprefix("details_")
    rows: dict[str, dict[str, float]] = {}
    for number, value in enumerate(frame[column], 1):
        try:
            metrics = json.loads(value) if isinstance(value, str) else value
            if not isinstance(metrics, Mapping):
                raise ValueError(f"{column} is no object of metrics")
            numbers = {k: float(v) for k, v in metrics.items() if _is_number(v) or isinstance(v, (bool, np.bool_))}
            _put(rows, choose(numbers, metric), str(number - 1), numbers)
        except ValueError as error:
            log.refuse(f"row {number}", str(error))
    return _of_problems("lighteval details", task, rows)


def _put(rows: dict[str, dict[str, float]], name: str, problem: str, numbers: Mapping[str, float]) -> None:
    value = _share(name, numbers[name])
    if problem in rows.setdefault(name, {}):
        raise ValueError(f"problem {problem} is there before")
    rows[name][problem] = value


def _of_problems(kind: str, task: str, rows: Mapping[str, dict[str, float]]) -> Evaluation:
    """Return the score of the metric that most problems have: each filter of a metric is one of its own."""
    filled = {name: values for name, values in rows.items() if values}
    if not filled:
        return Evaluation(kind, "", {}, {})
    name = max(filled, key=lambda key: len(filled[key]))  # the first of equals
    values = filled[name]
    estimate = statistics.clustered(np.array(list(values.values())))
    error = estimate.se if math.isfinite(estimate.se) else None
    return Evaluation(kind, "", {task: Score(name, estimate.mean, error, len(values))}, {task: values})
