"""A method and variants laid over the composed configuration of a task and a model: what Hydra gives, ten times sooner.

A study has a dozen methods a model, and Hydra takes 0.1 s for each composition. What only Hydra can do, or explain, is
left to it: the answer is None then. tests/test_layers.py compares the two for every run of every study.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

#: the end of the defaults list of experiments/config.yaml that this module knows
TAIL = [
    {"method": "grpo"},
    {"optional adjustment": "${task}_${method}"},
    {"fidelity": "paper"},
    {"variant": []},
    {"tracking": "wandb"},
    "_self_",
]
#: the groups that come before the method, and an entry of a defaults list that depends on it: only TAIL has one
BEFORE = ("scale", "task", "setting", "model", "exception")
CHOSEN_BY_METHOD = re.compile(r"^\s*-.*\$\{/?method\}", re.MULTILINE)
#: overrides of the choices themselves, which have another place in the order
CHOICES = re.compile(r"(?![\w.]+=)|(method|adjustment|fidelity|variant)\b")


def lay(
    start: DictConfig, folder: Path, task: str, method: str, variants: Sequence[str], overrides: Iterable[str]
) -> DictConfig | None:
    """The configuration of ``method`` with ``variants``, or None where Hydra must compose it.

    start: the checked configuration of the same task and model with the default method. folder: experiments/.
    overrides: those of ``start``, which win over files: none may set what a file sets here.
    """
    try:
        if not _known_order(folder) or any(CHOICES.match(o) for o in overrides):
            return None
        own = _method(folder, method)
        adjustment = folder / "adjustment" / f"{task}_{method}.yaml"
        paths = [adjustment] if adjustment.exists() else []
        over = [_global(path) for path in (*paths, *(folder / "variant" / f"{v}.yaml" for v in variants))]
        if own is None or None in over:
            return None
        if {str(key) for layer in over for key in layer} & {"seed", "tracking", *(_first(o) for o in overrides)}:
            return None
        config = copy.deepcopy(start)
        OmegaConf.set_struct(config, False)  # as Hydra has it while it composes
        config.method = own
        for layer in over:
            config.merge_with(layer)
        OmegaConf.set_struct(config, True)
        return config
    except (OmegaConfBaseException, YAMLError, OSError):  # Hydra says what is wrong
        return None


def _first(override: str) -> str:
    return re.split(r"[.=]", override, maxsplit=1)[0]


def _known_order(folder: Path) -> bool:
    """Whether Hydra lays the method's files where this module does, and a model starts from no method's adjustment."""
    _, main = _read(folder / "config.yaml")
    _, fidelity = _read(folder / "fidelity" / "paper.yaml")
    listed = OmegaConf.to_container(main).get("defaults", [])
    before = [folder / "config.yaml", *(p for group in BEFORE for p in (folder / group).glob("*.yaml"))]
    chosen = [e for p in before for e in CHOSEN_BY_METHOD.findall(p.read_text(encoding="utf-8"))]
    adjusted = any((folder / "adjustment").glob("*_grpo.yaml"))
    return listed[-len(TAIL) :] == TAIL and len(chosen) == 1 and not fidelity and not adjusted


def _read(path: Path) -> tuple[str, DictConfig]:
    """The package that a file's header names ("": its folder's), and its content."""
    return _parsed(path.read_text(encoding="utf-8"))


@lru_cache(maxsize=256)
def _parsed(text: str) -> tuple[str, DictConfig]:
    header = re.search(r"^#\s*@package\s+(\S+)", text, re.MULTILINE)
    return (header[1] if header else ""), OmegaConf.create(text)


def _global(path: Path) -> DictConfig | None:
    """The content of a file that is laid over the whole configuration."""
    package, content = _read(path)
    return content if package == "_global_" and "defaults" not in content else None


def _method(folder: Path, name: str) -> DictConfig | None:
    """A method's file over those that its defaults list names."""
    package, content = _read(folder / "method" / f"{name}.yaml")
    if package:
        return None
    own = copy.deepcopy(content)
    listed = list(own.pop("defaults", ["_self_"]))
    if listed[-1] != "_self_" or not all(isinstance(d, str) and re.fullmatch(r"\w+", d) for d in listed):
        return None
    below = [_method(folder, d) for d in listed[:-1]]
    return None if None in below else OmegaConf.merge(*below, own)
