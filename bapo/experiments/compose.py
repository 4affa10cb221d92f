"""The configuration of a run: composed by Hydra from ``experiments/``, checked, and reduced to its meaning.

Nothing here imports torch: Snakemake reads configurations in every one of its processes.
"""

from __future__ import annotations

import copy
import difflib
import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import combinations
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from bapo import methods
from bapo.errors import UserError
from bapo.experiments import layers
from bapo.experiments.schema import Config
from bapo.store import runs

#: The Hydra tree. It lies beside the package in a checkout; BAPO_EXPERIMENTS names another one.
EXPERIMENTS = Path(os.environ.get("BAPO_EXPERIMENTS", Path(__file__).resolve().parent.parent / "experiments"))


ConfigStore.instance().store(name="schema", node=Config)
#: ``${share:4,${train.batch_size}}``: so many times a count, rounded and at least 1
OmegaConf.register_new_resolver("share", lambda share, count: max(1, round(share * count)), replace=True)

# ------------------------------------------------------------------------------------------------ composing


def options(group: str) -> list[str]:
    """The names that ``group=...`` accepts."""
    return sorted(p.stem for p in (EXPERIMENTS / group).glob("*.yaml"))


def _explain(error: Exception, overrides: Sequence[str]) -> str:
    """Hydra's and OmegaConf's errors as one sentence with the allowed values."""
    text = " ".join(f"{error} {error.__cause__ or ''}".split())  # Hydra hides the reason in the cause
    for override in overrides:
        group, _, value = override.lstrip("+~").partition("=")
        if (
            (EXPERIMENTS / group).is_dir()
            and value
            and value[0] != "["
            and not (EXPERIMENTS / group / f"{value}.yaml").exists()
        ):
            return unknown(f"{group}={value}", f"unknown {group} '{value}'", value, options(group))
    if weaker := re.search(r"Interpolation key 'regimes\.(\w+)'", text):
        return (
            f"model=...+{weaker[1]}: this task has no weaker bases at this scale; for a model trained from scratch add "
            f"regimes.{weaker[1]}, its base.iterations, to experiments/setting/"
        )
    if "Could not override" in text or "not in struct" in text or "not in '" in text:
        key = re.search(r"Could not override '([\w.+]+)'", text) or re.search(r"full_key: ([\w.]+)", text)
        if key:
            file = re.search(r"In '([\w/.-]+)':", text)
            return (f"{EXPERIMENTS.name}/{file[1]}.yaml: " if file else "") + _unknown_key(key[1], overrides)
    text = text.split(" Config search path")[0]
    key = re.search(r"full_key: ([\w.]+)", text)
    return f"{key[1]}: {text.split(' full_key')[0]}" if key else text


def unknown(where: str, what: str, value: str, allowed: Sequence[str]) -> str:
    close = difflib.get_close_matches(value, allowed, 1)
    hint = f" (did you mean '{close[0]}'?)" if close else ""
    return f"{where}: {what}{hint}; allowed: {', '.join(allowed)}"


def _unknown_key(key: str, overrides: Sequence[str]) -> str:
    """Names the first part of the key that does not exist, and what could stand there."""
    choices = [o for o in overrides if (EXPERIMENTS / o.partition("=")[0]).is_dir()]
    try:
        with initialize_config_dir(version_base="1.3", config_dir=str(EXPERIMENTS)):
            node = compose("config", overrides=choices)
    except (HydraException, OmegaConfBaseException, YAMLError):  # the tree itself has the fault
        node = OmegaConf.structured(Config)
    where: list[str] = []
    for name in key.split("."):
        where.append(name)
        if not isinstance(node, DictConfig) or name not in list(node.keys()):
            allowed = [str(k) for k in node] if isinstance(node, DictConfig) else ["none below a value"]
            return unknown(".".join(where), f"no such key '{name}'", name, allowed)
        node = node._get_node(name)
    return f"{key}: no such key here"


def compose_config(overrides: Sequence[str] = ()) -> DictConfig:
    """Compose ``experiments/config.yaml`` with Hydra overrides and check every value.

    Raises UserError with the key and the allowed values.
    """
    asked = [o for o in overrides if o]
    overrides, variants = _split_variants(asked)
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(version_base="1.3", config_dir=str(EXPERIMENTS)):
            config = compose("config", overrides=list(overrides))
        _finish(config, variants)
    except methods.MethodError as error:
        raise UserError(str(error)) from None
    except (HydraException, OmegaConfBaseException, YAMLError, ValueError) as error:
        raise UserError(_explain(error, overrides)) from None
    _require_right(config, asked)
    return config


def _require_right(config: DictConfig, asked: Sequence[str]) -> None:
    """What composing does not tell: every key has a value, the values fit, each variant has an effect."""
    missing = sorted(OmegaConf.missing_keys(config))
    if missing:
        raise UserError(f"{missing[0]} has no value: set it in experiments/ or add {missing[0]}=... to the command")
    check(config)
    _require_effect(config, asked)


def _finish(config: DictConfig, variants: Mapping[str, Sequence[str]]) -> None:
    """The method checked and complete, and the variants in the names and titles. variants: of model and method."""
    config.method = methods.checked(config.method)
    for group, names in variants.items():
        config[group].name = "+".join((config[group].name, *names))
        config[group].title = ", ".join((config[group].title, *(config.variant[n] for n in names)))
    if variants:  # one may refer to what this setting does not have
        OmegaConf.to_container(config, resolve=True)


def _laid(overrides: tuple[str, ...]) -> DictConfig | None:
    """What compose_config gives, laid over the configuration of the task and the model; None where only it can tell."""
    named = dict(o.partition("=")[::2] for o in overrides)
    if "method" not in named or len(named) < len(overrides):
        return None
    plain, variants = _split_variants(list(overrides))
    start = tuple(o for o in plain if not o.startswith(("method=", "variant=")))
    try:
        shared = _composed(start)
        method = named["method"].split("+")[0]
        names = [v for group in VARIED for v in variants.get(group, [])]
        config = layers.lay(shared, EXPERIMENTS, shared.task.name, method, names, start)
        if config is None:
            return None
        _finish(config, variants)
    except (UserError, methods.MethodError, OmegaConfBaseException, ValueError):  # compose_config explains it
        return None
    _require_right(config, overrides)
    return config


def _require_effect(config: DictConfig, overrides: Sequence[str]) -> None:
    """Each variant changes what its choice stands for. Raises UserError naming one that changes nothing.

    A variant that changes nothing would train the same run again, into a folder that claims another. What a
    configuration is compared with is the one without its last variant, itself checked so.
    """
    for at, override in enumerate(overrides):
        group, _, value = override.partition("=")
        shorter, _, variant = value.rpartition("+")
        if group not in VARIED or not shorter:
            continue
        identity = {"model": base_identity, "method": train_identity}[group]
        others = (*overrides[:at], f"{group}={shorter}", *overrides[at + 1 :])
        # all methods share what a model starts from, so one of them is enough
        if identity(config) == identity(_composed(_start(others) if group == "model" else others)):
            raise UserError(
                f"{override}: the variant '{variant}' changes nothing in {shorter} here; leave it out, or take another"
            )


def _variant_keys(name: str) -> frozenset[str]:
    """The keys that a variant sets, dotted."""
    try:
        content = OmegaConf.to_container(OmegaConf.load(EXPERIMENTS / "variant" / f"{name}.yaml"))
    except (OmegaConfBaseException, YAMLError, OSError):  # composing says what is wrong with it
        return frozenset()
    return frozenset(runs.flat(content) if isinstance(content, dict) else ())


def _require_apart(where: str, variants: Sequence[str]) -> None:
    """Raises UserError naming two variants that set the same key, of which only one would count."""
    for one, other in combinations(variants, 2):
        shared = [
            a
            for a in sorted(_variant_keys(one))
            for b in _variant_keys(other)
            if a == b or a.startswith(f"{b}.") or b.startswith(f"{a}.")
        ]
        if shared:
            raise UserError(f"{where}: the variants '{one}' and '{other}' both set {shared[0]}; keep one of them")


def _split_variants(overrides: list[str]) -> tuple[list[str], dict[str, list[str]]]:
    """``method=bapo+rollouts`` as Hydra takes it, ``method=bapo variant=[rollouts]``, and the variants of each group.

    Those of the model are laid over the configuration first. Raises UserError naming an unknown one.
    """
    plain, found = [], {}
    for override in overrides:
        group, _, value = override.partition("=")
        name, *variants = value.split("+") if group in VARIED else [value]
        for variant in variants:
            if variant not in options("variant"):
                raise UserError(unknown(override, f"unknown variant '{variant}'", variant, options("variant")))
        _require_apart(override, variants)
        plain.append(f"{group}={name}" if variants else override)
        if variants:
            found[group] = variants
    names = [v for group in VARIED for v in found.get(group, [])]
    return plain + ([f"variant=[{','.join(names)}]"] if names else []), found


#: the groups whose choices may carry variants, in the order in which these are laid over the configuration
VARIED = ("model", "method")


@lru_cache(maxsize=512)
def _composed(overrides: tuple[str, ...]) -> DictConfig:
    return _laid(overrides) or compose_config(overrides)


def run_config(scale: str, task: str, model: str, method: str, seed: int, extra: tuple[str, ...] = ()) -> DictConfig:
    """The configuration of one cell of a study. Composing is cached; a seed costs a copy only."""
    names = [f"scale={scale}", f"task={task}"]
    names += [f"model={model}"] if model else []
    names += [f"method={method}"] if method else []
    config = copy.deepcopy(_composed((*names, *extra)))
    config.seed = seed
    for group, asked in (("task", task), ("model", model), ("method", method)):
        if asked and config[group].name != asked:
            raise UserError(
                f"experiments/{group}/{asked}.yaml: name is '{config[group].name}', so its runs would lie in another's "
                f"folder; set name: {asked}"
            )
    if "+" in method and _start_identity(*names, *extra) != _start_identity(*names[:-1], *_start(extra)):
        raise UserError(
            f"method={method}: its variant changes the problems or the base model, which all methods share; make it a "
            "variant of the model"
        )
    return config


@lru_cache(maxsize=256)
def _start_identity(*overrides: str) -> str:
    """Of the base model that a run with these overrides starts from, whatever its seed."""
    return base_identity(_composed(overrides))


def _start(overrides: tuple[str, ...]) -> tuple[str, ...]:
    """Those that concern the problems and the base model: no method's settings."""
    return tuple(o for o in overrides if not METHODS_OWN.match(o))


#: overrides that only some methods understand
METHODS_OWN = re.compile(r"[+~]*(method|fidelity)\b")


def check(config: DictConfig) -> None:
    """Rules that types cannot express. Raises UserError naming the key, the value and what is allowed."""

    def require(ok: bool, key: str, rule: str) -> None:
        if not ok:
            raise UserError(f"{key}={OmegaConf.select(config, key)}: {rule}")

    def one_of(key: str, *allowed: str) -> None:
        require(OmegaConf.select(config, key) in allowed, key, f"must be one of {', '.join(allowed)}")

    one_of("engine", "torch", "verl")
    one_of("device", "auto", "cpu", "cuda")
    one_of("model.kind", "scratch", "pretrained")
    one_of("model.dtype", "float32", "bfloat16", "float16")
    for key in ("probe.samples", "evaluation.batch_size", "base.batch_size", "base.threads"):
        require(OmegaConf.select(config, key) >= 1, key, "must be at least 1")
    for key in ("train", "base"):
        node = config[key]
        require(node.grad_clip > 0, f"{key}.grad_clip", "must be positive")
        require(node.weight_decay >= 0, f"{key}.weight_decay", "must be 0 or more")
        require(len(node.betas) == 2 and all(0 <= b < 1 for b in node.betas), f"{key}.betas", "two values in [0, 1)")
    micro = config.train.micro_batch_size
    require(micro is None or micro >= 1, "train.micro_batch_size", "must be at least 1, or null")
    require(
        config.model.kind == "scratch" or config.model.path,
        "model.path",
        "name a folder or a hub model",
    )
    one_of("data.source", "generated", "hub")
    one_of("tracking.kind", "wandb", "none")
    one_of("tracking.mode", "offline", "online", "disabled")
    one_of("train.underfilled", "fewer-updates", "smaller-mini-batches")
    one_of("evaluation.backend", "torch", "vllm", "server")
    one_of("evaluation.images", "own", "shuffled")
    t = config.train
    require((t.steps is None) != (t.epochs is None), "train.steps", "set exactly one of train.steps and train.epochs")
    for key in ("batch_size", "mini_batch_size", "group_size"):
        require(t[key] >= 1, f"train.{key}", "must be at least 1")
    for key in ("evaluation.samples", "evaluation.curve_samples", "threads"):
        require(OmegaConf.select(config, key) >= 1, key, "must be at least 1")
    require(t.steps is None or t.steps >= 1, "train.steps", "must be at least 1")
    one_of("train.budget.unit", "steps", "rollouts", "updates", "flops")
    require(t.budget.most >= 1, "train.budget.most", "must be at least 1")
    require(
        (t.budget.unit == "steps") == (t.budget.like is None),
        "train.budget.like",
        f"name the method whose run sets the number of {t.budget.unit}, or leave both unit and like alone",
    )
    require(t.epochs is None or t.epochs >= 1, "train.epochs", "must be at least 1")
    require(t.group_size >= 2, "train.group_size", "an advantage within a group needs at least 2 responses a prompt")
    require(
        t.mini_batch_size <= t.batch_size, "train.mini_batch_size", f"must be at most train.batch_size={t.batch_size}"
    )
    require(t.learning_rate > 0, "train.learning_rate", "must be positive")
    require(config.seed >= 0, "seed", "must be 0 or more")
    for part in ("sampling", "evaluation"):
        require(config[part].temperature > 0, f"{part}.temperature", "must be positive")
        require(0 < config[part].top_p <= 1, f"{part}.top_p", "must be in (0, 1]")
    for key in ("sampling.max_prompt_tokens", "sampling.max_response_tokens"):
        require(OmegaConf.select(config, key) >= 1, key, "must be at least 1")
    tokens = config.sampling.max_prompt_tokens + config.sampling.max_response_tokens
    require(
        config.model.context_length is None or tokens <= config.model.context_length,
        "sampling.max_response_tokens",
        f"with sampling.max_prompt_tokens={config.sampling.max_prompt_tokens} a sequence may take {tokens} tokens, but "
        f"model={config.model.name} has {config.model.context_length} positions; lower either, or choose another model",
    )
    require(config.sampling.top_k == -1 or config.sampling.top_k >= 1, "sampling.top_k", "-1 (off) or at least 1")
    require(config.checkpoint.every >= 1, "checkpoint.every", "must be at least 1")


# ------------------------------------------------------------------------------------------------ meaning


#: Raised when a change of the code changes what the same configuration means; part of the identities below.
REVISIONS = {"data": 1, "base": 1, "torch": 1, "verl": 1, "evaluation": 1}


def digest(content: Any) -> str:
    """16 hex digits of the SHA-256 of the sorted compact JSON of ``content``."""
    if isinstance(content, DictConfig):
        content = OmegaConf.to_container(content, resolve=True, enum_to_str=True)
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _plain(node: Any) -> Any:
    return OmegaConf.to_container(node, resolve=True, enum_to_str=True) if isinstance(node, DictConfig) else node


def _without(node: Any, *keys: str) -> dict[str, Any]:
    return {k: v for k, v in _plain(node).items() if k not in keys}


def data_identity(config: DictConfig) -> str:
    """Changes when the problems change."""
    data = _plain(config.data)
    if not data.get("cleaning"):  # the defaults
        data.pop("cleaning", None)
    return digest({"task": config.task.name, "data": data, "revision": REVISIONS["data"]})


def base_identity(config: DictConfig) -> str:
    """Changes when the model that reinforcement learning starts from changes."""
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
    """The run's identity: changes when, and only when, its numbers may change.

    Names, titles, paths, tracking and hardware are not part of it. ``revision`` of the method's class is: it is
    raised when the code changes its meaning.
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
    """Changes when an evaluation of the same checkpoint would give other numbers.

    How many GPUs or requests at a time, and where the server is, are not part of it.
    """
    return digest(_evaluation_content(config))


def curve_identity(config: DictConfig) -> str:
    """Changes when the accuracies of the same run's kept checkpoints would be others, or those of other steps."""
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


# ------------------------------------------------------------------------------------------------ hardware, places


def on_gpus(config: DictConfig) -> bool:
    """Left to itself (device=auto), a pretrained model belongs on GPUs, a small one on CPU cores."""
    return config.device == "cuda" or (config.device == "auto" and config.model.kind == "pretrained")


def run_directory(config: DictConfig, method: str | None = None) -> Path:
    """results/<scale>/<task>/<model>/<method>/seed<k>; method: another one's run of the same base and seed."""
    return model_directory(config) / (method or config.method.name) / f"seed{config.seed}"


def model_directory(config: DictConfig) -> Path:
    return task_directory(config) / config.model.name


def task_directory(config: DictConfig) -> Path:
    return Path(config.paths.results) / scale_directory(config) / config.task.name


def scale_directory(config: DictConfig) -> str:
    """The scale's name; a run through another engine than the scale's own does not overwrite its results."""
    own = config.engine == config.scale.engine
    return config.scale.name if own else f"{config.scale.name}-{config.engine}"


def base_directory(config: DictConfig) -> Path:
    return model_directory(config) / "base"


def data_directory(config: DictConfig) -> Path:
    return task_directory(config) / "data"


def to_method(config: DictConfig) -> methods.Method:
    """The method object of a run, ready for its hooks."""
    return methods.build(config.method, batch_size=config.train.batch_size, seed=config.seed)
