"""Compose the configuration of a job from six layers, the later over the earlier: docs/methods.md.

Default, setting (with the files of scale, task and model, by Hydra), the setting's lines for the model, method with the
task's lines for it, variants, command line.
Nothing here imports torch: Snakemake reads configurations in every one of its processes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import combinations
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
#: ``${share:4,${train.batch_size}}``: so many times a count, rounded and at least 1
OmegaConf.register_new_resolver("share", lambda share, count: max(1, round(share * count)), replace=True)

#: parts of the configuration that all methods of a base model share
SHARED = ("data", "model", "base", "task", "scale")
#: a layer: the file that it stands in, and its values
Layer = tuple[Path, Json]


def compose_config(overrides: Sequence[str] = ()) -> Config:
    """Compose ``experiments/`` and overrides, read the model's files where it says so, check every value.

    Raises UserError with file, key, value and what is allowed. Composing is kept for each set of overrides: another
    seed costs a copy.
    """
    seeds = [o for o in overrides if re.fullmatch(r"seed=(?:0|[1-9]\d{0,17})", o)]  # another is left to the schema
    config = _config_of(places.trees(), tuple(o for o in overrides if o not in seeds)).copy()
    if seeds:
        config.seed = int(seeds[-1].partition("=")[2])
    return model_files.fill(config)


def run_config(scale: str, task: str, model: str, method: str, seed: int, extra: tuple[str, ...] = ()) -> Config:
    """Return the configuration of one cell of a study.

    Args:
        scale, task: names in ``experiments/``
        model, method: the same with their variants; "" stands for the setting's model, and for a method that nobody
            names
        seed: of the run
        extra: further overrides

    Raises UserError as :func:`compose_config` does, and for a file whose ``name`` is not that of the file.
    """
    names = {"scale": scale, "task": task, "model": model, "method": method}
    config = compose_config([*(f"{group}={name}" for group, name in names.items() if name), *extra])
    config.seed = seed
    for group, name in names.items():
        label = getattr(config, group).name
        if name and label != name:
            cure = f"must be {name}, as the file is called: a study's folders have the names of files"
            raise wrong(places.file_of(group, name), "name", label, cure)
    return config


# ------------------------------------------------------------------------------------------------ the layers


@lru_cache(maxsize=1024)
def _config_of(trees: tuple[Path, ...], overrides: tuple[str, ...]) -> Config:
    """Lay the layers over each other and check what they come to."""
    choices, values = _choices_and_values(overrides)
    method, *of_method = choices.pop("method", "grpo").split("+")
    model, *of_model = choices.get("model", "").split("+")
    choices |= {"model": model} if model else {}
    config = _start(trees, tuple(f"{group}={name}" for group, name in choices.items())).copy()
    layers: list[Layer] = []
    try:
        for layer in _layers(config, method, of_model, of_method):
            config.merge_with(layer[1])
            layers.append(layer)
        config.models, config.task.methods = {}, {}
        for value in values:
            require_plain(value.partition("=")[2], value)
            config.merge_with(OmegaConf.from_dotlist([value]))  # the value is YAML, and a mapping is merged
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
        if key := first.get("ctx", {}).get("key"):  # a name that does not exist in this part
            loc, value = (*loc, key), value[key]
        typed = any(f"{'.'.join(map(str, loc))}.".startswith(f"{v.partition('=')[0]}.") for v in values)
        raise refused(error, None if typed else _file_with(loc, value, layers)) from None
    for part, variants in ((composed.model, of_model), (composed.method, of_method)):
        part.name = "+".join([part.name, *variants])
        part.title = ", ".join([part.title, *(places.variants()[v][1]["title"] for v in variants)])
    return composed


def _layers(config: DictConfig, method: str, of_model: list[str], of_method: list[str]) -> Iterator[Layer]:
    """Yield what lies over the setting: its lines for the model, the method, the task's lines for it, the variants."""
    setting = places.file_of("setting", f"{config.scale.name}_{config.task.name}")
    if not OmegaConf.is_missing(config.model, "name"):
        yield setting, config.models.get(config.model.name, {})
    options_of_method, file = _method(method), places.file_of("method", method)
    if not options_of_method.get("algorithm"):
        raise wrong(file, "algorithm", None, "has no value; name a method of bapo/methods/")
    yield file, {"method": methods.defaults(options_of_method["algorithm"]) | options_of_method}
    yield places.file_of("task", config.task.name), {"method": config.task.methods.get(method, {})}
    for group, variants in (("model", of_model), ("method", of_method)):
        entries = [(name, *places.variants()[name]) for name in variants]
        for (one, _, ones), (other, _, others) in combinations(entries, 2):
            if shared := _keys(ones) & _keys(others):
                text = f"the variants '{one}' and '{other}' both set {min(shared)}; keep one of them"
                raise UserError(f"{group}: {text}")
        for name, path, content in entries:
            if group == "method" and set(content) & set(SHARED):
                cure = "changes the problems or the base model, which all methods share; make it a variant of the model"
                raise wrong(None, "method", f"{method}+{name}", cure)
            yield path, {key: value for key, value in content.items() if key != "title"}


def _method(name: str, above: tuple[str, ...] = ()) -> Json:
    """Return what a method says: its class, or ``method/NAME.yaml`` over the methods that its defaults list names.

    above: the files that name it.
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
    """Return the dotted keys that a variant sets, its title excepted."""
    if not isinstance(content, Mapping):
        return {prefix[:-1]}
    return {key for name, value in content.items() if name != "title" for key in _keys(value, f"{prefix}{name}.")}


# ------------------------------------------------------------------------------------------------ overrides


def _choices_and_values(overrides: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Sort overrides into choices by group, and values. Raises UserError for a choice that does not exist."""
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
    """Return overrides of which each key has one, with a value. Raises UserError for others: they may mean anything."""
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
    """Compose all but the method by Hydra, which takes 0.2 seconds: once a process for each scale, task and model."""
    names = dict(choice.split("=", 1) for choice in choices)
    name = f"{names.get('scale', 'laptop')}_{names.get('task', 'countdown')}"
    if "setting" not in names and name not in options("setting"):
        file = trees[-1] / "setting" / f"{name}.yaml"
        raise UserError(f"{file}: missing: write this file, which says what the task is at this scale")
    if not names.get("setting", name).endswith(ending := f"_{names.get('task', 'countdown')}"):
        raise wrong(None, "setting", names["setting"], f"is of another task; name one that ends in {ending}")
    for group, each in ({"scale": "laptop", "task": "countdown", "setting": name} | names).items():
        parse_yaml(places.file_of(group, each))  # Hydra would not name a wrong file, nor end with nested aliases
    suite, *others = trees
    path = [f"hydra.searchpath=['file://{_quoted(tree)}']" for tree in others]  # a project has one
    try:
        with initialize_config_dir(version_base="1.3", config_dir=str(suite)):
            config = compose("config", overrides=[*choices, *path])
    except (HydraException, OmegaConfBaseException, YAMLError, ValueError, RecursionError, AssertionError) as error:
        raise UserError(explained(error)) from None
    OmegaConf.set_struct(config, False)  # the schema refuses what does not exist
    return config


def _quoted(path: Path) -> str:
    """Write a path as it stands between Hydra's single quotes."""
    return re.sub(r"\\*(?='|$)", lambda found: 2 * found[0], str(path)).replace("'", r"\'")


def _file_with(loc: tuple[int | str, ...], value: object, layers: Sequence[Layer]) -> Path | None:
    """Find the one file of ``experiments/`` that gives a key this value; None where several do."""

    def at(node: object, names: Sequence[int | str]) -> object:
        for name in names:
            node = node.get(name) if isinstance(node, Mapping) else None
        return node

    files = [path for tree in places.trees() for path in tree.glob("*/*.yaml")]
    sources = {path for path, content in layers if at(content, loc) == value}
    for path in files:
        sources |= {path} if at(parse_yaml(path), loc[path.parent.name == loc[0] :]) == value else set()
    return sources.pop() if len(sources) == 1 else None
