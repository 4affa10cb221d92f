"""Results of other projects as run directories: training logs of verl, TRL and wandb, evaluations of lm-eval.

A record that cannot be read is refused, named by file and line; the others count. ``manifest.json`` of each folder says
where the numbers come from, which metric was taken, what was refused and what was assumed.
"""

from __future__ import annotations

import ast
import contextlib
import csv
import gzip
import io
import json
import math
import re
import sys
import zlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
import pandas as pd

from bapo.errors import UserError
from bapo.experiments.identity import digest
from bapo.store import files
from bapo.store.files import CONFIG, MANIFEST, OF_RUN, STEPS, SUMMARY, read_json, sha256, write_json
from bapo.store.provenance import git_state
from bapo.validate import Name, each_once, wrong
from bapo.validate import read as checked

STUDY = "study.json"
#: prompts a step and responses a prompt where nothing else is said
BATCH, GROUP = 128, 8
#: a column of steps.parquet -> its names in logs of verl and of TRL; the first that a record has counts
NAMES = {
    "reward_mean": ("critic/score/mean", "reward"),
    "entropy": ("actor/entropy", "actor/entropy_loss", "entropy"),
    "gradient_norm": ("actor/grad_norm", "grad_norm"),
    "clip_fraction": ("actor/pg_clipfrac", "clip_ratio/region_mean", "clip_ratio"),
    "kl": ("actor/kl_loss", "kl"),
    "loss": ("actor/pg_loss", "loss"),
    "learning_rate": ("actor/lr", "learning_rate"),
    "response_length": ("response_length/mean", "completions/mean_length", "completion_length"),
    "seconds_total": ("timing_s/step", "step_time"),
}
STEP = ("step", "global_step", "_step", "Step")
#: the most refused records that are named; the others are counted
SHOWN = 20
#: metrics of an evaluation; the first that a task has counts
USUAL = ("exact_match", "math_verify", "pass@1", "acc", "acc_norm")
Score = dict[str, str | float]
#: the most characters of a record in braces; parsing a Python dictionary takes a hundred times as much memory
LONGEST = 1_000_000
#: the most bytes of a file after it is unpacked
LARGEST = 100_000_000
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_WORDS = {"none": None, "true": 1.0, "false": 0.0}
_VALUE = rf"(?:np\.\w+\()?(-?(?:\d+\.?\d*(?:e[+-]?\d+)?|nan|inf)|{'|'.join(_WORDS)})\)?"
_NUMBER = re.compile(rf"([^:\s]\S*?|[^:\s][^:]*):{_VALUE}", re.IGNORECASE)


@dataclass
class Log:
    """What a file holds.

    records: by their place ("line 3"); refused: place and reason; notes: which numbers were taken from where.
    """

    path: Path
    records: dict[str, dict[str, Any]] = field(default_factory=dict)
    refused: list[tuple[str, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def source(self) -> dict[str, Any]:
        """Return what a manifest says of the file."""
        first = [f"{place}: {reason}" for place, reason in self.refused[:SHOWN]]
        counts = {"refused": len(self.refused), "first": first, "notes": self.notes}
        return {"file": self.path.name, "sha256": sha256(self.path), **counts}

    def nothing(self, what: str) -> UserError:
        """Return the error for a file of which nothing can be used: its first refused record, else ``what``."""
        return UserError(f"{self.path}, {': '.join(self.refused[0])}" if self.refused else f"{self.path}: {what}")


def read(path: Path) -> Log:
    """Return the records of a log: of ``trainer_state.json``, of a table (.csv), or one a line; each may be gzipped.

    Raises UserError where the file cannot be read.
    """
    text = _text(path)
    log, history = Log(path), _document(path, text).get("log_history")
    if not isinstance(history, list | None):
        raise UserError(f"{path}: log_history: must be a list; is it TRL's trainer_state.json?")
    if _suffix(path) == ".csv":
        _read_table(log, text)
        return log
    kind = "line" if history is None else "log_history entry"
    for number, line in enumerate(io.StringIO(text, None) if history is None else history, 1):
        place = f"{kind} {number}"
        try:
            record = _record(line) if history is None else line
            if not isinstance(record, dict):
                raise ValueError("must be an object")
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError) as error:
            log.refused.append((place, error.msg if isinstance(error, SyntaxError) else str(error)))
        else:
            log.records[place] = record
    return log


def _suffix(path: Path) -> str:
    """Return what a file's name ends with before ".gz"."""
    return Path(path.name.lower().removesuffix(".gz")).suffix


def _document(path: Path, text: str) -> dict[str, Any]:
    """Return a .json file that is one object; {} for another file. Raises UserError where it gives a name twice."""
    try:
        content = json.loads(text, object_pairs_hook=each_once) if _suffix(path) == ".json" else {}
    except (json.JSONDecodeError, RecursionError):
        return {}
    except ValueError as error:
        raise UserError(f"{path}: {error}") from None
    return content if isinstance(content, dict) else {}


def _part(content: dict[str, Any], name: str) -> dict[str, Any]:
    value = content.get(name)
    return value if isinstance(value, dict) else {}


def _text(path: Path) -> str:
    """Return a file's text, unpacked. Raises UserError where it cannot be read or is longer than LARGEST."""
    try:
        with (gzip.open if path.suffix.lower() == ".gz" else open)(path, "rb") as file:
            content = file.read(LARGEST + 1)
        if len(content) > LARGEST:
            raise ValueError(f"more than {LARGEST:,} bytes")
        return content.decode("utf-8-sig")
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise UserError(f"{path}: not readable ({error}); name another file, or unpack or repair this one") from None


def _read_table(log: Log, text: str) -> None:
    """Read the rows of a CSV file. wandb's export has columns "RUN - NAME"; with one run, NAME is enough.

    Raises UserError where two columns have one name, and where it is no CSV file.
    """
    try:
        header, *rows = [row for row in csv.reader(io.StringIO(text, "")) if row] or [[]]
    except csv.Error as error:
        raise UserError(f"{log.path}: no CSV table ({error}); export it again") from None
    columns = [name for name in header if name and not name.endswith(("__MIN", "__MAX"))]
    runs = {run for run, dash, _ in (name.rpartition(" - ") for name in columns) if dash}
    short = [(name.rpartition(" - ")[2] if len(runs) == 1 else name).removeprefix("train/") for name in columns]
    if doubles := [name for name, count in Counter(short).items() if count > 1]:
        raise UserError(f"{log.path}: two columns are {doubles[0]}; leave one out")
    for number, row in enumerate(rows, 1):
        if not any(row[len(header) :]):  # what a line leaves out at its end is empty
            cells = dict(zip(header, [*row, *[""] * len(header)], strict=False))
            log.records[f"row {number}"] = {
                ours: cells[name] or None for ours, name in zip(short, columns, strict=True)
            }
        else:
            reason = f"has {len(row)} cells, the header {len(header)}; numbers need a decimal point, no comma"
            log.refused.append((f"row {number}", reason))


def _record(line: str) -> dict[str, Any]:
    """Return a line's record; {} for a line without one. Raises ValueError for a broken record.

    A record is a JSON object (verl's file logger nests it under ``data``, wandb's histories put train/ before names), a
    Python dictionary (TRL's console) or a line of verl's console logger: "step:3 - critic/score/mean:0.5 - ...".
    """
    text = _COLOUR.sub("", line).strip()
    brace = text.find("{")
    if brace == 0 or text.startswith("{'", brace):
        if len(text) > LONGEST:
            raise ValueError(f"has more than {LONGEST:,} characters")
        if text.startswith("{'", brace):
            quoted = re.sub(r"(?<=: )-?(?:nan|inf)\b", r"'\g<0>'", text[brace:])  # they are no Python literals
            record = ast.literal_eval(quoted)
        else:
            record = json.loads(text, object_pairs_hook=each_once)
        data = record.get("data")
        record = {"step": record.get("step"), **data} if isinstance(data, dict) else record
        return {str(key).removeprefix("train/"): value for key, value in record.items()}
    match = re.search(r"\bstep:(\d+) - (.+)", text)
    if not match:
        return {}
    numbers = {part.strip(): _NUMBER.fullmatch(part.strip()) for part in match[2].split(" - ")}
    if broken := [part for part, number in numbers.items() if not number]:
        raise ValueError(f"'{broken[0][:40]}' is no NAME:NUMBER; the line is cut off or mixed with another")
    values = each_once([(number[1], number[2]) for number in numbers.values() if number])
    return {"step": int(match[1])} | {name: _WORDS.get(value.lower(), value) for name, value in values.items()}


def steps_of(log: Log, metric: str | None = None) -> pd.DataFrame:
    """Return one row a step, the columns of NAMES; a step that is there twice counts once, the last.

    metric: the reward's name in the log; None: the first of NAMES. The log's notes say what was taken.
    Raises UserError where no record has a reward.
    """
    names = NAMES | ({"reward_mean": (metric.removeprefix("train/"),)} if metric else {})
    rows: dict[int, dict[str, float]] = {}
    columns, rewards = dict.fromkeys(name for record in log.records.values() for name in record), dict[str, None]()
    for place, record in log.records.items():
        reward = next((name for name in names["reward_mean"] if record.get(name) is not None), None)
        if reward is None:
            continue  # it is of a validation, or another program's line
        try:
            if not math.isfinite(_number(record[reward])):
                raise ValueError(f"{reward} is {record[reward]}")
            step = int(number := _number(next((record[n] for n in STEP if record.get(n) is not None), len(rows) + 1)))
            if step != number or not 0 <= step < 2**63:
                raise OverflowError(f"step {number:g}: not a whole number, negative or too large")
            values = {ours: next((record[n] for n in theirs if n in record), None) for ours, theirs in names.items()}
            rows[step] = {"step": step, **{key: math.nan if x is None else _number(x) for key, x in values.items()}}
            rewards[reward] = None
        except (TypeError, ValueError, OverflowError) as error:
            log.refused.append((place, f"a value is no number ({error})"))
    others = [name for name in columns if re.search("reward|score|acc", name) and name not in rewards][:SHOWN]
    there = f"; there are also {', '.join(others)}" if others else ""
    if not rows:
        wanted = " or ".join(names["reward_mean"])
        raise log.nothing(f"no line has {wanted}{there}; name the metric that is the reward with --metric")
    ends = ", ".join(f"{rows[step]['reward_mean']:.4g} at step {step}" for step in (min(rows), max(rows)))
    log.notes.append(f"reward: {' and '.join(rewards)}, {len(rows)} steps, {ends}{there}")
    if not set(STEP) & set(columns):
        log.notes.append("step: not logged, the records are counted")
    return pd.DataFrame([rows[step] for step in sorted(rows)])


def _number(value: object) -> float:
    """Return a number of a log. Raises TypeError or ValueError for anything else, JSON's true included."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise TypeError(f"{value!r}")
    return float(value)


# ------------------------------------------------------------------------------------------------ evaluations


def _finite(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def scores_of(path: Path, metric: str | None = None) -> tuple[dict[str, Score], Log] | None:
    """Return each benchmark's metric and accuracy in [0, 1] of lm-eval's ``results_DATE.json``; None for another file.

    A score has also its number of samples, and their limit where there was one. metric: the name, the filter or both
    ("exact_match,strict-match") of the one to take; None: the first of USUAL. The log says what was taken and refused.
    Raises UserError where the file holds no accuracy.
    """
    content, log, scores = _document(path, _text(path)), Log(path), dict[str, Score]()
    if not isinstance(content.get("results"), dict):
        return None
    wanted, limit = (metric,) if metric else USUAL, _part(content, "config").get("limit")
    for task in content["results"]:
        numbers = {k: v for k, v in _part(content["results"], task).items() if _finite(v) and "_stderr" not in k}
        named = [key for m in wanted for key in numbers if m in (key, *key.split(",")[: 2 if metric else 1])]
        values = {key: value for key, value in numbers.items() if 0 <= value <= 1}
        name = next((key for key in named if key in values), None)
        others = "".join(f"; there is also {key} {value:.4g}" for key, value in values.items() if key != name)
        if name:
            n = _part(_part(content, "n-samples"), task).get("effective")
            sizes = {key: value for key, value in (("samples", n), ("limit", limit)) if _finite(value)}
            scores[task] = {"metric": name, "accuracy": values[name], **sizes}
            details = "".join(f", {key} {value:g}" for key, value in sizes.items())
            log.notes.append(f"{task}: {name} {values[name]:.4g}{details}{others}")
        else:
            outside = next((f"{key} is {numbers[key]:g}, not in 0 to 1" for key in named), None)
            log.refused.append((f"results.{task}", f"{outside or 'has none of ' + ', '.join(wanted)}{others}"))
    if not scores:
        raise log.nothing("holds no accuracy")
    return scores, log


# ------------------------------------------------------------------------------------------------ folders


def import_file(
    path: Path,
    home: Path,
    names: tuple[str, str, str, int],
    batch: int | None = None,
    group: int | None = None,
    metric: str | None = None,
) -> tuple[Path, Log]:
    """Write ``home/task/model/method/seed<k>/`` from a log, or its ``eval/`` from an evaluation: the folder, the log.

    names: task, model, method and seed; batch, group: prompts a step and responses a prompt, which logs do not say and
    evaluations do not have; None: BATCH and GROUP; metric: as for :func:`steps_of` and :func:`scores_of`.
    Raises UserError for a name that is no folder's or that legends leave out, where nothing can be read, for a folder
    with other results, be they of another log, or of the same benchmark from another file, and for a log that is there
    under another seed.
    """
    for option, name in zip(("task", "model", "method"), names, strict=False):
        checked(Name, name, None, f"--{option}")
    if names[2].startswith("_"):
        raise wrong(None, "--method", names[2], "figures have no legend for names that begin with _; drop it")
    folder = home.joinpath(*map(str, names[:3]), f"seed{names[3]}")
    for place in (folder, folder / "eval"):
        _require_imported(place)
    if evaluation := scores_of(path, metric):
        if batch or group:
            raise UserError(f"{path}: an evaluation has no training steps; leave out --batch and --group")
        _write_evaluation(folder / "eval", *evaluation)
        return folder / "eval", evaluation[1]
    log = read(path)
    steps = steps_of(log, metric)
    if is_imported(folder):
        _require_same(folder, log)
    identity, batch, group = digest(steps.to_dict("list")), batch or BATCH, group or GROUP
    for run in _runs(home / names[0]):
        if run.name != folder.name and read_json(run / SUMMARY).get("identity") == f"imported:{identity}":
            raise UserError(f"{path}: has the numbers of {run}; import another log, or delete that folder")
    steps["fresh_rollouts"] = batch * group * np.diff(steps["step"], prepend=0)  # a row stands for steps without one
    (folder / SUMMARY).unlink(missing_ok=True)  # until it is sealed the folder counts as unfinished, and as imported
    _write_manifest(folder, [log.source])
    files.write_parquet(folder / STEPS, steps)
    files.write_text(folder / CONFIG, f"train:\n  batch_size: {batch}\n")
    log.notes.append(f"fresh_rollouts: {batch} prompts x {group} responses a step, as given, not logged")
    content = {"steps": int(steps["step"].max()), "totals": {"rollouts": int(steps["fresh_rollouts"].sum())}}
    _seal(folder, [log.source], identity, content | {"files": files.fingerprints(folder, [STEPS])})
    _write_study(home / names[0])
    return folder, log


def _write_evaluation(folder: Path, scores: Mapping[str, Score], log: Log) -> None:
    """Add scores to a folder; those of other files stay. Raises UserError for a benchmark that one of them has."""
    there = (folder / SUMMARY).exists()
    sources = read_json(folder / MANIFEST)["imported"] if there else []
    earlier = read_json(folder / SUMMARY)["benchmarks"] if there else {}
    if earlier.keys() & scores.keys():
        _require_same(folder, log)
    sources = [*(s for s in sources if s["sha256"] != log.source["sha256"]), log.source]
    _seal(folder, sources, log.source["sha256"][:16], {"benchmarks": {**earlier, **scores}, "files": {}})


def _require_imported(folder: Path) -> None:
    """Raise UserError where a folder holds results that nothing has imported, since they would be lost."""
    there = [name for name in OF_RUN if (folder / name).exists()]
    if there and not is_imported(folder):
        raise UserError(f"{folder}: holds {there[0]} of a run that is not imported; name another --out or --method")


def _require_same(folder: Path, log: Log) -> None:
    """Raise UserError where nothing in a folder is from the same file, since the results there would be lost."""
    sources = read_json(folder / MANIFEST)["imported"]
    if log.source["sha256"] not in [source["sha256"] for source in sources]:
        there = " and ".join(source["file"] for source in sources)
        cure = "name another --seed, --method or --out, or delete the folder"
        raise UserError(f"{folder}: was imported from {there}, of other content than {log.path}; {cure}")


def is_imported(folder: Path) -> bool:
    """Return whether the manifest of a folder says that it was imported; a damaged one does not."""
    with contextlib.suppress(UserError):
        return (folder / MANIFEST).exists() and isinstance(read_json(folder / MANIFEST).get("imported"), list)
    return False


def _write_manifest(folder: Path, sources: list[dict[str, Any]]) -> None:
    write_json(folder / MANIFEST, {"imported": sources, "code": git_state()})


def _seal(folder: Path, sources: list[dict[str, Any]], identity: str, content: Mapping[str, Any]) -> None:
    """Write a folder's manifest, and its summary. identity: of a log's numbers, or of the last file of scores."""
    _write_manifest(folder, sources)
    write_json(folder / SUMMARY, {"identity": f"imported:{identity}", **content})


def _runs(folder: Path) -> list[Path]:
    """Return the imported runs of a task: neither copies under another name nor runs of another kind."""
    runs = [summary.parent for summary in sorted(folder.glob(f"*/*/seed*/{SUMMARY}"))]
    return [run for run in runs if re.fullmatch("seed[1-9][0-9]*", run.name) and is_imported(run)]


def _write_study(folder: Path) -> None:
    """Write ``folder/study.json`` with every run of the task, for ``python -m analysis figure ... --study``."""
    cells = []
    for run in _runs(folder):
        model, method, seed = run.relative_to(folder).parts
        cell = {"task": folder.name, "model": model, "method": method, "method_title": method}
        cells.append(cell | {"seed": int(seed.removeprefix("seed")), "run": str(run)})
    note = "Imported: runs of others, from their published logs; manifest.json of each says what was assumed."
    benchmarks = {folder.name: [["none", "not evaluated"]]}
    write_json(folder / STUDY, {"scale": "imported", "note": note, "cells": cells, "benchmarks": benchmarks})
