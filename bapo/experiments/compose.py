"""Composes the configuration of a job from six layers, each laid over those before it: docs/methods.md.

The layers are defaults; the setting with the files of scale, task and model, by Hydra; the setting's values for the
model; the method with the task's values for it; variants; and the command line. Nothing here imports torch, because
Snakemake reads configurations in each of its processes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import combinations, product
from pathlib import Path

from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import ValidationError
from yaml import YAMLError

from bapo import methods
from bapo.errors import UserError
from bapo.experiments import model_files, places
from bapo.experiments.places import options
from bapo.experiments.schema import Config, defaults
from bapo.store.files import Json
from bapo.validate import OVERRIDE, explained, parse_yaml, plain, read, refused, require_plain, wrong

ConfigStore.instance().store(name="schema", node=defaults())
#: ``${share:4,${train.batch_size}}`` multiplies a count, rounded and at least 1
OmegaConf.register_new_resolver("share", lambda share, count: max(1, round(share * count)), replace=True)

#: parts of the configuration that all methods of a base model share
SHARED = ("data", "model", "base", "task", "scale")
#: a layer: the file that it stands in, and its values
Layer = tuple[Path, Json]


def compose_config(overrides: Sequence[str] = ()) -> Config:
    """Compose ``experiments/`` and overrides, read the model's files if ``model.from_files``, and check every value.

    The result is cached without the seed, so that another seed only costs a copy. Raises UserError with file, key,
    value and what is allowed.
    """
    seeds = [o for o in overrides if re.fullmatch(r"seed=(?:0|[1-9]\d{0,17})", o)]  # the schema checks all others
    config = _config_of(places.trees(), tuple(o for o in overrides if o not in seeds)).copy()
    if seeds:
        config.seed = int(seeds[-1].partition("=")[2])
    return model_files.fill(config)


def run_config(scale: str, task: str, model: str, method: str, seed: int, extra: tuple[str, ...] = ()) -> Config:
    """Return the configuration of one cell of a study.

    Args:
        scale, task: names in ``experiments/``
        model, method: names with their variants; "" stands for the setting's model, and for the default method
        seed: of the run
        extra: further overrides

    Raises UserError as :func:`compose_config` does, where the ``name`` in a file is not the file's name, and where
    ``extra`` sets what a variant does: rows of a study that differ by that key would all be one.
    """
    names = {"scale": scale, "task": task, "model": model, "method": method}
    config = compose_config([*(f"{group}={name}" for group, name in names.items() if name), *extra])
    config.seed = seed
    for variant in (*model.split("+")[1:], *method.split("+")[1:]) if extra else ():
        path, content = places.variants()[variant]
        for override, key in product(extra, sorted(_keys(content))):
            overridden = override.partition("=")[0]
            if f"{key}.".startswith(f"{overridden}.") or f"{overridden}.".startswith(f"{key}."):
                cure = f"leave it out, or edit {path}"
                raise UserError(f"{override}: the variant '{variant}' of a run that is asked for sets {key}; {cure}")
    for group, name in names.items():
        label = getattr(config, group).name
        if name and label != name:
            cure = f"must be {name}, as the file is called: a study's folders have the names of files"
            raise wrong(places.file_of(group, name), "name", label, cure)
    return config


# ------------------------------------------------------------------------------------------------ the layers


@lru_cache(maxsize=1024)
def _config_of(trees: tuple[Path, ...], overrides: tuple[str, ...]) -> Config:
    """Lay the layers over each other and check the result."""
    choices, values = _choices_and_values(overrides)
    method, *method_variants = choices.pop("method", "grpo").split("+")
    model, *model_variants = choices.get("model", "").split("+")
    choices |= {"model": model} if model else {}
    config = _start(trees, tuple(f"{group}={name}" for group, name in choices.items())).copy()
    layers: list[Layer] = []
    try:
        for layer in _layers(config, method, model_variants, method_variants):
            config.merge_with(layer[1])
            layers.append(layer)
        config.models, config.task.methods = {}, {}
        for value in values:
            require_plain(value.partition("=")[2], value)
            config.merge_with(OmegaConf.from_dotlist([value]))  # the value is YAML, and a mapping is merged
            if config.models or config.task.methods:  # these layers lie below the command line
                raise wrong(None, value, None, "sets values by name; set the keys directly, as in train.steps=5")
        content: Json = plain(config)
        content["method"] = methods.config_of(content["method"])
    except YAMLError as error:
        raise UserError(f"{' '.join(values)}: {explained(error)}") from None
    except (OmegaConfBaseException, ValueError) as error:
        raise UserError(explained(error)) from None
    try:
        composed = Config.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        loc, value = first["loc"], first["input"]
        if key := first.get("ctx", {}).get("key"):  # a key that does not exist
            loc, value = (*loc, key), value[key]
        is_override = any(f"{'.'.join(map(str, loc))}.".startswith(f"{v.partition('=')[0]}.") for v in values)
        raise refused(error, None if is_override else _file_with(loc, value, layers)) from None
    for node, variants in ((composed.model, model_variants), (composed.method, method_variants)):
        node.name = "+".join([node.name, *variants])
        node.title = ", ".join([node.title, *(places.variants()[v][1]["title"] for v in variants)])
    return composed


def _layers(config: DictConfig, method: str, model_variants: list[str], method_variants: list[str]) -> Iterator[Layer]:
    """Yield the layers over the setting: its values for the model, the method, the task's values for it, variants."""
    setting = places.file_of("setting", f"{config.scale.name}_{config.task.name}")
    if not OmegaConf.is_missing(config.model, "name"):
        yield setting, config.models.get(config.model.name, {})
    values, file = _method(method), places.file_of("method", method)
    if not values.get("algorithm"):
        raise wrong(file, "algorithm", None, "has no value; name a method of bapo/methods/")
    yield file, {"method": methods.defaults(values["algorithm"]) | values}
    yield places.file_of("task", config.task.name), {"method": config.task.methods.get(method, {})}
    for group, variants in (("model", model_variants), ("method", method_variants)):
        entries = [(name, *places.variants()[name]) for name in variants]
        for (name, _, content), (other_name, _, other_content) in combinations(entries, 2):
            if shared := _keys(content) & _keys(other_content):
                text = f"the variants '{name}' and '{other_name}' both set {min(shared)}; keep one of them"
                raise UserError(f"{group}: {text}")
        for name, path, content in entries:
            if group == "method" and set(content) & set(SHARED):
                cure = "changes the problems or the base model, which all methods share; make it a variant of the model"
                raise wrong(None, "method", f"{method}+{name}", cure)
            yield path, {key: value for key, value in content.items() if key != "title"}


def _method(name: str, above: tuple[str, ...] = ()) -> Json:
    """Return the values of a method: of its class, or of ``method/NAME.yaml`` over the methods in its defaults list.

    above: the methods whose defaults lists lead to it.
    """
    places.require_name(f"method={name}", "method", name)
    path, below = places.file_of("method", name), Json()
    if not path.exists():
        return methods.node_of(name)
    if name in above:
        raise wrong(path, "defaults", name, "a method cannot begin with itself; name another one")
    content = parse_yaml(path)
    for other in read(list[str], content.pop("defaults", []), path, "defaults"):
        below |= _method(other, (*above, name)) if other != "_self_" else {}
    return below | content


def _keys(content: object, prefix: str = "") -> set[str]:
    """Return the dotted keys that a variant sets, without its title."""
    if not isinstance(content, Mapping):
        return {prefix[:-1]}
    return {key for name, value in content.items() if name != "title" for key in _keys(value, f"{prefix}{name}.")}


# ------------------------------------------------------------------------------------------------ overrides


def _choices_and_values(overrides: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Return the choices by group, and the other overrides. Raises UserError for a choice that does not exist."""
    choices, values = {}, []
    for override in filter(None, overrides):
        if not re.match(OVERRIDE, override):
            raise wrong(None, override, None, "write KEY=VALUE, or GROUP=NAME")
        group, _, value = override.partition("=")
        if group in places.GROUPS:
            places.require_name(override, group, value)
            choices[group] = value
        else:
            values.append(override)
    return choices, values


def once(overrides: Sequence[str]) -> Sequence[str]:
    """Return the overrides. Raises UserError for one without a value, and where a key has two different ones."""
    firsts: dict[str, str] = {}
    for override in overrides:
        key, sign, value = override.partition("=")
        if sign and not value:
            raise wrong(None, override, None, f"has no value; write {override}VALUE, or {override}null for none")
        first = firsts.setdefault(key, override)
        if first != override:
            raise wrong(None, override, None, f"{first} is given, too; keep one of them")
    return overrides


@lru_cache(maxsize=256)
def _start(trees: tuple[Path, ...], choices: tuple[str, ...]) -> DictConfig:
    """Compose all but the method by Hydra. As this takes 0.2 seconds, the result is cached."""
    names = dict(choice.split("=", 1) for choice in choices)
    name = f"{names.get('scale', 'laptop')}_{names.get('task', 'countdown')}"
    if "setting" not in names and name not in options("setting"):
        file = trees[-1] / "setting" / f"{name}.yaml"
        raise UserError(f"{file}: missing: write this file, which says what the task is at this scale")
    if not names.get("setting", name).endswith(ending := f"_{names.get('task', 'countdown')}"):
        raise wrong(None, "setting", names["setting"], f"is of another task; name one that ends in {ending}")
    for group, choice in ({"scale": "laptop", "task": "countdown", "setting": name} | names).items():
        parse_yaml(places.file_of(group, choice))  # Hydra would not name a wrong file, nor end with nested aliases
    suite, *project_trees = trees
    search_path = [f"hydra.searchpath=['file://{_quote(tree)}']" for tree in project_trees]  # at most one
    try:
        with initialize_config_dir(version_base="1.3", config_dir=str(suite)):
            config = compose("config", overrides=[*choices, *search_path])
    except (HydraException, OmegaConfBaseException, YAMLError, ValueError, RecursionError, AssertionError) as error:
        raise UserError(explained(error)) from None
    OmegaConf.set_struct(config, False)  # the schema refuses keys that do not exist
    return config


def _quote(path: Path) -> str:
    """Escape a path for Hydra's single quotes."""
    return re.sub(r"\\*(?='|$)", lambda match: 2 * match[0], str(path)).replace("'", r"\'")


def _file_with(loc: tuple[int | str, ...], value: object, layers: Sequence[Layer]) -> Path | None:
    """Return the file of ``experiments/`` that gives a key this value, or None unless it is the only one."""

    def value_at(node: object, names: Sequence[int | str]) -> object:
        for name in names:
            node = node.get(name) if isinstance(node, Mapping) else None
        return node

    files = [path for tree in places.trees() for path in tree.glob("*/*.yaml")]
    sources = {path for path, content in layers if value_at(content, loc) == value}
    for path in files:
        sources |= {path} if value_at(parse_yaml(path), loc[path.parent.name == loc[0] :]) == value else set()
    return sources.pop() if len(sources) == 1 else None
