"""Compose the configuration of a job: scale, task, setting and model by Hydra, the method's layers, then overrides.

Nothing here imports torch: Snakemake reads configurations in every one of its processes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import combinations
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import ValidationError
from yaml import YAMLError

from bapo import methods
from bapo.errors import UserError, unknown
from bapo.experiments import layers, model_files, places
from bapo.experiments.check import check
from bapo.experiments.identity import base_identity
from bapo.experiments.places import options
from bapo.experiments.schema import Config, defaults
from bapo.store.memory import KEPT
from bapo.validate import refused, wrong

ConfigStore.instance().store(name="schema", node=defaults())
#: ``${share:4,${train.batch_size}}``: so many times a count, rounded and at least 1
OmegaConf.register_new_resolver("share", lambda share, count: max(1, round(share * count)), replace=True)

#: the groups whose choices may carry variants (``method=bapo+rollouts``), in the order in which these are laid
VARIED = ("model", "method")
#: overrides that only some methods understand
METHODS_OWN = re.compile(r"method\b")


@dataclass
class Asked:
    """Overrides by what takes them. choices: groups for Hydra; values: keys, applied last; variants: by group."""

    choices: list[str] = field(default_factory=list)
    values: list[str] = field(default_factory=list)
    method: str = layers.METHOD
    variants: dict[str, list[str]] = field(default_factory=dict)


def compose_config(overrides: Sequence[str] = ()) -> Config:
    """Compose ``experiments/`` and overrides, read the model's files where it says so, check every value.

    Raises UserError with the key and the allowed values.
    """
    return model_files.fill(_compose(overrides))


def _compose(overrides: Sequence[str]) -> Config:
    """Compose what follows from ``experiments/`` and the overrides alone, which may be kept."""
    asked = _sorted([o for o in overrides if o])
    config = _start(places.trees(), tuple(asked.choices))
    try:
        layers.lay(config, asked.method, [v for g in VARIED for v in asked.variants.get(g, [])])
        for override in asked.values:
            _set(config, override)
        model_files.derive(config)
        for group, variants in asked.variants.items():
            config[group].name = "+".join((config[group].name, *variants))
            config[group].title = ", ".join((config[group].title, *(config.variant[v] for v in variants)))
        content = OmegaConf.to_container(config, resolve=True)
        method = methods.config_of(content["method"])
    except methods.MethodError as error:
        raise UserError(str(error)) from None
    except OmegaConfBaseException as error:
        raise UserError(_explain(error)) from None
    return _checked(content | {"method": method}, asked.values)


# ------------------------------------------------------------------------------------------------ overrides


def _sorted(overrides: Sequence[str]) -> Asked:
    """Sort overrides by what takes them. Raises UserError for a choice or a variant that does not exist."""
    asked = Asked()
    for override in overrides:
        group, equals, value = override.partition("=")
        if not equals or not (places.EXPERIMENTS / group).is_dir():
            asked.values.append(override)
            continue
        name, *variants = value.split("+") if group in VARIED else [value]
        if name not in options(group):
            raise UserError(unknown(override, f"unknown {group} '{name}'", name, options(group)))
        if variants:
            asked.variants[group] = _checked_variants(override, variants)
        if group == "method":
            asked.method = name
        else:
            asked.choices.append(f"{group}={name}")
    return asked


def _checked_variants(override: str, variants: list[str]) -> list[str]:
    """Raise UserError naming an unknown variant, or two that set the same key, of which only one would count."""
    for variant in variants:
        if variant not in options("variant"):
            raise UserError(unknown(override, f"unknown variant '{variant}'", variant, options("variant")))
    for one, other in combinations(variants, 2):
        if shared := layers.set_twice(layers.keys_of(one), layers.keys_of(other)):
            raise UserError(f"{override}: the variants '{one}' and '{other}' both set {shared[0]}; keep one of them")
    return variants


def _start(trees: tuple[Path, ...], choices: tuple[str, ...]) -> DictConfig:
    """Compose everything but the method's layers and the values with Hydra, once in a process."""
    return KEPT.get(("start", *map(str, trees), choices), lambda: _by_hydra(trees, choices))


def _by_hydra(trees: tuple[Path, ...], choices: tuple[str, ...]) -> DictConfig:
    named = dict(choice.split("=", 1) for choice in choices)
    if "setting" not in named:
        name = f"{named.get('scale', 'laptop')}_{named.get('task', 'countdown')}"
        if name not in options("setting"):
            file = trees[-1] / "setting" / f"{name}.yaml"
            raise UserError(f"{file}: missing: write this file, which says what the task is at this scale")
    suite, *others = trees
    path = [f"hydra.searchpath=['file://{tree}']" for tree in others]  # a project has one
    try:
        with initialize_config_dir(version_base="1.3", config_dir=str(suite)):
            return compose("config", overrides=[*choices, *path])
    except (HydraException, OmegaConfBaseException, YAMLError) as error:
        raise UserError(_explain(error)) from None


def _set(config: DictConfig, override: str) -> None:
    """Set ``KEY=VALUE`` in place; the value is YAML, and a mapping is merged."""
    if not re.match(r"[A-Za-z_][\w.-]*=", override):
        raise wrong(None, override, None, "write KEY=VALUE, or GROUP=NAME")
    key = override.partition("=")[0]
    if key.startswith("data.generator.") and key.count(".") == 2 and key[15:] not in config.data.generator:
        raise UserError(unknown(key, "no such key", key[15:], [str(name) for name in config.data.generator]))
    try:
        config.merge_with(OmegaConf.from_dotlist([override]))
    except (OmegaConfBaseException, YAMLError) as error:
        raise UserError(f"{override}: {' '.join(str(error).split())}") from None


def _checked(content: dict[str, Any], values: Sequence[str]) -> Config:
    """Validate what the layers come to. Raises UserError with the file that a wrong value stands in."""
    try:
        config = Config.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        loc = [str(part) for part in first["loc"]]
        key = ".".join(loc)
        said = any(f"{key}.".startswith(f"{value.partition('=')[0]}.") for value in values)
        raise refused(error, Config, None if said else _file_with(loc, first["input"])) from None
    check(config)
    return config


def _file_with(loc: list[str], value: Any) -> Path | None:
    """Find the one file of ``experiments/`` that gives a key this value; None where several do."""
    found = []
    for path in (p for tree in places.trees() for p in tree.rglob("*.yaml")):
        node: Any = OmegaConf.to_container(layers.read(path)[1])
        for name in loc[1:] if path.parent.name == loc[0] else loc:
            node = node.get(name) if isinstance(node, dict) else None
        found += [path] if node == value else []
    return found[0] if len(found) == 1 else None


def quoted(text: str) -> str:
    """Quote a string as a value of an override."""
    return text if re.fullmatch(r"[\w./\-]+", text) else json.dumps(text, ensure_ascii=False)


def _explain(error: Exception) -> str:
    """Say Hydra's and OmegaConf's errors in one line that begins with the key."""
    text = " ".join(f"{error} {error.__cause__ or ''}".split())  # Hydra hides the reason in the cause
    key = getattr(error, "full_key", None)
    text = text.split(" Config search path")[0].split(" full_key")[0]
    return f"{key}: {text}" if key else text


# ------------------------------------------------------------------------------------------------ variants and cells


def forget() -> None:
    """Read ``experiments/`` anew: what was composed before is kept for the life of the process."""
    KEPT.clear()
    _base_identity.cache_clear()


def composed(overrides: Sequence[str]) -> Config:
    """Compose as :func:`compose_config` does, once for each set of overrides; another seed costs a copy."""
    seeds = [o for o in overrides if re.fullmatch(r"seed=\d+", o)]
    config = _composed(tuple(o for o in overrides if o not in seeds))
    if seeds:
        config.seed = int(seeds[-1].partition("=")[2])
    return config


def _composed(overrides: tuple[str, ...]) -> Config:
    key = ("composed", *map(str, places.trees()), overrides)
    config = KEPT.get(key, lambda: _compose(overrides))
    return model_files.fill(config)


def run_config(scale: str, task: str, model: str, method: str, seed: int, extra: tuple[str, ...] = ()) -> Config:
    """Return the configuration of one cell of a study. Composing is cached: another seed costs a copy."""
    names = [f"scale={scale}", f"task={task}"]
    names += [f"model={model}"] if model else []
    names += [f"method={method}"] if method else []
    config = _composed((*names, *extra))
    config.seed = seed
    for group, name, given in (
        ("task", task, config.task.name),
        ("model", model, config.model.name),
        ("method", method, config.method.name),
    ):
        if group == "model" and name and config.model.from_files and config.model.name != name:
            raise UserError(
                f"model={name}: a study needs a name for its folder; in a project write experiments/model/NAME.yaml "
                "with `defaults: [hf]`, name and path (docs/single_gpu.md)"
            )
        if name and given != name:
            raise UserError(
                f"experiments/{group}/{name}.yaml: name is '{given}', so its runs would lie in another's "
                f"folder; set name: {name}"
            )
    if "+" in method and _base_identity(*names, *extra) != _base_identity(*names[:-1], *_of_base(extra)):
        raise UserError(
            f"method={method}: its variant changes the problems or the base model, which all methods share; make it a "
            "variant of the model"
        )
    return config


@lru_cache(maxsize=256)
def _base_identity(*overrides: str) -> str:
    """Identify the base model that a run with these overrides starts from, whatever its seed."""
    return base_identity(_composed(overrides))


def _of_base(overrides: tuple[str, ...]) -> tuple[str, ...]:
    """Select the overrides that concern the problems and the base model: no method's settings."""
    return tuple(o for o in overrides if not METHODS_OWN.match(o))
