"""The identity of every job: a digest of its meaning, which rules and jobs both take from here.

A job is done when the identity in its summary equals that of its configuration. Each key in bapo/experiments/schema.py
says to which identities it belongs. Names, paths, tracking and hardware belong to none. A project's code belongs to
what it defines, and UserError is raised where it cannot be read.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from functools import cache, lru_cache
from pathlib import Path
from typing import NamedTuple

from pydantic import BaseModel

from bapo import methods, project
from bapo.experiments import places
from bapo.experiments.places import data_directory, own
from bapo.experiments.schema import Config
from bapo.store.files import SUMMARY, Json, read_json, sha256
from bapo.store.provenance import hardware
from bapo.validate import Only, WhereSet, parse_yaml, plain

#: parts of the identities below; one is raised when a change of the code changes what a configuration means
REVISIONS = {"data": 1, "base": 1, "torch": 1, "verl": 1, "evaluation": 1, "scores": 1, "grader": 3}


def digest(content: object) -> str:
    """Return 16 hex digits of the SHA-256 of the sorted compact JSON of ``content``, in which 1.0 is 1."""
    text = json.dumps(_numbers(plain(content)), sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _numbers(node: object) -> object:
    if isinstance(node, Mapping):
        return {key: _numbers(value) for key, value in node.items()}
    if isinstance(node, list | tuple):
        return [_numbers(value) for value in node]
    return int(node) if isinstance(node, float) and node.is_integer() else node


def meaning(node: BaseModel, identity: str) -> Json:
    """Return the values of a part of the configuration that belong to an identity: "data", "documents", "run", ..."""
    fields = type(node).model_fields
    names = [name for name, only in _marks(type(node)).items() if only is None or identity in only]
    values = {name: getattr(node, name) for name in names}
    defaults = [n for n in names if WhereSet in fields[n].metadata and values[n] == fields[n].default]
    values = {name: value for name, value in values.items() if name not in defaults}
    return {k: meaning(v, identity) if isinstance(v, BaseModel) else plain(v) for k, v in values.items()}


@cache
def _marks(schema: type[BaseModel]) -> dict[str, Only | None]:
    """Return the ``Only`` of each field, or None. A class that changes a default keeps the mark of its parent."""
    parents = [cls for cls in reversed(schema.__mro__) if issubclass(cls, BaseModel) and cls is not BaseModel]
    fields = [(name, field) for cls in parents for name, field in cls.model_fields.items()]
    marks: dict[str, Only | None] = dict.fromkeys(schema.model_fields)
    return marks | {name: mark for name, field in fields for mark in field.metadata if isinstance(mark, Only)}


def data_identity(config: Config) -> str:
    """Identify the problems of a task. Raises UserError where the code of a project's task cannot be read."""
    data = meaning(config.data, "data")
    data["split_sizes"].pop("base", None)  # documents, which the base job draws
    return digest({"task": _task(config), "data": data, "revision": REVISIONS["data"]})


def _task(config: Config) -> Json:
    """Identify a task by its name, and a project's task by its code and its files, too."""
    task = config.task
    if task.name in own("task"):
        code = project.code_digest_of(task.code) if task.code else None
        rows = {split: _rows(f"data.hub.{split}", entry) for split, entry in plain(config.data.hub).items()}
        return {"name": task.name, "code": code, "rows": rows}
    return {"name": task.name, "revision": 0}


def _rows(where: str, entry: Json) -> list[str]:
    """Return the SHA-256 of the files of a split whose repository is a folder.

    where: the entry of ``data.hub``, for errors. Raises UserError for a wrong pattern.
    """
    if not entry.get("repository"):
        return []  # the data job reports the missing key
    patterns = places.patterns_of_rows(entry.get("files"), entry.get("split") or "train")
    files = places.files_of_rows(Path(entry["repository"]), patterns, where)
    return [_sha256(path, path.stat().st_mtime_ns) for path in files if path.is_file()]


@lru_cache(maxsize=256)
def _sha256(path: Path, changed: int) -> str:
    return sha256(path)


def _model(config: Config, identity: str) -> Json:
    """Identify a model, with the project's code of its family if there is any."""
    code = config.model.code
    return meaning(config.model, identity) | ({"code": [code, project.code_digest_of(code)]} if code else {})


def base_identity(config: Config) -> str:
    """Identify the model that reinforcement learning starts from, together with the problems."""
    if config.model.kind == "pretrained":
        return digest({"data": data_identity(config), "model": _model(config, "base")})
    shipped = shipped_base(config)
    return digest({"data": data_identity(config), "weights": shipped.sha256 if shipped else base_recipe(config)})


class Shipped(NamedTuple):
    """Names weights that come with the suite. path: float16 safetensors in experiments/base/; sha256: of the file."""

    path: Path
    sha256: str


def shipped_base(config: Config) -> Shipped | None:
    """Return the base model of ``config`` that comes with the suite, or None where it is trained here or pretrained."""
    if config.model.kind != "scratch" or config.base.source == "train":
        return None
    index, recipe = places.EXPERIMENTS / "base" / "index.yaml", base_recipe(config)  # written by make.py beside it
    entries = parse_yaml(index) if index.exists() else {}
    return next((Shipped(index.with_name(n), e["sha256"]) for n, e in entries.items() if e["recipe"] == recipe), None)


def base_recipe(config: Config) -> str:
    """Identify the training of a base model, which sees documents and none of the problems."""
    content: Json = {name: meaning(getattr(config, name), "documents") for name in ("data", "base", "sampling")}
    content |= {"task": _task(config), "model": _model(config, "documents")}
    content["count"] = config.data.split_sizes.get("base")
    return digest(content | {"revision": [REVISIONS["data"], REVISIONS["base"]]})


def _prompts_and_sampling(config: Config, identity: str) -> Json:
    """Return how prompts are made and responses sampled, and the revision of the grader of real sets."""
    content = {"asked": meaning(config.data, identity), "sampling": meaning(config.sampling, identity)}
    boxed = config.data.source == "hub" and config.task.name != "countdown"  # which has its own grammar
    return content | ({"grader": REVISIONS["grader"]} if boxed else {})


def train_identity(config: Config) -> str:
    """Identify a run. The identity changes when, and only when, the run's numbers may change.

    The ``revision`` of the method's class is part of it, and is raised when the code changes the method's meaning.
    """
    return identity_of_seed(train_content(config), config.seed)


def probe_identity(config: Config, device: str) -> str:
    """Identify the responses to the probe before training, the same bits with the same code and processor."""
    names = ("seed", "engine", "threads", "task", "data", "model", "sampling", "probe")
    content = {name: plain(getattr(config, name)) for name in names}
    return digest([content, base_identity(config), code_identity(), device, hardware()["processor"]])


def identity_of_seed(content: Json, seed: int) -> str:
    """Identify a run by its :func:`train_content`, which all seeds share, and its seed."""
    return digest({**content, "seed": seed})


def train_content(config: Config) -> Json:
    """Return what a run's identity is made of, except the seed. Raises UserError for an unknown algorithm."""
    content: Json = {name: meaning(getattr(config, name), "run") for name in ("train", "probe", "method")}
    content |= _prompts_and_sampling(config, "run") | {"base": base_identity(config), "engine": config.engine}
    if methods.get(config.method.algorithm).judges_micro_batches:
        content["micro_batch_size"] = config.train.micro_batch_size
    return content | {"revision": [REVISIONS[config.engine], *methods.revision(config.method.algorithm)]}


def evaluation_identity(config: Config, identity: str = "evaluation") -> str:
    """Identify an evaluation apart from its checkpoint. The number of GPUs is not part of it."""
    values = meaning(config.evaluation, identity)
    if config.evaluation.backend != "vllm":
        del values["vllm"]
    content = {"data": data_identity(config), "model": _model(config, "evaluation"), "evaluation": values}
    return digest(content | _prompts_and_sampling(config, "evaluation") | {"revision": REVISIONS["evaluation"]})


def curve_identity(config: Config) -> str:
    """Identify the evaluation of a run's kept checkpoints, and of which steps, apart from the checkpoints."""
    return digest([evaluation_identity(config, "curve"), config.checkpoint.every])


def identity_of_evaluation(config: Config, checkpoint: str) -> str:
    """Identify an evaluation of one checkpoint. checkpoint: its fingerprint (``checkpoint_digest``)."""
    content = {"evaluation": evaluation_identity(config), "checkpoint": checkpoint, "version": REVISIONS["scores"]}
    return digest(content | files_of(config, config.evaluation.benchmarks))


def identity_of_curve(config: Config, checkpoints: Mapping[int, str], splits: Iterable[str]) -> str:
    """Identify the evaluations of a run's kept checkpoints. checkpoints: step -> fingerprint."""
    content = {"curve": curve_identity(config), "checkpoints": dict(checkpoints), "version": REVISIONS["scores"]}
    return digest(content | files_of(config, splits))


def files_of(config: Config, names: Iterable[str]) -> Json:
    """Return the SHA-256 of the files of real problems, as they may come from the hub or from a folder.

    Raises UserError where the data job's summary is missing or damaged.
    """
    if config.data.source != "hub":
        return {}
    files = read_json(data_directory(config) / SUMMARY)["files"]
    return {"files": {name: files[f"{name}.parquet"]["sha256"] for name in names}}


@cache
def code_identity() -> str:
    """Identify the suite's code and YAML files, after a change of which all tables and figures are made again."""
    root = Path(__file__).resolve().parents[2]
    files = (path for package in ("analysis", "bapo") for path in sorted((root / package).rglob("*")))
    return digest([sha256(path) for path in files if path.suffix in (".py", ".yaml")])
