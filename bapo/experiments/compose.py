"""Compose the configuration of a job: scale, task, setting and model by Hydra, the method's layers, then overrides.

Nothing here imports torch: Snakemake reads configurations in every one of its processes.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import combinations
from pathlib import Path

import hydra
import omegaconf
from hydra import compose, initialize_config_dir
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from bapo import methods
from bapo.errors import UserError, unknown
from bapo.experiments import layers, model_files, places
from bapo.experiments.check import check
from bapo.experiments.identity import base_identity, train_identity
from bapo.experiments.places import options
from bapo.experiments.schema import Config
from bapo.store.memory import KEPT, fingerprint

ConfigStore.instance().store(name="schema", node=Config)
#: ``${share:4,${train.batch_size}}``: so many times a count, rounded and at least 1
OmegaConf.register_new_resolver("share", lambda share, count: max(1, round(share * count)), replace=True)

#: the groups whose choices may carry variants (``method=bapo+rollouts``), in the order in which these are laid
VARIED = ("model", "method")
#: overrides that only some methods understand
METHODS_OWN = re.compile(r"[+~]*method\b")
#: overrides that add a key without a plus sign: which names verl has is checked when all are set
VERLS_OWN = re.compile(r"verl\.(\w+|overrides\..+)=")


@dataclass
class Asked:
    """Overrides by what takes them. choices: groups for Hydra; values: keys, applied last; variants: by group."""

    choices: list[str] = field(default_factory=list)
    values: list[str] = field(default_factory=list)
    method: str = layers.METHOD
    variants: dict[str, list[str]] = field(default_factory=dict)


def compose_config(overrides: Sequence[str] = ()) -> DictConfig:
    """Compose ``experiments/`` with Hydra overrides, read the model's files where it says so, check every value.

    Raises UserError with the key and the allowed values.
    """
    return model_files.fill(_compose(overrides))


def _compose(overrides: Sequence[str]) -> DictConfig:
    """Compose what follows from ``experiments/`` and the overrides alone, which may be kept."""
    overrides = tuple(o for o in overrides if o)
    asked = _sorted(overrides)
    config = _start(places.trees(), tuple(asked.choices))
    try:
        layers.lay(config, asked.method, [v for g in VARIED for v in asked.variants.get(g, [])])
        _apply(config, asked.values)
        model_files.derive(config)
        config.method = methods.checked(config.method)
    except methods.MethodError as error:
        raise UserError(str(error)) from None
    except OmegaConfBaseException as error:
        raise UserError(_explain(error)) from None
    for group, variants in asked.variants.items():
        config[group].name = "+".join((config[group].name, *variants))
        config[group].title = ", ".join((config[group].title, *(config.variant[v] for v in variants)))
    try:
        OmegaConf.to_container(config, resolve=True)  # a layer may refer to what this setting does not have
    except OmegaConfBaseException as error:
        raise UserError(_explain(error)) from None
    missing = sorted(OmegaConf.missing_keys(config))
    if missing:
        raise UserError(f"{missing[0]} has no value: set it in experiments/ or add {missing[0]}=... to the command")
    check(config)
    _require_effect(config, overrides)
    return config


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
    """Compose everything but the method's layers and the values with Hydra. Composing is cached."""
    return KEPT.get(("start", *map(str, trees), choices), lambda: _by_hydra(trees, choices))


def _by_hydra(trees: tuple[Path, ...], choices: tuple[str, ...]) -> DictConfig:
    GlobalHydra.instance().clear()
    suite, *others = trees
    path = [f"hydra.searchpath=[{','.join(quoted(f'file://{tree}') for tree in others)}]"] if others else []
    try:
        with initialize_config_dir(version_base="1.3", config_dir=str(suite)):
            return compose("config", overrides=[*choices, *path])
    except (HydraException, OmegaConfBaseException, YAMLError) as error:
        raise UserError(_explain(error)) from None


def _apply(config: DictConfig, overrides: Sequence[str]) -> None:
    """Set values in place, as Hydra does. Raises UserError naming a key that does not exist, and what does."""
    for override in overrides:
        try:
            (parsed,) = OverridesParser.create().parse_overrides([override])
            fault = _unknown_key(config, parsed.key_or_group)
            if fault and VERLS_OWN.match(override):
                (parsed,) = OverridesParser.create().parse_overrides([f"+{override}"])
            if fault and not (parsed.is_add() and fault.in_mapping):
                addable = fault.in_mapping and not parsed.is_delete()
                raise UserError(f"{fault}; write +{override} to add it" if addable else str(fault))
            if parsed.is_delete() and not _in_mapping(config, parsed.key_or_group):
                raise UserError(f"{override}: a key of the configuration cannot be removed; give it another value")
            ConfigLoaderImpl._apply_overrides_to_config([parsed], config)
        except (HydraException, OmegaConfBaseException) as error:
            raise UserError(_explain(error)) from None


@dataclass
class UnknownKey:
    """The first part of a key that does not exist. in_mapping: its parent takes any name (data.generator, verl)."""

    text: str
    in_mapping: bool

    def __str__(self) -> str:
        return self.text


def _unknown_key(config: DictConfig, key: str) -> UnknownKey | None:
    """Find the first part of a dotted key that the configuration does not have; None where it has all of it."""
    node, parts = config, []
    for name in key.split("."):
        parts.append(name)
        names = [str(k) for k in node] if isinstance(node, DictConfig) else []
        if name not in names:
            text = unknown(".".join(parts), f"no such key '{name}'", name, names or ["none below a value"])
            return UnknownKey(text, isinstance(node, DictConfig) and not _typed(node))
        node = node._get_node(name)
    return None


def _in_mapping(config: DictConfig, key: str) -> bool:
    parent = OmegaConf.select(config, key.rpartition(".")[0]) if "." in key else config
    return isinstance(parent, DictConfig) and not _typed(parent)


def _typed(node: DictConfig) -> bool:
    """Return whether a dataclass of the schema says which keys the node has."""
    return dataclasses.is_dataclass(OmegaConf.get_type(node))


def quoted(text: str) -> str:
    """Quote a string as Hydra's override grammar reads it back unchanged."""
    if re.fullmatch(r"[\w./\-]+", text):
        return text
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _explain(error: Exception) -> str:
    """Say Hydra's and OmegaConf's errors in one sentence that begins with the key."""
    text = " ".join(f"{error} {error.__cause__ or ''}".split())  # Hydra hides the reason in the cause
    if lacking := re.search(r"Interpolation key '(regimes|matched)\.(\w+)'", text):
        kind, name = lacking.groups()
        variant, what = (name, "weaker bases") if kind == "regimes" else (kind, "conditions matched to the paper's")
        return (
            f"model=...+{variant}: this task has no {what} at this scale; for a model trained from scratch add "
            f"{kind}.{name} to experiments/setting/, as laptop_countdown.yaml does"
        )
    if lacking := re.search(r"Could not find 'setting/(\w+)'", text):
        file = places.trees()[-1] / "setting" / f"{lacking[1]}.yaml"
        return f"{file} is missing: write this file, which says what the task is at this scale (docs/project.md)"
    key, file = re.search(r"full_key: ([\w.]+)", text), re.search(r"In '([\w/.-]+)':", text)
    text = text.split(" Config search path")[0].split(" full_key")[0]
    if file and key and "not in '" in text:
        fault = _unknown_key(OmegaConf.structured(Config), key[1])
        text = str(fault) if fault else text
        return f"{places.EXPERIMENTS.name}/{file[1]}.yaml: {text}"
    return f"{key[1]}: {text}" if key else text


# ------------------------------------------------------------------------------------------------ variants and cells


def _require_effect(config: DictConfig, overrides: Sequence[str]) -> None:
    """Raise UserError naming a variant that changes nothing in the run.

    It would train the same run again, into a folder that claims another. A configuration is compared with the one
    without its last variant, itself checked so.
    """
    for at, override in enumerate(overrides):
        group, _, value = override.partition("=")
        shorter, _, variant = value.rpartition("+")
        if group not in VARIED or not shorter:
            continue
        others = (*overrides[:at], f"{group}={shorter}", *overrides[at + 1 :])
        if train_identity(config) == train_identity(_composed(others)):
            raise UserError(
                f"{override}: the variant '{variant}' changes nothing in {shorter} here; leave it out, or take another"
            )


def forget() -> None:
    """Read ``experiments/`` anew: what was composed before is kept for the life of the process."""
    KEPT.clear()
    _base_identity.cache_clear()


def recall() -> None:
    """Take up what an earlier process in this folder has composed, unless ``experiments/`` or the code has changed."""
    KEPT.recall(_memory(), sources)


def retain(begun_with: str) -> None:
    """Leave what this process has composed to later ones. begun_with: :func:`sources` before it composed anything."""
    if begun_with == sources():  # nothing was edited meanwhile
        KEPT.store(_memory(), begun_with)


def _memory() -> Path:
    """Name the file in which processes in one working directory leave each other what they have composed.

    It lies in the user's own cache: a pickle can run code, so none is read that came along with a folder of results.
    """
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "bapo")
    return home / f"{hashlib.sha256(str(Path.cwd()).encode()).hexdigest()[:16]}.pickle"


def sources() -> str:
    """Fingerprint all that a configuration is composed from. Methods of other packages are not kept."""
    trees = places.trees()
    folders = [*trees, Path(__file__).resolve().parents[1]]
    return fingerprint(folders, *map(str, trees), hydra.__version__, omegaconf.__version__)


def composed(overrides: Sequence[str]) -> DictConfig:
    """Compose as :func:`compose_config` does, once for each set of overrides; another seed costs a copy."""
    seeds = [o for o in overrides if re.fullmatch(r"seed=\d+", o)]
    config = _composed(tuple(o for o in overrides if o not in seeds))
    if seeds:
        config.seed = int(seeds[-1].partition("=")[2])
    return config


def _composed(overrides: tuple[str, ...]) -> DictConfig:
    key = ("composed", *map(str, places.trees()), overrides)
    config = KEPT.get(key, lambda: _compose(overrides), lambda config: methods.built_in(config.method.algorithm))
    return model_files.fill(config)


def run_config(scale: str, task: str, model: str, method: str, seed: int, extra: tuple[str, ...] = ()) -> DictConfig:
    """Return the configuration of one cell of a study. Composing is cached: another seed costs a copy."""
    names = [f"scale={scale}", f"task={task}"]
    names += [f"model={model}"] if model else []
    names += [f"method={method}"] if method else []
    config = _composed((*names, *extra))
    config.seed = seed
    for group, name in (("task", task), ("model", model), ("method", method)):
        if group == "model" and name and config.model.from_files and config.model.name != name:
            raise UserError(
                f"model={name}: a study needs a name for its folder; in a project write experiments/model/NAME.yaml "
                "with `defaults: [hf]`, name and path (docs/single_gpu.md)"
            )
        if name and config[group].name != name:
            raise UserError(
                f"experiments/{group}/{name}.yaml: name is '{config[group].name}', so its runs would lie in another's "
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
