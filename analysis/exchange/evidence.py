"""Evidence: what the analysis reads of a study's runs, in one file that is small enough to lie in the repository.

``evidence/FOLDER/NAME.zip`` holds tables as parquet (zstd) and no pickles. FOLDER is the folder of the scale's results,
such as ``laptop``. ``path`` in a table names a file in this folder, which :func:`unpack` writes again:

========================  =============================================================================================
``about.json``            when the runs started and ended, seeds, seconds, versions, and the digest of what was asked
``text.parquet``          path, text: the study's file; config.yaml, manifest.json and summary.json of every folder
``eval.parquet``          path, problem_id, samples, correct, parsed: counts of every run, benchmark and problem
``curve.parquet``         path, step, problem_id, samples, correct: the counts of kept checkpoints
``probe.parquet``         path, step, set, prompt_id, samples, correct
``steps.parquet``         path, and as many of STEP_COLUMNS, from the first, as fit into LARGEST
========================  =============================================================================================

Evidence lacks responses, groups.parquet and weights. So unpacked runs give neither the figures of X2's admission and of
the off-policy signal, nor claims that read groups, nor the sentences on replay below Table 1.

A study whose runs come in portions has a file each, ``NAME_1.zip`` and further numbers. Unpacked into one folder they
are one study, ``studies/NAME.json``, in the order of its file; those of the portions lie in ``portions``.
"""

from __future__ import annotations

import io
import json
import re
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from analysis import reading
from analysis.exchange.crate import Packed
from analysis.study import StudyFile, finished, load
from bapo.errors import UserError
from bapo.experiments import places
from bapo.experiments.identity import digest
from bapo.experiments.studies import load_study
from bapo.store import files
from bapo.store.files import CONFIG, MANIFEST, PROBE, STEPS, SUMMARY, Json, read_json
from bapo.validate import each_once, parse_yaml
from bapo.validate import read as validate

#: the most bytes of one file
LARGEST = 1_000_000
#: the most rows of a table, characters of its texts, samples of a problem, and samples of all
ROWS, CHARACTERS, SAMPLES, ALL_SAMPLES = 1_000_000, 200_000_000, 10_000, 20_000_000
ABOUT, TEXT = "about.json", "text"
#: the folder of the study files of unpacked portions
PORTIONS = "portions"
#: table -> the columns of a run's file that it keeps
COLUMNS = {
    "eval": ["problem_id", "correct", "parsed"],
    "curve": ["step", "problem_id", "samples", "correct"],
    "probe": ["step", "set", "prompt_id", "samples", "correct"],
}
#: the columns that hold text; all others hold numbers
TEXTS = ["path", "text", "problem_id", "set", "prompt_id"]
#: a path in a folder of results: no hidden names, no ``..``, nothing that another system reads as a separator
PLACE = re.compile(r"[\w+=-][\w.+=-]{,99}(/[\w+=-][\w.+=-]{,99}){,7}")
#: columns of steps.parquet that tables, figures and claims read, those that are read most first
STEP_COLUMNS = [
    *("step", "reward_mean", "response_length", "batch_groups", "x1", "x2", "x3", "staleness", "updates"),
    *("groups_fresh", "groups_none_correct", "groups_all_correct", "fresh_rollouts", "regenerated_rollouts"),
    *("k1", "k2", "k3", "tv_x1", "tv_x2", "tv_x3", "entropy", "gradient_norm"),
    *("surrogate_x1", "surrogate_x2", "surrogate_x3"),
    *("forward_flops", "backward_flops"),
    *("seconds_total", "seconds_rollout", "seconds_update", "seconds_reward", "seconds_regenerate", "seconds_probe"),
    "cut_off",
    *(f"{n}_x{i}" for n in ("ess", "clipped_upper", "clipped_lower", "ratio_p99", "ratio_max") for i in (1, 2, 3)),
]


# ------------------------------------------------------------------------------------------------ packing


def pack(study_file: Path, out: Path) -> Path:
    """Write the evidence of a finished study to ``out``/FOLDER/NAME.zip.

    study_file: FOLDER/studies/NAME.json, beside its runs. Raises UserError for another file, where a run
    or its evaluation is unfinished or damaged, and where the evidence is larger than LARGEST.
    """
    home = study_file.resolve().parents[1]
    if study_file.resolve().parent.name != "studies":
        raise UserError(f"{study_file}: evidence is of a study of the workflow, FOLDER/studies/NAME.json; name one")
    study = load(study_file.resolve())
    evaluated = any(finished(cell, True) for cell in study.cells)
    reading.require_runs(study, (SUMMARY, f"eval/{SUMMARY}") if evaluated else (SUMMARY,))
    packed = Packed()
    for base in study.bases if evaluated else ():
        reading.summary(base.run / "eval", study)
    for start in study.starts:
        packed.seal_run(start.run, start.run.relative_to(home).as_posix())
    packed.files[f"studies/{study_file.name}"] = study_file
    path = out / home.name / f"{study_file.stem}.zip"
    content = _archive(about(study, study_file.stem, home), _tables(packed.files), path)
    with files.atomic(path) as temporary:
        temporary.write_bytes(content)
    return path


def _table_of(path: PurePosixPath) -> str | None:
    """Return the table that holds a file; None for what evidence leaves out."""
    if path.name in (CONFIG, MANIFEST, SUMMARY) or path.parent.name == "studies":
        return TEXT
    if path.suffix == ".parquet" and path.parent.name in ("eval", "curve"):
        return path.parent.name
    return {PROBE: "probe", STEPS: "steps"}.get(path.name)


def _tables(sealed: Mapping[str, Path]) -> dict[str, pd.DataFrame]:
    """Return the tables of sealed files, by their path in the scale's folder."""
    parts: dict[str, list[pd.DataFrame]] = {}
    for name, file in sorted(sealed.items()):
        table = _table_of(PurePosixPath(name))
        if table == TEXT:
            frame = pd.DataFrame({"text": [file.read_text(encoding="utf-8")]})
        elif table:
            frame = files.read_table(file, COLUMNS.get(table))
            frame = _counts(frame) if table == "eval" else frame
        else:
            continue
        parts.setdefault(table, []).append(frame.assign(path=name))
    return {table: pd.concat(frames, ignore_index=True) for table, frames in parts.items()}


def _counts(samples: pd.DataFrame) -> pd.DataFrame:
    """Return samples, correct and parsed of each problem of an evaluation, from a row a sample."""
    of_problem = samples.groupby("problem_id", sort=False)
    counts = of_problem.agg(samples=("correct", "size"), correct=("correct", "sum"), parsed=("parsed", "sum"))
    return counts.reset_index()


def _archive(about: Json, tables: Mapping[str, pd.DataFrame], path: Path) -> bytes:
    """Return the zip, whose bytes follow from its content. Raises UserError where it is larger than LARGEST."""
    members = {ABOUT: json.dumps(about, indent=2).encode()}
    members |= {f"{name}.parquet": _parquet(frame) for name, frame in tables.items() if name != "steps"}
    columns = [c for c in STEP_COLUMNS if c in tables["steps"]]
    while columns:
        members[STEPS] = _parquet(tables["steps"][["path", *columns]])
        content = _zipped(members)
        if len(content) <= LARGEST:
            return content
        columns.pop()
    raise UserError(
        f"{path} would have {len(content):,} bytes, more than {LARGEST:,}; divide the study into smaller ones"
    )


def _parquet(frame: pd.DataFrame) -> bytes:
    floats = [c for c in frame if frame[c].dtype.kind == "f"]
    others = [c for c in frame if c not in floats]
    options = {"compression": "zstd", "compression_level": 19}
    return frame.to_parquet(index=False, use_dictionary=others, use_byte_stream_split=floats, **options)


def _zipped(members: Mapping[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in sorted(members.items()):
            archive.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


# ------------------------------------------------------------------------------------------------ what was asked


def question_digest(content: Mapping[str, object], scale: str) -> str:
    """Return the digest of what a file of ``experiments/study/`` asks: claim, gates, decisions, the scale's runs."""
    scales = content.get("scales")
    question = {key: content.get(key) for key in ("claim", "gates", "decisions")}
    question |= {"unit": content["unit"]} if "unit" in content else {}
    return digest({**question, "runs": scales.get(scale) if isinstance(scales, dict) else None})


def about(study: StudyFile, name: str, home: Path) -> Json:
    """Describe the runs of a study. asked: the digest of its file, None where it has none; times: of training runs.

    name: of the evidence, which has another name than the study where it holds a portion of its runs.
    """
    manifests, summaries = ([read_json(cell.run / file) for cell in study.cells] for file in (MANIFEST, SUMMARY))
    starts = [start for start in study.starts if finished(start, True)]
    evaluations = [read_json(start.run / "eval" / SUMMARY) for start in starts]
    file = places.file_of("study", study.name or name)
    return {
        "study": name,
        "folder": home.name,
        "scale": study.scale,
        "asked": question_digest(parse_yaml(file), study.scale) if file.exists() else None,
        "runs": len(study.cells),
        "seeds": sorted({cell.seed for cell in study.cells}),
        "started": min((m["started"] for m in manifests if "started" in m), default=None),
        "ended": max((m["ended"] for m in manifests if "ended" in m), default=None),
        "seconds_training": sum(s.get("totals", {}).get("seconds", 0) for s in summaries),
        "seconds_evaluation": sum(e.get("seconds", 0) for e in evaluations),
        **{key: _distinct(m.get(key) for m in manifests) for key in ("threads", "code", "packages", "hardware")},
    }


def _distinct(values: Iterable[object]) -> list[object]:
    return [json.loads(text) for text in dict.fromkeys(json.dumps(value, sort_keys=True) for value in values)]


# ------------------------------------------------------------------------------------------------ the way back


def read(file: Path) -> tuple[Json, dict[str, pd.DataFrame]]:
    """Return ``about.json`` and the tables of evidence. Raises UserError where :func:`pack` writes no such file."""
    try:
        with zipfile.ZipFile(file) as archive:
            names = archive.namelist()
            if sum(member.file_size for member in archive.infolist()) > 10 * LARGEST or len({*names}) < len(names):
                raise ValueError("it is larger than evidence may be, or two files in it have one name")
            if ABOUT not in names:
                raise ValueError(f"it lacks {ABOUT}")
            about = json.loads(archive.read(ABOUT), object_pairs_hook=each_once)
            validate(_About, about, ABOUT)
            tables = {Path(name).stem: _table(name, archive.read(name)) for name in names if name != ABOUT}
        study, texts = f"studies/{about['study']}.json", dict(tables[TEXT][["path", "text"]].itertuples(index=False))
        if study not in texts or len(texts) < len(tables[TEXT]):
            raise ValueError("it lacks the file of its study, or has a text twice")
        content: StudyFile = validate(StudyFile, _object(texts[study]), None, study)
        runs = {PurePosixPath(*cell.run.parts[-4:]) for cell in content.cells}
        runs |= {PurePosixPath(*base.run.parts[-3:]) for base in content.bases}
        folders = {run / part for run in runs for part in ("", "eval", "curve")}
        for table, rows in tables.items():
            for name in rows["path"].unique():
                path, whole = PurePosixPath(name), "/".join([about["folder"], name])
                placed = PLACE.fullmatch(whole) and (name == study or path.parent in folders)
                if not placed or _table_of(path) != table:
                    raise ValueError(f"{whole} is no file of the study's runs; do not use it")
        for path, text in texts.items():
            if path.endswith(f"/{CONFIG}"):
                validate(_Sections, yaml.load(text, yaml.CSafeLoader), None, path)
            elif path != study:
                validate(_Written, _object(text), None, path)
        return about, tables
    except Exception as error:  # readers of archives fail in many ways at what was made to break them
        reason = f"it lacks {error}" if isinstance(error, KeyError) else str(error).partition("\n")[0]
        raise UserError(
            f"{file}: no evidence ({reason:.300}); name a file of evidence/, or make one with `bapo evidence`"
        ) from None


@dataclass
class _About:
    """What :func:`read` needs of ``about.json``, which has more fields."""

    folder: str
    study: str


@dataclass
class _Sections:
    """What analyses read of a configuration, which has more sections."""

    task: Json = field(default_factory=dict)
    data: Json = field(default_factory=dict)
    model: Json = field(default_factory=dict)
    base: Json = field(default_factory=dict)
    method: Json = field(default_factory=dict)
    train: Json = field(default_factory=dict)


@dataclass
class _Written:
    """What analyses read of a manifest or summary, which has more fields."""

    identity: str
    started: str = ""
    ended: str | None = None
    steps: int | list[int] = 0
    seconds: float = 0.0
    budget: Json = field(default_factory=dict)
    totals: dict[str, float] = field(default_factory=dict)
    benchmarks: dict[str, dict[str, float | dict[str, float]]] = field(default_factory=dict)
    files: dict[str, dict[str, str | int]] = field(default_factory=dict)


def _object(text: str) -> Json:
    """Return JSON as this suite writes it. Raises ValueError for a name given twice, NaN and numbers too large."""
    content: Json = json.loads(text, object_pairs_hook=each_once)
    json.dumps(content, allow_nan=False)
    return content


def _table(name: str, content: bytes) -> pd.DataFrame:
    """Return a table. Raises ValueError where pack writes no such one; its footer is believed about its size."""
    table = Path(name).stem
    try:
        if name != f"{table}.parquet" or table not in {TEXT, "steps", *COLUMNS}:
            raise OSError
        metadata = pq.read_metadata(io.BytesIO(content))
    except (pa.ArrowException, OSError):
        raise ValueError(f"{name} is no table of evidence") from None
    size = sum(metadata.row_group(i).total_byte_size for i in range(metadata.num_row_groups))
    columns, texts = metadata.schema.names, [column for column in metadata.schema.names if column in TEXTS]
    wanted = {"path", *({TEXT: ["text"], "steps": STEP_COLUMNS} | COLUMNS)[table]} | {*["samples"][table != "eval" :]}
    wanted &= {*columns} if table == "steps" else wanted
    if metadata.num_rows > ROWS or size > 10 * LARGEST or {*columns} != wanted:
        raise ValueError(f"{name} is no table of evidence, or larger than one")
    # a text that many rows have is held once
    frame = pq.read_table(io.BytesIO(content), read_dictionary=texts).to_pandas(ignore_metadata=True)
    characters = sum(frame[c].cat.categories.str.len().to_numpy()[frame[c].cat.codes].sum() for c in texts)
    counts = frame.filter(["correct", "parsed", "samples"]).assign(samples=frame.get("samples", 0))
    fits = counts.ge(0) & counts.le(counts["samples"].clip(upper=SAMPLES), axis=0)
    numbers = len(texts) + frame.select_dtypes("number").shape[1] == len(columns)
    whole = numbers and not frame[texts if table == "steps" else columns].isna().any(axis=None)
    if not whole or characters > CHARACTERS or not fits.all(axis=None) or counts["samples"].sum() > ALL_SAMPLES:
        raise ValueError(f"{name} has values that evidence cannot have")
    return frame.astype(dict.fromkeys(texts, str))


def unpack(file: Path, out: Path) -> Path:
    """Write the runs of evidence to ``out``/FOLDER as the analysis reads them, and return their study's file.

    Of a portion that is the file of all portions that lie there (:func:`_joined`). Of an evaluation only the number of
    correct samples is known, so the first ones of a problem are the correct ones. Every summary gets ``evidence``: the
    file, its SHA-256, and the fingerprints of the files that the run had. Raises UserError where a run that is not from
    evidence lies in ``out``, finished or not, or other results of the same run, which studies have from different
    processors.
    """
    described, tables = read(file)
    home, written = out / described["folder"], set[Path]()
    texts = {home / path: text for path, text in tables.pop(TEXT)[["path", "text"]].itertuples(index=False)}
    for folder in (*home.glob("*/*/*/*"), *home.glob("*/*/base")):  # a study's file would name these runs no more
        there = next((folder / name for name in files.OF_RUN if (folder / name).exists()), None)
        if there and not ((folder / SUMMARY).exists() and "evidence" in read_json(folder / SUMMARY)):
            raise UserError(f"{there}: a run that is not from evidence lies here; name another folder")
    for path in (path for path in texts if path.name == SUMMARY and path.exists()):
        other = read_json(path).get("evidence", {})
        if other and other["sealed"] != json.loads(texts[path]).get("files", {}):
            raise UserError(f"{path}: {other['file']} has other results of this run; name another folder")
    study = home / "studies" / f"{described['study']}.json"
    whole = json.loads(texts[study]).get("name", "")
    if of_portion := _is_portion(study, whole):
        texts[home / PORTIONS / study.name] = texts.pop(study)
    source = {"file": file.name, "sha256": files.sha256(file)}
    summaries = {path: json.loads(text) for path, text in texts.items() if path.name == SUMMARY}
    for path, summary in summaries.items():  # first, so that the same command goes on where it was interrupted
        summary["evidence"] = {**source, "sealed": summary.get("files", {})}
        files.write_json(path, summary, durable=False)
    for table, rows in tables.items():
        for name, frame in rows.groupby("path", sort=False):
            frame = _samples(frame) if table == "eval" else frame.drop(columns="path")
            files.write_parquet(home / str(name), frame, durable=False)
            written.add(home / str(name))
    for path in texts.keys() - summaries:
        files.write_text(path, texts[path], durable=False)
    for path, summary in summaries.items():
        sealed = [name for name in summary["evidence"]["sealed"] if path.parent / name in written]
        files.write_json(path, {**summary, "files": files.fingerprints(path.parent, sealed)}, durable=False)
    return _joined(home, whole) if of_portion else study


def holds(name: str, study: str) -> bool:
    """Return whether evidence of this name holds a study or a portion of it."""
    return bool(re.fullmatch(rf"{re.escape(study)}(_\d+)?", name))


def _is_portion(file: Path, study: str) -> bool:
    return bool(study) and file.stem != study and holds(file.stem, study)


def _joined(home: Path, name: str) -> Path:
    """Write studies/NAME.json with the runs of all unpacked portions in ``home``, and what its file asks for beside.

    Portions may be of different tasks, or of different ``seeds=``. Raises UserError where they differ in more than that
    and their runs, or hold a run that the study does not ask for.
    """
    folder = home / PORTIONS
    for path in (home / "studies").glob("*.json"):
        if _is_portion(path, name):  # version 1.0.0 wrote them beside the studies
            path.rename(folder / path.name)
    parts = [read_json(path) for path in sorted(folder.glob("*.json")) if _is_portion(path, name)]
    of_portion = ("cells", "bases", "benchmarks", "missing")
    shared = [{key: value for key, value in part.items() if key not in of_portion} for part in parts]
    for each in shared:
        each["config"] = [word for word in each.get("config", ()) if not word.startswith("seeds=")]
    benchmarks = {task: names for part in parts for task, names in part.get("benchmarks", {}).items()}
    agree = all(part.get("benchmarks", {}).items() <= benchmarks.items() for part in parts)
    if any(each != shared[0] for each in shared) or not agree:
        raise UserError(f"{folder}: the portions of {name} were packed with different titles, benchmarks or notes")
    plan = load_study(name, shared[0].get("scale", ""))
    order = [f"{c.task}/{c.model}/{plan.method_of(c)}/seed{c.seed}" for c in plan.cells]
    cells = {"{task}/{model}/{method}/seed{seed}".format(**cell): cell for part in parts for cell in part["cells"]}
    if unasked := [place for place in cells if place not in order]:
        raise UserError(f"{folder}: {places.file_of('study', name)} does not ask for {unasked[0]}")
    bases = {f"{base['task']}/{base['model']}": base for part in parts for base in part.get("bases", ())}
    models = dict.fromkeys(place.rpartition("/")[0].rpartition("/")[0] for place in order)
    whole = {
        **shared[0],
        "benchmarks": benchmarks,
        "cells": [cells[place] for place in order if place in cells],
        "bases": [bases[place] for place in models if place in bases],
        "missing": [place for place in order if place not in cells],
    }
    path = home / "studies" / f"{name}.json"
    files.write_json(path, whole, durable=False)
    return path


def _samples(counts: pd.DataFrame) -> pd.DataFrame:
    """Return a row a sample with the counts of :func:`_counts`; a problem's first samples are the correct ones."""
    samples = counts["samples"].to_numpy(np.int64)
    row = np.repeat(np.arange(len(counts)), samples)
    sample = np.arange(len(row)) - (samples.cumsum() - samples)[row]
    outcomes = {name: sample < counts[name].to_numpy()[row] for name in ("correct", "parsed")}
    return pd.DataFrame({"problem_id": counts["problem_id"].array.take(row), "sample": sample, **outcomes})
