"""The configuration of a run: composed by Hydra from ``experiments/``, checked, and reduced to its meaning.

Nothing here imports torch: Snakemake reads configurations in every one of its processes.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import combinations

from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from bapo import methods
from bapo.errors import UserError, unknown
from bapo.experiments import layers, places
from bapo.experiments.check import check
from bapo.experiments.identity import base_identity, train_identity
from bapo.experiments.places import options
from bapo.experiments.schema import Config
from bapo.store.files import flat

ConfigStore.instance().store(name="schema", node=Config)
#: ``${share:4,${train.batch_size}}``: so many times a count, rounded and at least 1
OmegaConf.register_new_resolver("share", lambda share, count: max(1, round(share * count)), replace=True)

# ------------------------------------------------------------------------------------------------ composing


def _explain(error: Exception, overrides: Sequence[str]) -> str:
    """Hydra's and OmegaConf's errors as one sentence with the allowed values."""
    text = " ".join(f"{error} {error.__cause__ or ''}".split())  # Hydra hides the reason in the cause
    for override in overrides:
        group, _, value = override.lstrip("+~").partition("=")
        if (
            (places.EXPERIMENTS / group).is_dir()
            and value
            and value[0] != "["
            and not (places.EXPERIMENTS / group / f"{value}.yaml").exists()
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
            return (f"{places.EXPERIMENTS.name}/{file[1]}.yaml: " if file else "") + _unknown_key(key[1], overrides)
    text = text.split(" Config search path")[0]
    key = re.search(r"full_key: ([\w.]+)", text)
    return f"{key[1]}: {text.split(' full_key')[0]}" if key else text


def _unknown_key(key: str, overrides: Sequence[str]) -> str:
    """Names the first part of the key that does not exist, and what could stand there."""
    choices = [o for o in overrides if (places.EXPERIMENTS / o.partition("=")[0]).is_dir()]
    try:
        with initialize_config_dir(version_base="1.3", config_dir=str(places.EXPERIMENTS)):
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
        with initialize_config_dir(version_base="1.3", config_dir=str(places.EXPERIMENTS)):
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
        config = layers.lay(shared, places.EXPERIMENTS, shared.task.name, method, names, start)
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
        content = OmegaConf.to_container(OmegaConf.load(places.EXPERIMENTS / "variant" / f"{name}.yaml"))
    except (OmegaConfBaseException, YAMLError, OSError):  # composing says what is wrong with it
        return frozenset()
    return frozenset(flat(content) if isinstance(content, dict) else ())


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
