"""The layers of ``experiments/`` over a task and a model: a method's class and files, then variants.

Hydra composes scale, task, setting and model once; a study has a dozen methods a model, which only differ in these
layers. From the first to the last: the defaults of the method's class, ``method/NAME.yaml`` over the files that its
defaults list names, ``adjustment/TASK_METHOD.yaml`` where there is one, ``variant/*.yaml``.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from bapo import methods
from bapo.errors import UserError, unknown
from bapo.experiments import places
from bapo.experiments.places import options

METHOD = "grpo"  # where nobody names one


def lay(config: DictConfig, method: str, variants: Sequence[str]) -> None:
    """Merge the layers into the composed ``config`` of a task and a model, in place.

    Raises UserError naming the file and the key that does not exist or has another type.
    """
    named = _method_file(method)
    algorithm = named.get("algorithm")
    if not algorithm:
        raise UserError(f"{_path('method', method)}: algorithm has no value: name a class of bapo/methods/")
    defaults = methods.defaults(algorithm)
    config.method = OmegaConf.merge(defaults, {"name": algorithm}, named)
    adjustment = f"{config.task.name}_{method}"
    layers = [("adjustment", adjustment)] if adjustment in options("adjustment") else []
    OmegaConf.set_struct(config, False)  # the schema refuses what does not exist
    for group, name in layers:
        path = _path(group, name)
        _merge(config, path, read(path)[1])
    for name in variants:
        path, content = places.variants()[name]
        _merge(config, path, {key: value for key, value in content.items() if key != "title"})
        config.variant[name] = content["title"]


def _merge(config: DictConfig, path: Path, content: DictConfig | dict[str, Any]) -> None:
    try:
        config.merge_with(content)
    except (OmegaConfBaseException, ValueError) as error:
        key = getattr(error, "full_key", None) or ""
        raise UserError(f"{path}: {key}: {str(error).splitlines()[0]}") from None


def _method_file(name: str) -> DictConfig:
    """Merge ``method/NAME.yaml`` over the files of the other methods that its defaults list names."""
    path = _path("method", name)
    package, content = read(path)
    if package:
        raise UserError(f"{path}: has a package, `{package}`; a method's file says what stands below `method`")
    stated = copy.deepcopy(content)
    below: list[DictConfig] = []
    for entry in stated.pop("defaults", ["_self_"]):
        if entry == "_self_":
            continue
        if not isinstance(entry, str):
            raise UserError(f"{path}: defaults: {entry}: name a method")
        below.append(_method_file(entry))
    return OmegaConf.merge(*below, stated)


def parent_of(method: str) -> str | None:
    """Return the method that another one begins with, the first of its defaults list; None where it stands alone."""
    first = next(iter(read(_path("method", method))[1].get("defaults", ())), None)
    return first if isinstance(first, str) and first != "_self_" else None


def stated_by(method: str) -> frozenset[str]:
    """Return the dotted keys in which a method's file differs from its parent's."""
    parent = parent_of(method)
    below = OmegaConf.to_container(_method_file(parent)) if parent else {}
    stated = OmegaConf.to_container(_method_file(method))
    return frozenset(f"method.{key}" for key, value in stated.items() if key not in below or below[key] != value)


def _path(group: str, name: str) -> Path:
    """Return the file of a choice. Raises UserError listing those that exist."""
    if name not in options(group):
        raise UserError(unknown(f"{group}={name}", f"unknown {group} '{name}'", name, options(group)))
    return places.file_of(group, name)


def read(path: Path) -> tuple[str, DictConfig]:
    """Return the package that a file's header names, or "", and its content. Raises UserError for broken YAML."""
    try:
        return _parsed(path.read_text(encoding="utf-8"))
    except (OmegaConfBaseException, YAMLError) as error:
        raise UserError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from None


@lru_cache(maxsize=256)
def _parsed(text: str) -> tuple[str, DictConfig]:
    header = re.search(r"^#\s*@package\s+(\S+)", text, re.MULTILINE)
    return (header[1] if header else ""), OmegaConf.create(text)


def keys_of(variant: str) -> frozenset[str]:
    """Return the dotted keys that a variant sets."""

    def flat(node: Any, prefix: str) -> list[str]:
        if not isinstance(node, dict) or not node:
            return [prefix]
        return [key for name, value in node.items() for key in flat(value, f"{prefix}.{name}" if prefix else str(name))]

    return frozenset(flat({k: v for k, v in places.variants()[variant][1].items() if k != "title"}, ""))


def set_twice(one: Iterable[str], other: Iterable[str]) -> list[str]:
    """Return the dotted keys of ``one`` that ``other`` sets too, whole or in part."""
    other = list(other)
    return [a for a in sorted(one) if any(a == b or a.startswith(f"{b}.") or b.startswith(f"{a}.") for b in other)]
