"""The identity of every job: a digest of its meaning, which rules, jobs and plan all ask for here.

A job is done when the identity in its summary equals the one that its configuration has now. Names, titles, paths,
tracking and hardware belong to no identity.
"""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Iterable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any

from bapo import methods, project, tasks
from bapo.experiments import shipped_bases
from bapo.experiments.places import data_directory
from bapo.experiments.schema import Config
from bapo.store.files import SUMMARY, read_json
from bapo.store.memory import KEPT
from bapo.validate import plain

#: Raised when a change of the code changes what the same configuration means; part of the identities below.
REVISIONS = {"data": 1, "base": 1, "torch": 1, "verl": 1, "evaluation": 1, "scores": 1}

#: keys of data that say how a problem is put to a model
CHAT = ("chat_template", "system", "chat_template_kwargs")


def digest(content: Any) -> str:
    """Return 16 hex digits of the SHA-256 of the sorted compact JSON of ``content``."""
    text = json.dumps(plain(content), sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _without(node: Any, *keys: str) -> dict[str, Any]:
    return {k: v for k, v in plain(node).items() if k not in keys}


def data_identity(config: Config) -> str:
    """Identify the problems of a task."""
    data = _without(config.data, *CHAT)  # the problems are the same; what a model reads is in the identities below
    data["split_sizes"].pop("base", None)  # documents, which the base job draws
    if not data.get("cleaning"):  # the defaults
        data.pop("cleaning", None)
    if data.get("grading", "strict") == "strict":
        data.pop("grading", None)
    content = {"task": config.task.name, "data": data, "revision": REVISIONS["data"]}
    return digest(content | _from_outside(config))


def _from_outside(config: Config) -> dict[str, Any]:
    """Identify the code and the files of a task from outside the suite; {} for the suite's own."""
    if config.task.name in tasks.table():
        return {}
    from bapo.tasks import outside
    from bapo.tasks.real import sources

    return {"outside": outside.meaning(config.task.name), "rows": sources.local_files(config.data.hub)}


def base_identity(config: Config) -> str:
    """Identify the model that reinforcement learning starts from, with the problems that it is put to."""
    content: dict[str, Any] = {"data": data_identity(config)}
    if config.model.kind == "scratch":
        shipped = shipped_base(config)
        return digest(content | {"weights": shipped.sha256 if shipped else base_recipe(config)})
    return digest(content | {"model": _model(config)})


def shipped_base(config: Config) -> shipped_bases.Shipped | None:
    """Return the base model of ``config`` that comes with the suite; None where it is trained here, or pretrained."""
    if config.model.kind != "scratch" or config.base.source == "train":
        return None
    return shipped_bases.index().get(base_recipe(config))


def base_recipe(config: Config) -> str:
    """Identify what a base model is trained from and how; it sees documents and none of the problems."""
    data = _without(config.data, "split_sizes", "hub", "cleaning", "grading", *CHAT)
    content = {
        "documents": {**data, "count": config.data.split_sizes.get("base"), "task": config.task.name},
        "model": _model(config),
        "base": _without(config.base, "source", "threads"),
        "sampling": _without(config.sampling, "temperature", "top_p", "top_k", "stop_tokens"),
        "revision": [REVISIONS["data"], REVISIONS["base"]],
    }
    return digest(content | _from_outside(config))


def _model(config: Config) -> dict[str, Any]:
    """Return what a model is, without the facts about it that do not change it."""
    facts = ("name", "title", "parameters", "context_length", "from_files", "code")
    return {**_without(config.model, *facts), **_family(config)}


def _family(config: Config) -> dict[str, Any]:
    """Identify the code of a model whose family is the user's own; {} for transformers' families."""
    code = config.model.code
    return {"code": [code, project.code_digest_of(code)]} if code else {}


def train_identity(config: Config) -> str:
    """Identify a run: the result changes when, and only when, the run's numbers may change.

    The ``revision`` of the method's class belongs to it, and is raised when the code changes its meaning.
    """
    return identity_of_seed(train_content(config), config.seed)


def identity_of_seed(content: Mapping[str, Any], seed: int) -> str:
    """Identify a run by what all seeds of its method have in common (:func:`train_content`), and its seed."""
    return digest({**content, "seed": seed})


def train_content(config: Config) -> dict[str, Any]:
    """Return all that a run's identity consists of but the seed."""
    return {
        "base": base_identity(config),
        "engine": config.engine,
        **_sampling(config),
        # the method's own kl_coef and entropy_coef count, which take train's values where they use them
        "train": _without(config.train, *_MEMORY_ONLY, "kl_coef", "entropy_coef", *_unused(config)),
        "probe": plain(config.probe),
        "method": _without(config.method, "name", "title", "kind"),
        "revision": [REVISIONS[config.engine], *methods.revision(config.method.algorithm)],
        **_masters(config),
    }


def _masters(config: Config) -> dict[str, Any]:
    """Mark runs of the torch engine in a narrower type, whose optimiser once trained that type itself."""
    narrow = config.engine == "torch" and config.model.dtype != "float32"
    return {"master_weights": "float32"} if narrow else {}


def _sampling(config: Config) -> dict[str, Any]:
    """Return how responses are drawn: the sampling, and how a model is asked where that is not its own template's way.

    Keys that came later and have their default leave identities as they were.
    """
    sampling = plain(config.sampling)
    if not sampling["stop_tokens"]:
        del sampling["stop_tokens"]
    chat = chat_of(config)
    return {"sampling": sampling, **({"chat": chat} if chat else {})}


def chat_of(config: Config) -> dict[str, Any]:
    """Return the keys of CHAT that are set, with their values."""
    return {key: plain(getattr(config.data, key)) for key in CHAT if getattr(config.data, key) not in (None, {})}


def _unused(config: Config) -> list[str]:
    """List keys of train that came later and leave a run as it was."""
    names = ["budget"] if config.train.budget.unit == "steps" else []
    return names + (["old_logprobs"] if config.train.old_logprobs == "rollout" else [])


#: keys of train that decide how much memory a step takes, and nothing beyond rounding else
_MEMORY_ONLY = ("micro_batch_size", "micro_batch_memory", "gradient_checkpointing")

#: keys of evaluation that say how the work is done, or that the evaluation of a last checkpoint does not read
_NOT_THE_SAMPLES = ("backend", "batch_size", "vllm", "server", "curve_samples", "validation")


def evaluation_identity(config: Config) -> str:
    """Identify what an evaluation asks of any checkpoint; the number of GPUs or requests at a time does not matter."""
    return digest(_evaluation_content(config))


def curve_identity(config: Config) -> str:
    """Identify what the evaluation of a run's kept checkpoints asks, and of which steps."""
    content = _evaluation_content(config)
    content["evaluation"]["samples"] = config.evaluation.curve_samples
    return digest([content, config.evaluation.validation, config.checkpoint.every])


def _evaluation_content(config: Config) -> dict[str, Any]:
    e = config.evaluation
    content = {
        "data": data_identity(config),
        "evaluation": _without(e, *_NOT_THE_SAMPLES, "images"),
        **_sampling(config),
        "model": [config.model.dtype, config.model.attention, *_family(config).values()],
        "revision": REVISIONS["evaluation"],
    }
    if e.images != "own":
        content["images"] = e.images
    if e.backend == "torch" and config.model.kind == "pretrained":
        content["ends"] = "generation_config"  # once the tokenizer's alone ended responses
    if e.backend != "torch":
        if e.backend == "vllm" and config.data.chat_template:
            content["template"] = config.data.chat_template  # once vLLM was asked by the model's own
        content["backend"] = [e.backend, e.vllm.dtype if e.backend == "vllm" else e.server.model]
    return content


def identity_of_evaluation(config: Config, checkpoint: str) -> str:
    """Identify an evaluation of one checkpoint. checkpoint: its fingerprint (``checkpoint_digest``)."""
    content = {"evaluation": evaluation_identity(config), "checkpoint": checkpoint, "version": REVISIONS["scores"]}
    return digest(content | files_of(config, config.evaluation.benchmarks))


def identity_of_curve(config: Config, checkpoints: Mapping[int, str], splits: Iterable[str]) -> str:
    """Identify the evaluations of a run's kept checkpoints. checkpoints: step -> fingerprint."""
    content = {"curve": curve_identity(config), "checkpoints": dict(checkpoints), "version": REVISIONS["scores"]}
    return digest(content | files_of(config, splits))


def files_of(config: Config, names: Iterable[str]) -> dict[str, Any]:
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
        text = waiting.pop().read_bytes()
        names = KEPT.get(("imported", hashlib.sha256(text).digest()), partial(_imported, text))
        modules = {file for name in names for file in (root / f"{name}.py", root / name / "__init__.py")}
        waiting += [file for file in modules - files if file.exists()]
        files |= set(waiting)
    return digest([file.read_text(encoding="utf-8") for file in sorted(files)])


def _imported(module: bytes) -> set[str]:
    """Return the path without suffix of what a module's source imports of ours: each may be a module, or in one."""
    names = project.imported_names(ast.parse(module))
    # where the suite is installed, all other packages lie beside it
    return {name.replace(".", "/") for name in names if name.partition(".")[0] in ("bapo", "analysis")}
