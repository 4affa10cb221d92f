"""The identity of every job: a digest of its meaning, which rules, jobs and plan all ask for here.

A job is done when the identity in its summary equals the one that its configuration has now. Names, titles, paths,
tracking and hardware belong to no identity.
"""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from bapo import methods
from bapo.experiments.places import data_directory
from bapo.store.files import SUMMARY, read_json

#: Raised when a change of the code changes what the same configuration means; part of the identities below.
REVISIONS = {"data": 1, "base": 1, "torch": 1, "verl": 1, "evaluation": 1, "scores": 1}


def digest(content: Any) -> str:
    """Return 16 hex digits of the SHA-256 of the sorted compact JSON of ``content``."""
    if isinstance(content, DictConfig):
        content = OmegaConf.to_container(content, resolve=True, enum_to_str=True)
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _plain(node: Any) -> Any:
    return OmegaConf.to_container(node, resolve=True, enum_to_str=True) if isinstance(node, DictConfig) else node


def _without(node: Any, *keys: str) -> dict[str, Any]:
    return {k: v for k, v in _plain(node).items() if k not in keys}


def data_identity(config: DictConfig) -> str:
    """Identify the problems of a task."""
    data = _plain(config.data)
    if not data.get("cleaning"):  # the defaults
        data.pop("cleaning", None)
    return digest({"task": config.task.name, "data": data, "revision": REVISIONS["data"]})


def base_identity(config: DictConfig) -> str:
    """Identify the model that reinforcement learning starts from."""
    facts = ("name", "title", "parameters", "context_length")  # about the checkpoint; they do not change it
    content = {"data": data_identity(config), "model": _without(config.model, *facts)}
    if config.model.kind == "scratch":
        content |= {
            "revision": REVISIONS["base"],
            "base": _plain(config.base),
            "sampling": _without(config.sampling, "temperature", "top_p", "top_k"),
        }
    return digest(content)


def train_identity(config: DictConfig) -> str:
    """Identify a run: the result changes when, and only when, the run's numbers may change.

    The ``revision`` of the method's class belongs to it, and is raised when the code changes its meaning.
    """
    return digest(
        {
            "base": base_identity(config),
            "engine": config.engine,
            "seed": config.seed,
            "sampling": _plain(config.sampling),
            # the method's own kl_coef and entropy_coef count, which take train's values where they use them
            "train": _without(config.train, "micro_batch_size", "kl_coef", "entropy_coef", *_unused_budget(config)),
            "probe": _plain(config.probe),
            "method": _without(config.method, "name", "title", "kind"),
            "revision": [REVISIONS[config.engine], methods.get(config.method.algorithm).revision],
        }
    )


def _unused_budget(config: DictConfig) -> list[str]:
    return ["budget"] if config.train.budget.unit == "steps" else []


#: keys of evaluation that say how the work is done, or that the evaluation of a last checkpoint does not read
_NOT_THE_SAMPLES = ("backend", "batch_size", "vllm", "server", "curve_samples", "validation")


def evaluation_identity(config: DictConfig) -> str:
    """Identify what an evaluation asks of any checkpoint; the number of GPUs or requests at a time does not matter."""
    return digest(_evaluation_content(config))


def curve_identity(config: DictConfig) -> str:
    """Identify what the evaluation of a run's kept checkpoints asks, and of which steps."""
    content = _evaluation_content(config)
    content["evaluation"]["samples"] = config.evaluation.curve_samples
    return digest([content, config.evaluation.validation, config.checkpoint.every])


def _evaluation_content(config: DictConfig) -> dict[str, Any]:
    e = config.evaluation
    content = {
        "data": data_identity(config),
        "evaluation": _without(e, *_NOT_THE_SAMPLES, "images"),
        "sampling": _plain(config.sampling),
        "model": [config.model.dtype, config.model.attention],
        "revision": REVISIONS["evaluation"],
    }
    if e.images != "own":
        content["images"] = e.images
    if e.backend != "torch":
        content["backend"] = [e.backend, e.vllm.dtype if e.backend == "vllm" else e.server.model]
    return content


def identity_of_evaluation(config: DictConfig, checkpoint: str) -> str:
    """Identify an evaluation of one checkpoint. checkpoint: its fingerprint (``checkpoint_digest``)."""
    content = {"evaluation": evaluation_identity(config), "checkpoint": checkpoint, "version": REVISIONS["scores"]}
    return digest(content | _files_of(config, config.evaluation.benchmarks))


def identity_of_curve(config: DictConfig, checkpoints: Mapping[int, str], splits: Iterable[str]) -> str:
    """Identify the evaluations of a run's kept checkpoints. checkpoints: step -> fingerprint."""
    content = {"curve": curve_identity(config), "checkpoints": dict(checkpoints), "version": REVISIONS["scores"]}
    return digest(content | _files_of(config, splits))


def _files_of(config: DictConfig, names: Iterable[str]) -> dict[str, Any]:
    """Fingerprint real problems: one configuration may mean different files, from the hub or from a folder."""
    if config.data.source != "hub":
        return {}
    files = read_json(data_directory(config) / SUMMARY)["files"]
    return {"files": {name: files[f"{name}.parquet"]["sha256"] for name in names}}


@cache
def code_identity(package: str) -> str:
    """Identify the code and the YAML files of a package beside this one, with every module here that it imports."""
    root = Path(__file__).resolve().parents[2]
    files = {*(root / package).rglob("*.py"), *(root / package).rglob("*.yaml")}
    waiting = [file for file in files if file.suffix == ".py"]
    while waiting:
        modules = {
            file for name in _imported(waiting.pop()) for file in (root / f"{name}.py", root / name / "__init__.py")
        }
        waiting += [file for file in modules - files if file.exists()]
        files |= set(waiting)
    return digest([file.read_text(encoding="utf-8") for file in sorted(files)])


def _imported(module: Path) -> Iterator[str]:
    """Yield the path without suffix of what a module imports: each name may be a module, or in one."""
    for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            base = str(node.module).replace(".", "/")
            yield from (base, *(f"{base}/{a.name}" for a in node.names))
        elif isinstance(node, ast.Import):
            yield from (a.name.replace(".", "/") for a in node.names)
